"""The checkpoint that is tested is chosen on validation; test is looked at once, at the end."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny
from longspan.arena import make_model
from longspan.results import Score
from longspan.training import Callback, fit, loop
from longspan.training.evaluate import Evaluation, evaluate

# the learning rate is high enough for validation to go up and down
RESTLESS = {"training.steps": 40, "training.learning_rate": 0.03, "training.evaluate_every": 2}


@pytest.fixture
def restless(listops, tmp_path):
    """Train with some selection: the outcome, the model, and its weights at each evaluation."""

    def trained(selection):
        made = tiny.experiment(changes={**RESTLESS, "training.selection": selection})
        model = make_model(made, listops)
        callback = Recorder(model)
        options = {"seed": 0, "folder": tmp_path, "device": "cpu", "callback": callback}
        return fit(model, listops, made.config.training, **options), model, callback.kept

    return trained


class Recorder(Callback):
    """A callback that keeps the weights of each evaluation."""

    def __init__(self, model):
        self.model, self.kept, self.steps = model, {}, 0

    def on_step(self, step, loss, tokens, seconds):
        self.steps = step

    def on_evaluate(self, point):
        self.kept[point.step] = {k: x.clone() for k, x in self.model.state_dict().items()}


def test_the_best_on_validation_is_what_is_tested(restless, listops):
    outcome, model, kept = restless("best validation")
    best = max(outcome.curve, key=lambda p: (p.validation_metrics["accuracy"], -p.validation_loss))
    assert best.step < 40, "choose another learning rate: the last is the best"
    assert outcome.best_step == best.step
    assert outcome.scores["validation"].metrics["accuracy"] == best.validation_metrics["accuracy"]
    saved = load_file(outcome.model / "model.safetensors")
    torch.testing.assert_close(saved, kept[best.step], rtol=0, atol=0)
    assert outcome.scores["test"] == rescored(model, listops, kept[best.step])
    assert outcome.scores["test"] != rescored(model, listops, kept[40])


def test_the_last_is_what_is_tested_when_the_recipe_says_so(restless, listops):
    outcome, model, kept = restless("last")
    assert outcome.best_step == 40
    assert (
        outcome.scores["validation"].metrics["accuracy"]
        == outcome.curve[-1].validation_metrics["accuracy"]
    )
    assert outcome.scores["test"] == rescored(model, listops, kept[40])


def rescored(model, task, state):
    model.load_state_dict(state)
    return evaluate(model, task, "test", batch_size=16, device=torch.device("cpu")).score


def test_of_equal_accuracies_the_lower_loss_is_best_and_of_equal_scores_the_earlier(
    listops, tmp_path, monkeypatch
):
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
    made = tiny.experiment()
    model = make_model(made, listops)
    outcome = fit(model, listops, made.config.training, seed=0, folder=tmp_path, device="cpu")
    assert outcome.best_step == 8


def test_test_is_read_once_after_the_last_step(listops, tmp_path, monkeypatch):
    made, read = tiny.experiment(), []
    model = make_model(made, listops)
    callback = Recorder(model)

    def spied(function):
        def spy(split, **options):
            read.append((split, callback.steps))
            return function(split, **options)

        return spy

    for name in ("batches", "labels"):
        monkeypatch.setattr(listops, name, spied(getattr(listops, name)))
    fit(
        model,
        listops,
        made.config.training,
        seed=0,
        folder=tmp_path,
        device="cpu",
        callback=callback,
    )
    assert {step for split, step in read if split == "test"} == {12}
    assert {step for split, step in read if split == "validation"} == {4, 8, 12}
