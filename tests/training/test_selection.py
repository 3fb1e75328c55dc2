"""Selection of the checkpoint on validation, and the single evaluation on test."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny
from exactness import assert_bitwise_equal
from longspan.arena import make_model
from longspan.results import Score
from longspan.training import Callback, loop
from longspan.training.evaluate import Evaluation, evaluate

# The learning rate is high enough for the validation score to fluctuate.
FLUCTUATING = {"training.steps": 40, "training.learning_rate": 0.03, "training.evaluate_every": 2}


@pytest.fixture
def train_with_selection(listops, tmp_path):
    """Function that trains with a selection; returns outcome, model and weights by step."""

    def trained(selection):
        experiment = tiny.experiment(changes={**FLUCTUATING, "training.selection": selection})
        model = make_model(experiment, listops)
        callback = WeightRecorder(model)
        outcome = tiny.train(experiment, listops, tmp_path, callback, model=model)
        return outcome, model, callback.kept

    return trained


class WeightRecorder(Callback):
    """Callback that records the weights at each evaluation."""

    def __init__(self, model):
        self.model, self.kept, self.steps = model, {}, 0

    def on_step(self, step, loss, tokens, seconds):
        self.steps = step

    def on_evaluate(self, point):
        self.kept[point.step] = {k: x.clone() for k, x in self.model.state_dict().items()}


def test_best_validation_checkpoint_is_scored_on_test(train_with_selection, listops):
    outcome, model, weights = train_with_selection("best validation")
    best = max(outcome.curve, key=lambda p: (p.validation_metrics["accuracy"], -p.validation_loss))
    assert best.step < 40, "choose another learning rate: the last is the best"
    assert outcome.best_step == best.step
    assert outcome.scores["validation"].metrics["accuracy"] == best.validation_metrics["accuracy"]
    saved = load_file(outcome.model / "model.safetensors")
    assert_bitwise_equal(saved, weights[best.step], "copy")
    assert outcome.scores["test"] == evaluate_weights(model, listops, weights[best.step])
    assert outcome.scores["test"] != evaluate_weights(model, listops, weights[40])


def test_last_checkpoint_is_scored_on_test_if_selected(train_with_selection, listops):
    outcome, model, weights = train_with_selection("last")
    assert outcome.best_step == 40
    assert (
        outcome.scores["validation"].metrics["accuracy"]
        == outcome.curve[-1].validation_metrics["accuracy"]
    )
    assert outcome.scores["test"] == evaluate_weights(model, listops, weights[40])


def evaluate_weights(model, task, state):
    model.load_state_dict(state)
    return evaluate(model, task, "test", batch_size=16, device=torch.device("cpu")).score


def test_selection_breaks_ties_by_loss_then_by_earlier_step(listops, tmp_path, monkeypatch):
    losses = iter([2.0, 1.5, 1.5, 0.0, 0.0])

    def score(*_, **__):
        score = Score(
            metrics={"accuracy": 0.5},
            loss=next(losses),
            num_examples=1,
            num_targets=1,
            majority_baseline=0.5,
        )
        return Evaluation(score=score, statistics=np.ones((1, 2)), num_targets=np.ones(1, int))

    monkeypatch.setattr(loop, "evaluate", score)
    assert tiny.train(tiny.experiment(), listops, tmp_path).best_step == 8


def test_test_split_is_read_only_after_last_step(listops, tmp_path, monkeypatch):
    experiment, read = tiny.experiment(), []
    model = make_model(experiment, listops)
    callback = WeightRecorder(model)

    def record_reads(function):
        def spy(split, *rows, **options):
            read.append((split, callback.steps))
            return function(split, *rows, **options)

        return spy

    for name in ("batches", "labels"):
        monkeypatch.setattr(listops, name, record_reads(getattr(listops, name)))
    tiny.train(experiment, listops, tmp_path, callback, model=model)
    assert {step for split, step in read if split == "test"} == {12}
    assert {step for split, step in read if split == "validation"} == {4, 8, 12}
