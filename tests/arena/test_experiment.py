"""Fields of an experiment are changed by dotted name; changes are recorded as overrides."""

import dataclasses
import re

import pytest

import tiny
from longspan.arena import Experiment, get, misfit, override, replace_budget, run
from longspan.config import Budget
from longspan.errors import OptionError, UnknownNameError
from longspan.results import load_result

REFUSED = {
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


@pytest.mark.parametrize("name", REFUSED)
def test_other_fields_and_values_are_refused(name):
    value, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        override(tiny.experiment(), {name: value})


MISFITS = [
    ("model.norm", "pr", "no norm called 'pr'; did you mean pre"),
    ("model.position", "x", "no position called 'x'; there are: learned"),
    ("model.num_attention_heads", 3, "hidden_size=16 must be a multiple of num_attention_heads=3"),
    ("model.num_hidden_layers", 0, "num_hidden_layers must be >= 1, got 0"),
    ("model.hidden_dropout_prob", 1.5, r"hidden_dropout_prob must be in \[0, 1\), got 1.5"),
    ("mechanism.window", -1, "window requires sizes >= 0 .*-1"),
    ("mechanism.window", "wide", "window must be .*, got 'wide'"),
    ("mechanism.window", 1.5, "window must be .*, got 1.5"),
    ("mechanism.window", None, "window must be .*, got None"),
]


@pytest.mark.parametrize(("name", "value", "message"), MISFITS)
def test_a_model_that_cannot_be_built_is_detected_before_the_run(name, value, message):
    reason = misfit(override(tiny.experiment(), {name: value}))
    assert reason is not None
    assert re.search(message, reason), reason


def test_several_fields_change_together_and_the_rest_stays():
    made = get("quick").experiment("listops", "local", 3)
    changes = {"training.steps": 7, "mechanism.window": 8, "task.test": 9}
    changed = override(made, changes)
    config = changed.config
    assert config.training.steps == 7
    assert config.mechanism.options["window"] == 8
    assert config.task.options["test"] == 9
    assert (changed.seed, config.model, changed.protocol) == (3, made.config.model, "quick")
    assert changed.overrides == changes


def test_an_equal_value_is_no_override():
    made = get("quick").experiment("listops", "local", 0)
    same = override(
        made,
        {
            "training.steps": made.config.training.steps,
            "mechanism.window": made.config.mechanism.options["window"],
            "task.seed": 0,
            "training.max_grad_norm": 1,
        },
    )
    assert same.overrides == {}
    assert same.hash == made.hash


def test_an_integer_and_an_equal_float_are_one_experiment():
    for name in ("training.learning_rate", "training.max_grad_norm", "mechanism.temperature"):
        made = [tiny.experiment("sinkhorn", changes={name: value}) for value in (1, 1.0)]
        assert len({x.hash for x in made}) == 1
    # The recipe has no norm to convert the integer by.
    bare = tiny.experiment(changes={"training.max_grad_norm": None})
    one, real = (override(bare, {"training.max_grad_norm": value}) for value in (1, 1.0))
    assert one.hash == real.hash


def test_overrides_are_recorded(listops, tiny_cache, tmp_path):
    made = tiny.experiment()
    run(made, listops, tiny.paths(tmp_path, tiny_cache))
    record = load_result(tiny.paths(tmp_path, tiny_cache).record_file(made))
    assert record.overrides == made.overrides
    assert record.overrides["training.steps"] == 12
    assert record.config.training.steps == record.steps == 12


def test_another_budget_is_an_override():
    plain = tiny.experiment()
    assert replace_budget(plain, Budget()) is plain
    held = replace_budget(plain, Budget(kind="flops", limit=1e9))
    assert held.config.budget == Budget(kind="flops", limit=1e9)
    assert held.hash != plain.hash
    assert held.overrides == {**plain.overrides, "budget": "flops=1000000000"}
    assert replace_budget(held, Budget(kind="flops", limit=10**9)) is held


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (-1, "seed must be at least 0, got -1"),
        (1.0, "seed should be a valid integer, got 1.0"),
        (True, "seed should be a valid integer, got True"),
        ("0", "seed should be a valid integer, got '0'"),
    ],
)
def test_a_seed_is_an_integer_from_0(seed, message):
    made = tiny.experiment()
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(made, seed=seed)


def test_names_are_checked_against_the_registries():
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
                protocol="quick", config=dataclasses.replace(config, **{part: changed}), seed=0
            )


def test_the_name_of_an_experiment():
    made = tiny.experiment(seed=5)
    assert (made.task, made.mechanism) == ("listops", "local")
    assert made.name == f"local-{made.hash}-5"
    assert made.hash == made.config.hash
