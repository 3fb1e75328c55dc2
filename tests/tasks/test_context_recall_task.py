"""Recall in context: targets of training and evaluation, causal models, the rule, options."""

import dataclasses

import pytest
import torch
from task_calls import make_experiment, open_task, read_whole

from longspan.arena.model import model_config
from longspan.errors import OptionError
from longspan.tasks import TASKS, build
from longspan.tasks.scoring import IGNORE

FORMS = ["in_context_recall", "noisy_recall", "fuzzy_recall"]
SMALL = {"train": 40, "validation": 20, "test": 600}
every_form = pytest.mark.parametrize("name", FORMS)


@every_form
def test_training_scores_every_next_token_and_evaluation_the_stored_ones(tmp_path, name):
    task = open_task(name, tmp_path, **SMALL)
    rows = torch.arange(40).numpy()
    stored = next(task.batches("train", batch_size=40, rows=rows))
    trained = task.collate(task.dataset.splits["train"], rows, (0, 0))
    ids = trained.inputs["input_ids"]
    assert ids.equal(stored.inputs["input_ids"])
    length = task.length
    assert trained.targets[:, : length - 1].equal(ids[:, 1:length])
    assert trained.targets[:, length - 1].equal(stored.targets[:, length - 1])
    assert (trained.targets[:, length:] == IGNORE).all()
    is_scored = stored.targets != IGNORE
    assert stored.targets[is_scored].equal(trained.targets[is_scored])
    assert 0 < is_scored.sum() < (trained.targets != IGNORE).sum()


@pytest.mark.parametrize("name", [*FORMS, "duplication"])
def test_models_are_causal_whatever_the_recipe_says(name):
    task = build(name)
    experiment = make_experiment(task, "full")
    assert not experiment.config.model.is_decoder
    assert model_config(experiment.config, task).is_decoder
    with pytest.raises(OptionError, match="causal form, which linformer does not have"):
        model_config(make_experiment(task, "linformer").config, task)


def test_last_value_is_right_by_luck(tmp_path):
    """It is that of the same key with probability 1/8, or else the same value in 1/8."""
    task = open_task("in_context_recall", tmp_path, **SMALL)
    score = task.rule_scores("test")["last value"]
    assert abs(score - (1 / 8 + 7 / 8 / 8)) < 0.02
    batch = read_whole(task, "test")
    expected = []
    for tokens, targets in zip(batch.inputs["input_ids"], batch.targets, strict=True):
        last = None
        for token, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            last = token if 10 <= token < 18 else last
            if target != IGNORE:
                expected.append(last == target)
    assert score == pytest.approx(sum(expected) / len(expected), abs=1e-12)


@every_form
def test_show_brackets_the_scored_tokens(tmp_path, name):
    task = open_task(name, tmp_path, **SMALL)
    batch = read_whole(task, "test")
    for row in range(20):
        words = task.show("test", row).split()
        scored = [x for x in words if x[0] == "["]
        assert len(words) == task.length + 1
        assert len(scored) == (batch.targets[row] != IGNORE).sum()
        assert all(x[1] == "v" for x in scored)


def test_no_training_accuracy_is_reported():
    assert all(TASKS[name]().training_metrics == () for name in FORMS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_size": 9}, "key_size=9 is above keys=8"),
        ({"value_size": 9}, "value_size=9 is above values=8"),
        ({"noise_share": 1.0}, "expected 0 to less than 1"),
        ({"noise_share": -0.1}, "expected 0 to less than 1"),
        ({"noise_share": 0.1}, "needs tokens of noise; set noise=16"),
        ({"length": 2}, "too short for a pair and its key again; use 3 or more"),
        ({"values": 70_000}, "lower keys, values or noise"),
        # The target of the last id would be 0, which is not scored.
        ({"values": 65_526}, "65537 token ids; expected at most 65536, lower keys, values"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(change, message):
    with pytest.raises(OptionError, match=message):
        build("in_context_recall", change)


def test_shortest_example_is_a_pair_and_its_key(tmp_path):
    options = {**SMALL, "length": 11, "key_size": 3, "value_size": 3}
    task = open_task("fuzzy_recall", tmp_path, **options)
    assert dataclasses.asdict(task.options)["length"] == 11
    assert (read_whole(task, "test").targets != IGNORE).any(1).all()
