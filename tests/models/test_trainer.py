"""transformers' Trainer with every model class that has a loss."""

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from every_head import HEADS, B, Head, T
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.utils.generic import find_labels

from longspan.errors import InputError
from longspan.models import (
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
)

VOCABULARY = 50
TARGETS = torch.arange(B * T).view(B, T) % VOCABULARY
# Rows with different numbers of labels: a mean of means over rows is not the mean over labels.
TARGETS = TARGETS.masked_fill(torch.arange(T) >= torch.tensor([[2], [5], [9]]), -100)
LANGUAGE = {
    "masked": Head(LongspanForMaskedLM, {"labels": TARGETS}),
    "causal": Head(LongspanForCausalLM, {"labels": TARGETS}),
    "text_to_text": Head(LongspanForConditionalGeneration, {"labels": TARGETS}),
}
EVERY = HEADS | LANGUAGE
EVERY["token"] = dataclasses.replace(EVERY["token"], labels={"labels": TARGETS.clamp(max=1)})
# Each document has one loss, however many mentions it has.
COUNTED = sorted(n for n, x in EVERY.items() if "labels" in x.labels and n != "coreference")
SPECIAL = {"pad_token_id": 0, "decoder_start_token_id": 1}


class Rows(Dataset):
    """Rows of a batch."""

    def __init__(self, head, count=B):
        self.batch = head.inputs() | head.more | head.labels
        # The loss of a dual encoder has no labels: every row answers its own query.
        self.batch.pop("return_loss", None)
        self.batch = {name: x[:count] for name, x in self.batch.items()}

    def __len__(self):
        return len(next(iter(self.batch.values())))

    def __getitem__(self, index):
        return {name: x[index] for name, x in self.batch.items()}


