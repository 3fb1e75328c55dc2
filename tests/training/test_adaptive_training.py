"""Training and evaluation with an adaptive softmax: as with all logits, and without making them."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import toy_streams
from exactness import assert_bitwise_equal
from longspan.config import TrainingConfig
from longspan.metrics import get_metric
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.adaptive import AdaptiveSoftmax
from longspan.tasks import IGNORE
from longspan.training import Callback, fit
from longspan.training.arguments import logit_arguments
from longspan.training.evaluate import evaluate, warm_up
from longspan.training.footprint import measure_step_memory

STEPS, CPU = 8, torch.device("cpu")


def opened(cls, tmp_path):
    task = cls()
    task.open(tmp_path / "cache")
    return task


def make_model(mechanism="transformer_xl", tied=True, **fields):
    torch.manual_seed(5)
    recurrent = mechanism == "transformer_xl"
    config = LongspanConfig(
        **{
            "vocab_size": toy_streams.ToyStream.info.vocab_size,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "hidden_dropout_prob": 0.0,
            "attention_dropout": 0.0,
            "max_position_embeddings": 16,
            "position": "none" if recurrent else "rotary",
            "attention": mechanism,
            "attention_options": {"segment": 16, "memory": 16} if recurrent else {},
            "is_decoder": True,
            "initializer_range": 0.2,
            # The toy's letters are around 100.
            "adaptive_cutoffs": [100, 103],
            "tie_word_embeddings": tied,
            **fields,
        }
    )
    return LongspanForCausalLM(config)


def recipe(**changes):
    fields = {
        "steps": STEPS,
        "batch_size": 3,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "schedule": "constant",
        "evaluate_every": 4,
        "checkpoint_every": 3,
        "gradient_accumulation_steps": 2,
    }
    return TrainingConfig(**{**fields, **changes})


@pytest.fixture
def no_logits(monkeypatch):
    """Fail where the log-probabilities of all words are computed."""

    def fail(*_):
        raise AssertionError("all words are scored")

    monkeypatch.setattr(AdaptiveSoftmax, "_log_probabilities", fail)


class Losses(Callback):
    """Callback that keeps the losses, and may interrupt a run."""

    def __init__(self, stop=None):
        self.losses, self.stop = [], stop

    def on_step(self, step, loss, tokens, seconds):
        self.losses.append(float(loss))
        if step == self.stop:
            raise KeyboardInterrupt


def train(model, task, folder, callback=None, **changes):
    config = recipe(**changes)
    return fit(model, task, config, seed=0, folder=folder, device="cpu", callback=callback)


@pytest.mark.parametrize("tied", [True, False])
def test_training_without_logits_is_that_of_a_plain_loop_with_them(tied, tmp_path):
    task, callback = opened(toy_streams.ToyWords, tmp_path), Losses()
    outcome = train(make_model("full", tied), task, tmp_path / "run", callback)
    model, expected = make_model("full", tied), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6, weight_decay=0.0)
    for batch in itertools.islice(task.batches("train", batch_size=3, seed=0), STEPS):
        logits = model(**batch.inputs).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    torch.testing.assert_close(callback.losses, expected, rtol=1e-4, atol=1e-4)
    # Tokens of the toy are bytes.
    batches = itertools.islice(task.batches("train", batch_size=3, seed=0), 4)
    counts = [int((batch.targets != IGNORE).sum()) for batch in batches]
    nats = sum(x * count for x, count in zip(expected, counts, strict=False))
    found = outcome.curve[0].train_metrics["bits_per_byte"]
    assert found == pytest.approx(nats / sum(counts) / math.log(2), rel=1e-4)


def test_training_and_evaluation_make_no_logits(no_logits, tmp_path):
    outcome = train(make_model(), opened(toy_streams.ToyWords, tmp_path), tmp_path / "run")
    score = outcome.scores["test"]
    assert score.metrics["perplexity"] == pytest.approx(torch.tensor(score.loss).exp().item())


def test_metrics_of_other_words_get_logits(no_logits, tmp_path):
    """Accuracy, of the toy's own metrics, is of evaluations alone; training does without it."""
    task = opened(toy_streams.ToyStream, tmp_path)
    callback = Losses()
    with pytest.raises(AssertionError, match="all words are scored"):
        train(make_model(), task, tmp_path / "run", callback)
    assert len(callback.losses) == 4


@pytest.mark.parametrize("split", ["validation", "test"])
def test_scores_from_losses_equal_those_from_logits(split, tmp_path):
    model = make_model()
    one = evaluate(model, opened(toy_streams.ToyWords, tmp_path), split, batch_size=2, device=CPU)
    two = evaluate(model, opened(toy_streams.ToyStream, tmp_path), split, batch_size=2, device=CPU)
    assert one.score.loss == pytest.approx(two.score.loss, rel=1e-6)
    assert one.score.num_targets == two.score.num_targets
    assert one.score.metrics["bits_per_byte"] == pytest.approx(
        two.score.metrics["bits_per_byte"], rel=1e-6
    )
    assert "accuracy" in two.score.metrics


def test_warm_up_makes_no_logits(no_logits, tmp_path):
    warm_up(make_model(), opened(toy_streams.ToyWords, tmp_path), "test", batch_size=2, device=CPU)


def test_interrupted_training_ends_as_an_uninterrupted_one(tmp_path):
    task = opened(toy_streams.ToyWords, tmp_path)
    whole = train(make_model(), task, tmp_path / "whole")
    for stop in (4, 7):
        with pytest.raises(KeyboardInterrupt):
            train(make_model(), task, tmp_path / "parts", Losses(stop))
    parts = train(make_model(), task, tmp_path / "parts")
    assert parts.scores == whole.scores
    for one, two in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
        assert_bitwise_equal(one, two, "resumption")


def test_adaptive_models_compute_logits_for_metrics_that_read_them():
    metrics = (get_metric("perplexity"),)
    both = (*metrics, get_metric("accuracy"))
    assert logit_arguments(make_model(adaptive_cutoffs=[]), both) == {}
    assert logit_arguments(make_model(), both) == {"return_logits": True}
    assert logit_arguments(make_model(), metrics) == {}


def test_memory_of_a_step_has_no_logits_of_rare_words(tmp_path):
    """Dummy targets are frequent words, whose scores alone are alive beside the states."""
    task, config = opened(toy_streams.ToyWords, tmp_path), recipe(gradient_accumulation_steps=1)
    sizes = {"vocab_size": 40_000, "adaptive_factor": 2, "tie_word_embeddings": True}
    adaptive = make_model("full", adaptive_cutoffs=[300, 1_000], **sizes)
    whole = make_model("full", adaptive_cutoffs=[], **sizes)
    found, plain = (measure_step_memory(x, task, config).working for x in (adaptive, whole))
    logits = 4 * config.batch_size * task.length * 40_000
    assert plain > 2 * logits > found
