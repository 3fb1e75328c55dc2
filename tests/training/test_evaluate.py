"""A split's score is that of its examples, each counted once, scored one by one."""

import pytest
import torch
import torch.nn.functional as F

import tiny
from longspan.arena import make_model
from longspan.tasks import Batch
from longspan.training.evaluate import evaluate, to_device

CPU = torch.device("cpu")


@pytest.fixture
def model(listops):
    return make_model(tiny.experiment(), listops)


def one_by_one(model, task, split):
    """Accuracy and loss from examples that share no batch and no padding."""
    hits, losses = [], []
    for part in task.batches(split, batch=1):
        with torch.no_grad():
            logits = model(part.inputs, part.key_mask).logits[0]
        hits.append(int(logits.argmax()) == int(part.targets))
        losses.append(float(F.cross_entropy(logits, part.targets[0])))
    return sum(hits) / len(hits), sum(losses) / len(losses)


@pytest.mark.parametrize("batch", [1, 7, 16, 44, 1000])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_example_counts_once_whatever_the_batch(model, listops, split, batch):
    model.eval()
    accuracy, loss = one_by_one(model, listops, split)
    score = evaluate(model, listops, split, batch=batch, device=CPU)
    assert score.examples == tiny.TASK[split]
    assert score.accuracy == accuracy
    assert score.loss == pytest.approx(loss, rel=1e-5)


def test_majority_is_the_share_of_the_most_frequent_class(model, listops):
    labels = listops.labels("test").tolist()
    most = max(labels.count(label) for label in set(labels))
    assert evaluate(model, listops, "test", batch=9, device=CPU).majority == most / 44


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_is_restored(listops, training):
    model = make_model(tiny.experiment(changes={"model.dropout": 0.5}), listops)
    model.train(training)
    scores = [evaluate(model, listops, "test", batch=16, device=CPU) for _ in range(2)]
    assert scores[0] == scores[1]
    assert all(part.training is training for part in model.modules())


def test_evaluation_leaves_no_gradients_and_no_trace_in_random_numbers(model, listops):
    state = torch.get_rng_state()
    evaluate(model, listops, "test", batch=16, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in model.parameters())


def test_pairs_reach_the_model_with_both_masks():
    mask = torch.tensor([[True, False]])
    ids = torch.tensor([[1, 0]])
    pair = Batch(
        inputs=ids, key_mask=mask, targets=ids[0, :1], rows=ids[0, :1], inputs_b=ids + 1,
        key_mask_b=~mask,
    )  # fmt: skip
    sent = to_device(pair, CPU)
    assert torch.equal(sent["input_ids_b"], ids + 1)
    assert torch.equal(sent["attention_mask_b"], ~mask)
    assert set(to_device(one_of(pair), CPU)) == {"input_ids", "attention_mask"}


def one_of(pair):
    return Batch(inputs=pair.inputs, key_mask=pair.key_mask, targets=pair.targets, rows=pair.rows)
