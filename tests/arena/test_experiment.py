"""Experiments: overrides by dotted name, validation, hash and name."""

import dataclasses

import pytest

import tiny
from longspan.arena import Experiment, get, override, replace_budget, run
from longspan.arena.experiment import hash_config
from longspan.config import Budget
from longspan.errors import OptionError, UnknownNameError
from longspan.results import load_result


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


def test_overrides_are_recorded(listops, paths):
    experiment = tiny.experiment()
    run(experiment, listops, paths)
    record = load_result(paths.record_file(experiment))
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