class KeptGradients(TrainerCallback):
    """Gradients of the last step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):
        self.found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def build(head, small, **changes):
    torch.manual_seed(0)
    return head.cls(small(**SPECIAL, **changes)).double()


def arguments(folder, **more):
    fixed = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_grad_norm": 0.0}
    return TrainingArguments(str(folder), save_strategy="no", **fixed, **more)


def gradients(model, rows, folder, size, **more):
    """Return the loss and gradients of a step over all rows, `size` at a time."""
    kept = KeptGradients()
    parts = {"per_device_train_batch_size": size, "gradient_accumulation_steps": B // size}
    trainer = Trainer(
        copy.deepcopy(model),
        arguments(folder, max_steps=1, logging_steps=1, **parts, **more),
        train_dataset=rows,
        callbacks=[kept],
    )
    return trainer.train().training_loss, kept.found


@pytest.mark.parametrize("name", sorted(EVERY))
def test_evaluation_gives_the_loss_and_the_predictions(name, small, tmp_path):
    head, seen = EVERY[name], []
    model, rows = build(head, small, output_hidden_states=True), Rows(head)
    trainer = Trainer(
        model,
        arguments(tmp_path, per_device_eval_batch_size=B),
        eval_dataset=rows,
        compute_metrics=lambda given: seen.append(given) or {"rows": len(given.predictions)},
    )
    found = trainer.evaluate()
    with torch.no_grad():
        output = model.eval()(**rows.batch)
    assert found["eval_loss"] == pytest.approx(output.loss.item(), rel=1e-6)
    expected = [x for key, x in output.items() if key != "loss" and "hidden" not in key]
    if name == "text_to_text":
        expected = [output.logits]
    predictions = seen[0].predictions
    predictions = predictions if isinstance(predictions, tuple) else (predictions,)
    assert len(predictions) == len(expected)
    for a, b in zip(predictions, expected, strict=True):
        numpy.testing.assert_allclose(a, b.numpy(), atol=1e-6)


def test_metrics_read_the_losses_of_an_adaptive_softmax(small, tmp_path):
    """With labels it computes no logits."""
    head, seen = EVERY["causal"], []
    model, rows = build(head, small, adaptive_cutoffs=[10, 30]), Rows(head)
    trainer = Trainer(
        model,
        arguments(tmp_path, per_device_eval_batch_size=2),
        eval_dataset=rows,
        compute_metrics=lambda given: seen.append(given) or {},
    )
    loss = trainer.evaluate()["eval_loss"]
    log_probabilities = model(rows.batch["input_ids"]).logits.detach().numpy()
    labels = seen[0].label_ids[:, 1:]
    picked = numpy.take_along_axis(log_probabilities[:, :-1], labels.clip(0)[..., None], 2)[..., 0]
    numpy.testing.assert_allclose(seen[0].predictions[:, :-1], -picked * (labels != -100))
    first, last = ((-picked * (labels != -100))[x].sum() for x in (slice(2), slice(2, 3)))
    counts = [(labels != -100)[x].sum() for x in (slice(2), slice(2, 3))]
    assert loss == pytest.approx((2 * first / counts[0] + last / counts[1]) / 3, rel=1e-6)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_the_trainer_waits_for_the_labels_alone(name):
    head = EVERY[name]
    assert set(find_labels(head.cls)) == set(head.labels) - {"return_loss"}
    assert head.cls.accepts_loss_kwargs == (name in COUNTED)


@pytest.mark.parametrize("name", [*COUNTED, "auxiliary"])
def test_accumulated_batches_equal_one_batch(name, small, tmp_path):
    """Also with the mechanisms' auxiliary loss, which is part of each batch's mean."""
    own = {"segment": 2, "memory": 2, "compressed_memory": 2, "ratio": 2, "compression": "conv"}
    auxiliary = {"attention": "compressive", "attention_options": own}
    head = EVERY["causal" if name == "auxiliary" else name]
    model = build(head, small, **(auxiliary if name == "auxiliary" else {}))
    rows = Rows(head)
    whole_loss, whole = gradients(model, rows, tmp_path, B)
    loss, parts = gradients(model, rows, tmp_path, 1)
    if name == "auxiliary":
        weights = [(x[1:] != -100).sum().item() for x in TARGETS]
        with torch.no_grad():
            single = [model.train()(**{k: x[i : i + 1] for k, x in rows.batch.items()}).loss
                      for i in range(B)]  # fmt: skip
        expected = sum(w * x for w, x in zip(weights, single, strict=True)) / sum(weights)
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        return
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert whole.keys() == parts.keys()
    for key, x in whole.items():
        torch.testing.assert_close(parts[key], x, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("name", COUNTED)
def test_a_batch_without_labels_has_no_loss(name, small, tmp_path):
    head = EVERY[name]
    model, rows = build(head, small), Rows(head)
    rows.batch["labels"] = rows.batch["labels"].clone()
    rows.batch["labels"][0] = -100
    each = [
        Trainer(model, arguments(tmp_path, per_device_eval_batch_size=1)).evaluate(
            torch.utils.data.Subset(rows, [i])
        )["eval_loss"]
        for i in range(B)
    ]
    assert each[0] == 0
    found = Trainer(model, arguments(tmp_path, per_device_eval_batch_size=1)).evaluate(rows)
    assert found["eval_loss"] == pytest.approx(sum(each) / B, rel=1e-6)


@pytest.mark.parametrize("name", sorted(set(COUNTED) - {"text_to_text"}))
def test_smoothing_towards_zero_equals_none(name, small, tmp_path):
    """With labels alone an encoder-decoder needs transformers' DataCollatorForSeq2Seq."""
    head = EVERY[name]
    if name == "candidates":  # Smoothed targets of absent candidates have no finite loss.
        head = dataclasses.replace(
            head, more={"candidate_positions": torch.tensor(B * [[1, 4, 6]])}
        )
    model, rows = build(head, small), Rows(head)
    loss, plain = gradients(model, rows, tmp_path, B)
    smooth_loss, smooth = gradients(model, rows, tmp_path, B, label_smoothing_factor=1e-9)
    assert smooth_loss == pytest.approx(loss, rel=1e-6)
    for key, x in plain.items():
        torch.testing.assert_close(smooth[key], x, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", COUNTED)
def test_a_loss_without_the_auxiliary_one_is_refused(name, small, tmp_path):
    """Label smoothing computes the loss from the logits."""
    options = {"num_selected_keys": 2, "index_heads": 2, "index_dim": 8}
    head = EVERY[name]
    model, rows = build(head, small, attention="indexed", attention_options=options), Rows(head)
    if name == "text_to_text":
        ids = model.prepare_decoder_input_ids_from_labels(rows.batch["labels"])
        rows.batch["decoder_input_ids"] = ids
    with pytest.raises(InputError, match="auxiliary loss, which a loss of the logits alone"):
        gradients(model, rows, tmp_path, B, label_smoothing_factor=0.1)
    trainer = Trainer(model, arguments(tmp_path, label_smoothing_factor=0.1), eval_dataset=rows)
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("name", ["sequence", "pair"])
def test_a_loss_without_the_weights_of_classes_is_refused(name, small, tmp_path):
    head = EVERY[name]
    model, rows = build(head, small, class_weights=[0.5, 1.5, 1.0]), Rows(head)
    with pytest.raises(InputError, match="class_weights, which a loss of the logits alone"):
        gradients(model, rows, tmp_path, B, label_smoothing_factor=0.1)


def test_continuous_inputs_are_counted_and_given_to_metrics(small, tmp_path):
    values, labels = torch.randn(B, T, 3, dtype=torch.float64), torch.arange(B) % 2
    rows = [{"input_values": x, "labels": y} for x, y in zip(values, labels, strict=True)]
    seen = []
    trainer = Trainer(
        build(HEADS["sequence"], small, input_features=3),
        arguments(tmp_path, max_steps=1, include_for_metrics=["inputs"]),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda given: seen.append(given.inputs) or {},
    )
    trainer.train()
    assert trainer.state.total_flos > 0
    trainer.evaluate()
    numpy.testing.assert_array_equal(seen[0], values.numpy())


def test_the_best_causal_model_is_loaded_at_the_end(small, tmp_path):
    head = EVERY["causal"]
    rows, steps = Rows(head), {"eval_steps": 1, "save_steps": 1, "max_steps": 2}
    best = TrainingArguments(
        str(tmp_path),
        eval_strategy="steps",
        load_best_model_at_end=True,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **steps,
    )
    trainer = Trainer(build(head, small), best, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.state.best_metric == pytest.approx(trainer.evaluate()["eval_loss"])


def test_an_unknown_argument_of_a_causal_model_is_refused(small):
    model = AutoModelForCausalLM.from_config(small(is_decoder=True))
    with pytest.raises(TypeError, match="shifted_labels"):
        model(torch.ones(1, 4, dtype=torch.long), shifted_labels=None)


TRAIN = """
import sys
sys.path[:0] = [{here!r}]
import torch
from conftest import small_config
from pathlib import Path
from test_trainer import EVERY, Rows, arguments, build
from transformers import Trainer
size, folder = int(sys.argv[1]), Path(sys.argv[2])
torch.manual_seed(0)
head = EVERY["causal"]
rows = Rows(head, 2)
steps = dict(max_steps=2, per_device_train_batch_size=size, learning_rate=1e-2)
trainer = Trainer(build(head, small_config), arguments(folder, **steps), train_dataset=rows)
trainer.train()
if trainer.is_world_process_zero():
    torch.save(trainer.model.state_dict(), folder / f"{{size}}.pt")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_equal_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN.format(here=str(Path(__file__).parent)))
    for processes in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
        command += [str(processes), str(script), str(2 // processes), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (torch.load(tmp_path / f"{size}.pt") for size in (2, 1))
    for key, x in one.items():
        torch.testing.assert_close(two[key], x, atol=1e-9, rtol=1e-6)
