"""Scores of a split, compared with scoring of single examples."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from transformers.modeling_outputs import TokenClassifierOutput

import tiny
from longspan.arena import make_model
from longspan.errors import DataError
from longspan.models import LongspanConfig
from longspan.models.heads.losses import label_loss
from longspan.tasks import IGNORE, build
from longspan.training.evaluate import evaluate, warm_up

CPU = torch.device("cpu")


@pytest.fixture
def model(listops):
    return make_model(tiny.experiment(), listops)


def evaluate_one_by_one(model, task, split):
    """Compute accuracy and loss example by example, without shared batches and padding."""
    hits, losses = [], []
    for part in task.batches(split, batch_size=1):
        with torch.no_grad():
            logits = model(part.inputs["input_ids"], part.inputs["attention_mask"]).logits[0]
        hits.append(int(logits.argmax()) == int(part.targets))
        losses.append(float(F.cross_entropy(logits, part.targets[0])))
    return sum(hits) / len(hits), sum(losses) / len(losses)


@pytest.mark.parametrize("batch", [1, 7, 16, 44, 1000])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_example_counts_once_for_any_batch_size(model, listops, split, batch):
    model.eval()
    accuracy, loss = evaluate_one_by_one(model, listops, split)
    score = evaluate(model, listops, split, batch_size=batch, device=CPU).score
    assert score.num_targets == tiny.TASK[split]
    assert score.metrics["accuracy"] == accuracy
    assert score.loss == pytest.approx(loss, rel=1e-5)


def test_majority_baseline_is_share_of_most_frequent_class(model, listops):
    labels = listops.labels("test").tolist()
    most = max(labels.count(label) for label in set(labels))
    assert (
        evaluate(model, listops, "test", batch_size=9, device=CPU).score.majority_baseline
        == most / 44
    )


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_disabled_and_mode_is_restored(listops, training):
    model = make_model(tiny.experiment(changes={"model.hidden_dropout_prob": 0.5}), listops)
    model.train(training)
    scores = [evaluate(model, listops, "test", batch_size=16, device=CPU).score for _ in range(2)]
    assert scores[0] == scores[1]
    assert all(part.training is training for part in model.modules())


def test_evaluation_leaves_no_gradients_and_keeps_random_state(model, listops):
    state = torch.get_rng_state()
    evaluate(model, listops, "test", batch_size=16, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in model.parameters())


COPYING = {"train": 40, "validation": 10, "test": 17}


@pytest.fixture(scope="module")
def copying(tiny_cache):
    """Copying task, which scores some of the tokens."""
    task = build("copying", COPYING)
    task.open(tiny_cache)
    return task


class ConstantAnswers(torch.nn.Module):
    """Model with logit 20 for the class that a function of the token ID gives, and 0 elsewhere."""

    def __init__(self, classes, answer):
        super().__init__()
        self.classes, self.answer = classes, answer
        self.config = LongspanConfig()

    def forward(self, input_ids, attention_mask, labels):
        logits = 20.0 * F.one_hot(self.answer(input_ids).remainder(self.classes), self.classes)
        return TokenClassifierOutput(loss=label_loss(logits, labels), logits=logits)


def scored_tokens(task, split):
    """Return IDs and targets of all scored tokens of a split."""
    (whole,) = task.batches(split, batch_size=1000)
    chosen = whole.targets != IGNORE
    return whole.inputs["input_ids"][chosen], whole.targets[chosen]


@pytest.mark.parametrize("batch", [1, 5, 17, 100])
def test_only_scored_tokens_count_each_once(copying, batch):
    ids, targets = scored_tokens(copying, "test")
    assert 0 < len(targets) < 17 * copying.length
    for answer in (lambda x: x * 0 + 1, lambda x: x, lambda x: x * 7 + 3):
        model = ConstantAnswers(copying.num_classes, answer)
        right = answer(ids).remainder(copying.num_classes) == targets
        score = evaluate(model, copying, "test", batch_size=batch, device=CPU).score
        assert score.num_targets == len(targets)
        assert score.metrics["accuracy"] == int(right.sum()) / len(targets)
        rest = math.log(math.exp(20) + copying.num_classes - 1)
        assert score.loss == pytest.approx(rest - 20 * int(right.sum()) / len(targets), rel=1e-5)


def test_majority_baseline_of_scored_tokens_counts_targets(copying):
    _, targets = scored_tokens(copying, "test")
    model = ConstantAnswers(copying.num_classes, lambda x: x)
    counts = [targets.tolist().count(value) for value in range(copying.num_classes)]
    score = evaluate(model, copying, "test", batch_size=4, device=CPU).score
    assert score.majority_baseline == max(counts) / len(targets)
    assert sorted(copying.labels("test").tolist()) == sorted(targets.tolist())


def test_warm_up_needs_no_target(copying, monkeypatch):
    """It reads few examples, of which none may have one, and no score."""
    plain = copying.collate

    def unscored(*given):
        batch = plain(*given)
        return dataclasses.replace(batch, targets=torch.full_like(batch.targets, IGNORE))

    monkeypatch.setattr(copying, "collate", unscored)
    model = ConstantAnswers(copying.num_classes, lambda x: x)
    warm_up(model, copying, "test", batch_size=4, device=CPU)
    assert model.training
    with pytest.raises(DataError, match="none of the 17 examples has a target"):
        evaluate(model, copying, "test", batch_size=4, device=CPU)


def test_losses_and_accuracy_skip_unscored_tokens(copying):
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    targets = torch.tensor([[1, IGNORE, 0], [IGNORE, IGNORE, 3]])
    nll = -logits.log_softmax(-1)
    scored = ((0, 0), (0, 2), (1, 2))
    expected = torch.stack([nll[place][targets[place]] for place in scored]).mean()
    torch.testing.assert_close(label_loss(logits, targets), expected)
    correct = [[int(logits[i].argmax() == targets[i]) for i in scored if i[0] == n] for n in (0, 1)]
    rows = torch.arange(2)
    found = copying.example_statistics(copying.metrics, "test", rows, logits, targets)
    assert found["accuracy"].tolist() == [[sum(correct[0]), 2], [sum(correct[1]), 1]]
