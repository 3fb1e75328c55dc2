"""Stages of a configuration: their steps, their fields, and what is refused."""

import dataclasses

import pytest

import tiny
from longspan.arena.experiment import hash_config, override
from longspan.config import StageConfig, flatten, replace_fields
from longspan.config.stages import stage_ends
from longspan.errors import OptionError, UnknownNameError


def config(*stages, **changes):
    made = tiny.experiment(changes=changes).config
    return replace_fields(made, {"training.stages": stages})


@pytest.mark.parametrize(
    ("parts", "steps", "expected"),
    [
        ((430, 50, 50, 35, 5), 570, [430, 480, 530, 565, 570]),
        ((1, 1), 10, [5, 10]),
        ((1, 999), 10, [1, 10]),
        ((999, 1, 1), 5, [3, 4, 5]),
        ((1, 2), 2, [1, 2]),
    ],
)
def test_steps_are_shared_in_proportion(parts, steps, expected):
    assert stage_ends(tuple(StageConfig(steps=x) for x in parts), steps) == expected


def test_stages_have_their_fields_and_the_run_those_of_the_last_one():
    stages = (
        StageConfig(steps=1, changes={"mechanism.window": 3, "training.learning_rate": 1e-4}),
        StageConfig(steps=1, changes={"training.batch_size": 2}),
    )
    run = config(*stages)
    first, last = run.stages()
    assert first.mechanism.options["window"] == 3
    assert first.training.learning_rate == 1e-4
    assert last.training.batch_size == 2
    assert (last.task, last.mechanism) == (run.task, run.mechanism)
    assert first.training.steps + last.training.steps == run.training.steps
    assert hash_config(run) != hash_config(config())


def test_a_run_without_stages_has_one_and_the_hash_it_had():
    run = config()
    assert run.stages() == [run]
    record = dataclasses.asdict(run)
    assert record["training"]["stages"] == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model.hidden_size": 8}, "only dropout can change"),
        ({"training.steps": 8}, "set it for the whole run"),
        ({"window": 8}, "task.OPTION"),
        ({"budget.limit": 8}, "task.OPTION"),
        ({"start.task": "listops"}, "task.OPTION"),
    ],
)
def test_fields_of_the_whole_run_are_refused(changes, reason):
    with pytest.raises(OptionError, match=reason):
        StageConfig(steps=1, changes=changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule_over", "run"),
        ("selection", "last"),
        ("precision", "bf16"),
        ("gradient_checkpointing", True),
        ("stop_at", 0.5),
        ("patience", 3),
        ("train_eval_examples", 8),
        ("word_vectors", "lsa"),
    ],
)
def test_fields_that_a_stage_would_ignore_are_refused(field, value):
    """The last two did nothing in stages but the last, or but the first."""
    reason = f"a stage changes no training.{field}; set it for the whole run"
    with pytest.raises(OptionError, match=reason):
        StageConfig(steps=1, changes={f"training.{field}": value})


def test_the_last_stage_has_the_options_of_the_run():
    with pytest.raises(OptionError, match=r"the last stage has .* omit mechanism.window"):
        config(StageConfig(steps=1), StageConfig(steps=1, changes={"mechanism.window": 3}))


def test_unknown_fields_are_refused():
    with pytest.raises(UnknownNameError, match="windows"):
        config(StageConfig(steps=1, changes={"mechanism.windows": 3}), StageConfig(steps=1))


def test_more_stages_than_steps_are_refused():
    with pytest.raises(OptionError, match="need as many steps"):
        config(*[StageConfig(steps=1)] * 30, **{"training.steps": 12})


def test_stages_are_read_from_tables_as_records_have_them():
    run = config(StageConfig(steps=1, changes={"mechanism.window": 3}), StageConfig(steps=2))
    tables = flatten(run)["training.stages"]
    assert tables[0] == {"steps": 1, "changes": {"mechanism.window": 3}, "keep_optimizer": True}
    assert replace_fields(config(), {"training.stages": tables}) == run


def test_malformed_tables_are_refused_with_their_place():
    with pytest.raises(OptionError, match=r"stage changes no model.hidden_size"):
        config({"steps": 1, "changes": {"model.hidden_size": 8}})
    with pytest.raises(OptionError, match="steps"):
        config({"changes": {}})


def test_an_option_of_one_mechanism_is_for_its_runs_alone():
    stages = (StageConfig(steps=1, changes={"local.window": 3}), StageConfig(steps=1))
    assert config(*stages).stages()[0].mechanism.options["window"] == 3
    full = tiny.experiment("full").config
    first, _ = replace_fields(full, {"training.stages": stages}).stages()
    assert first.mechanism == full.mechanism


@pytest.mark.parametrize(
    ("name", "reason"),
    [("locl.window", "no mechanism called 'locl'"), ("local.windows", "windows")],
)
def test_options_of_unknown_mechanisms_are_refused(name, reason):
    stages = (StageConfig(steps=1, changes={name: 3}), StageConfig(steps=1))
    with pytest.raises(UnknownNameError, match=reason):
        override(tiny.experiment("full"), {"training.stages": stages})


def test_options_of_evaluations_are_hashed_where_a_stage_differs_from_them():
    """Options that equal those of the last stage may differ from those of an earlier one."""
    window = config().mechanism.options["window"]
    changes = {"mechanism.window": window + 1}
    staged = config(StageConfig(steps=1, changes=changes), StageConfig(steps=1))
    plain = [replace_fields(x, {"evaluation.window": window}) for x in (config(), staged)]
    assert hash_config(plain[0]) == hash_config(config())
    assert hash_config(plain[1]) != hash_config(staged)
    assert plain[1].stages()[0].evaluation_changes == {"window": window}
