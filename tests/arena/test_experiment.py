"""Experiments: overrides by dotted name, validation, hash and name."""

import dataclasses
import re

import pytest

import tiny
from longspan.arena import Experiment, find_refusal, get, override, replace_budget, run
from longspan.arena.experiment import hash_config
from longspan.config import Budget
from longspan.errors import OptionError, UnknownNameError
from longspan.results import load_result

REJECTED = {
    "steps": (1, OptionError, "'steps' names no field; use PART.FIELD, such as training.steps"),
    "trianing.steps": (1, UnknownNameError, "called 'trianing'; did you mean training"),
    "training.step": (1, UnknownNameError, "no field of training called 'step'; did you mean ste"),
    "model.hidden": (1, UnknownNameError, "no field of model called 'hidden'; did you mean hidde"),
    "mechanism.windw": (1, UnknownNameError, "no option of mechanism 'local' called 'windw'; did"),
    "task.trian": (1, UnknownNameError, "no option of task 'listops' called 'trian'; did you mean"),
    "training.steps": ("many", OptionError, "steps should be a valid integer, got 'many'"),
    "training.batch_size": (2.5, OptionError, "batch_size should be a valid integer, .*got 2.5"),
    "training.max_grad_norm": ("x", OptionError, "max_grad_norm should be a valid number, got 'x'"),
    "training.learning_rate": (float("inf"), OptionError, "learning_rate should be a finite"),
    "model.hidden_size": ("x", OptionError, "hidden_size should be a valid integer, got 'x'"),
    "model.norm": (3, OptionError, "norm should be a valid string, got 3"),
    "model.hidden_dropout_prob": (None, OptionError, "hidden_dropout_prob should be a valid"),
    "task.train": (0, OptionError, "train should be greater than 0, got 0"),
    "task.max_depth": (1, OptionError, "max_depth should be greater than or equal to 2, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_unknown_fields_and_invalid_values_are_rejected(name):
    value, kind, message = REJECTED[name]
    with pytest.raises(kind, match=message):
        override(tiny.experiment(), {name: value})


MISFITS = [
    ("model.norm", "pr", "no norm called 'pr'; did you mean pre"),
    ("model.position", "x", "no position called 'x'; there are: auto, axial, learned"),
    ("model.num_attention_heads", 3, "hidden_size=16 must be a multiple of num_attention_heads=3"),
    ("model.num_hidden_layers", -1, "num_hidden_layers must be at least 0, got -1"),
    ("model.hidden_dropout_prob", 1.5, r"hidden_dropout_prob must be in \[0, 1\), got 1.5"),
    ("mechanism.window", -1, "window must be an integer >= 0, got -1"),
    ("mechanism.window", "wide", "window must be .*, got 'wide'"),
    ("mechanism.window", 1.5, "window must be .*, got 1.5"),
    ("mechanism.window", None, "window must be .*, got None"),
]


@pytest.mark.parametrize(("name", "value", "message"), MISFITS)
def test_find_refusal_detects_invalid_model_before_run(name, value, message):
    reason = find_refusal(override(tiny.experiment(), {name: value}))
    assert reason is not None
    assert re.search(message, reason), reason


def test_override_changes_given_fields_only():
    experiment = get("smoke").experiment("listops", "local", 3)
    changes = {"training.steps": 7, "mechanism.window": 8, "task.test": 9}
    changed = override(experiment, changes)
    config = changed.config
    assert config.training.steps == 7
    assert config.mechanism.options["window"] == 8
    assert config.task.options["test"] == 9
    assert (changed.seed, config.model, changed.protocol) == (3, experiment.config.model, "smoke")
    assert changed.overrides == changes


def test_equal_value_is_not_an_override():
    experiment = get("smoke").experiment("listops", "local", 0)
    same = override(
        experiment,
        {
            "training.steps": experiment.config.training.steps,
            "mechanism.window": experiment.config.mechanism.options["window"],
            "task.seed": 0,
            "training.max_grad_norm": 1,
        },
    )
    assert same.overrides == {}
    assert same.hash == experiment.hash


def test_integer_and_equal_float_have_same_hash():
    for name in ("training.learning_rate", "training.max_grad_norm", "mechanism.temperature"):
        experiments = [tiny.experiment("sinkhorn", changes={name: value}) for value in (1, 1.0)]
        assert len({x.hash for x in experiments}) == 1
    # With null in the recipe, no float determines the type of the integer.
    bare = tiny.experiment(changes={"training.max_grad_norm": None})
    one, real = (override(bare, {"training.max_grad_norm": value}) for value in (1, 1.0))
    assert one.hash == real.hash


def test_overrides_are_recorded(listops, tiny_cache, tmp_path):
    experiment = tiny.experiment()
    run(experiment, listops, tiny.paths(tmp_path, tiny_cache))
    record = load_result(tiny.paths(tmp_path, tiny_cache).record_file(experiment))
    assert record.overrides == experiment.overrides
    assert record.overrides["training.steps"] == 12
    assert record.config.training.steps == record.steps == 12


def test_different_budget_is_an_override():
    plain = tiny.experiment()
    assert replace_budget(plain, Budget()) is plain
    budgeted = replace_budget(plain, Budget(kind="flops", limit=1e9))
    assert budgeted.config.budget == Budget(kind="flops", limit=1e9)
    assert budgeted.hash != plain.hash
    assert budgeted.overrides == {**plain.overrides, "budget": "flops=1000000000"}
    assert replace_budget(budgeted, Budget(kind="flops", limit=10**9)) is budgeted


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (-1, "seed must be at least 0, got -1"),
        (1.0, "seed should be a valid integer, got 1.0"),
        (True, "seed should be a valid integer, got True"),
        ("0", "seed should be a valid integer, got '0'"),
    ],
)
def test_invalid_seed_is_rejected(seed, message):
    experiment = tiny.experiment()
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(experiment, seed=seed)


def test_unregistered_names_are_rejected():
    config = tiny.experiment().config
    for part, field, value, message in (
        ("task", "name", "listop", "no task called 'listop'; did you mean listops"),
        ("mechanism", "name", "locl", "no mechanism called 'locl'; did you mean local"),
        ("mechanism", "options", {"windw": 3}, "no option of 'local' called 'windw'"),
        ("task", "options", {"trian": 3}, "no option of task 'listops' called 'trian'"),
    ):
        changed = dataclasses.replace(getattr(config, part), **{field: value})
        with pytest.raises(UnknownNameError, match=message):
            Experiment(
                protocol="smoke", config=dataclasses.replace(config, **{part: changed}), seed=0
            )


def test_experiment_name_has_mechanism_hash_and_seed():
    experiment = tiny.experiment(seed=5)
    assert (experiment.task, experiment.mechanism) == ("listops", "local")
    assert experiment.name == f"local-{experiment.hash}-5"
    assert experiment.hash == hash_config(experiment.config)
