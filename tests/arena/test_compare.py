"""Comparison of protocols."""

import dataclasses
import functools

import pytest

from longspan.arena import PROTOCOLS, get
from longspan.arena.protocols import Choice
from longspan.arena.protocols.compare import compare, recipe_values, row_values
from longspan.arena.protocols.rows import NamedRow
from longspan.attention import MECHANISMS
from longspan.files import to_json_types


def differences_by_field(a, b, **more):
    return {d.field: d for d in compare(get(a), get(b), **more)}


@functools.cache
def values_of(name, task):
    """Return every value of a task of a protocol, rows included."""
    return recipe_values(get(name), task, MECHANISMS) | row_values(get(name), task, MECHANISMS)


def _swapped(x):
    sides = {"a": x.b, "b": x.a, "choices_a": x.choices_b, "choices_b": x.choices_a}
    return dataclasses.replace(x, **sides)


@pytest.mark.parametrize("a", PROTOCOLS)
def test_comparison_is_symmetric_and_equals_value_by_value_comparison(a):
    """Compare with an independent loop over all values of all shared tasks."""
    for b in (x for x in PROTOCOLS if x > a):
        there, back = compare(get(a), get(b)), compare(get(b), get(a))
        assert [_swapped(difference) for difference in back] == there, b
        expected = {(task, "covered") for task in {*get(a).tasks} ^ {*get(b).tasks}}
        for task in {*get(a).tasks} & {*get(b).tasks}:
            one, two = values_of(a, task), values_of(b, task)
            expected |= {(task, f) for f in one | two if one.get(f) != two.get(f)}
        found = [(task, d.field) for d in there for task in d.tasks]
        assert len(found) == len(set(found)), b
        assert set(found) == expected, b


def test_added_rows_and_seeds_are_compared():
    quick = get("quick")
    task = quick.tasks[0]
    added = NamedRow(
        name="wider", tasks=(task,), changes={"mechanism.window": 9}, source="", mechanism="local"
    )
    changed = dataclasses.replace(
        quick, named_rows=(*quick.named_rows, added), rows=("full", "wider"), seeds=(0, 7)
    )
    found = {(x.field, x.tasks): (x.a, x.b) for x in compare(quick, changed)}
    assert found["row.wider", (task,)] == (None, {"variant": "local", "mechanism.window": 9})
    assert found["table.rows", quick.tasks][1] == ["full", "wider"]
    assert found["table.seeds", quick.tasks][1] == [0, 7]
    assert len(found) == 3
    moved = dataclasses.replace(
        changed,
        named_rows=(*quick.named_rows, dataclasses.replace(added, changes={"mechanism.window": 8})),
    )
    (one,) = compare(changed, moved)
    assert (one.field, one.b["mechanism.window"]) == ("row.wider", 8)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_recipe_values_equal_experiment_configuration(name):
    for task in get(name).tasks:
        config = get(name).experiment(task, "nystrom", 0).config
        flat = recipe_values(get(name), task, ["nystrom"])
        for part in ("training", "model"):
            values = dataclasses.asdict(getattr(config, part))
            values.pop("stages", None)  # see `test_stages_are_compared_field_by_field`
            named = {f"{part}.{k}": v for k, v in values.items()}
            assert to_json_types(named).items() <= flat.items()
        assert {f"task.{k}" for k in config.task.options} <= set(flat)
        assert flat["mechanism.nystrom.landmarks"] == config.mechanism.options["landmarks"]
        assert not [field for field in flat if field.startswith("mechanism.local")]


def test_stages_are_compared_field_by_field():
    flat = recipe_values(get("long-short-char"), "text8", ())
    assert "training.stages" not in flat
    assert (flat["stage.1.steps"], flat["stage.2.task.length"]) == (430_000, 4_096)
    assert [flat[f"stage.{n}.keep_optimizer"] for n in (1, 2, 3)] == [False] * 3
    found = differences_by_field("long-short-char", "longformer-char", tasks=["text8"])
    rates = found["stage.1.training.learning_rate"]
    assert (rates.a, rates.b) == (5e-4, 2.5e-4)
    assert (found["stage.5.steps"].a, found["stage.5.steps"].b) == (None, 5_000)
    assert "stage.3.steps" not in found


def test_difference_has_choices_of_both_protocols():
    rate = differences_by_field("lra-paper", "lra-repo", tasks=["retrieval"])[
        "training.learning_rate"
    ]
    assert (rate.tasks, rate.a, rate.b) == (("retrieval",), 0.5, 0.05)
    (one,), (two,) = rate.choices_a, rate.choices_b
    assert isinstance(one, Choice)
    assert one.instead[0][0] == rate.b
    assert two.instead[0][0] == rate.a


def test_differences_of_several_tasks_are_merged_and_keep_each_choice_once():
    found = differences_by_field("lra-paper", "lra-small", tasks=["image", "pathfinder", "listops"])
    decay, position = found["training.weight_decay"], found["model.position"]
    assert decay.tasks == ("listops",)
    assert position.tasks == ("pathfinder", "listops")
    assert [choice.tasks for choice in position.choices_a] == [("pathfinder",), ("listops",)]
    landmarks = differences_by_field("lra-small", "xiong")["mechanism.nystrom.landmarks"]
    assert landmarks.tasks == ("listops", "retrieval", "text")
    assert len(landmarks.choices_a) == len(landmarks.choices_b) == 1
    merged = compare(get("lra-small"), get("lra-repo"), tasks=["text", "listops"])
    betas = [(d.tasks, d.a, d.b) for d in merged if d.field == "training.adam_betas"]
    assert betas == [(("text", "listops"), [0.9, 0.999], [0.9, 0.98])]
    assert not [d for d in merged if d.field == "training.warmup_steps"]


def test_task_missing_from_one_protocol_is_a_difference():
    covered = differences_by_field("xiong", "lra-small")["covered"]
    assert (covered.tasks, covered.a, covered.b) == (("image", "pathfinder"), False, True)
    only = compare(get("xiong"), get("lra-small"), tasks=["image"])
    assert [d.field for d in only] == ["covered"]


def test_differences_follow_configuration_order():
    found = [d.field.partition(".")[0] for d in compare(get("lra-small"), get("xiong"))]
    order = ("covered", "task", "model", "training", "budget", "mechanism", "grid")
    assert found == sorted(found, key=order.index)


def test_single_changed_value_is_single_difference():
    smoke = get("smoke")

    def slower(task):
        recipe = smoke.recipe(task)
        training = dataclasses.replace(recipe.training, learning_rate=5e-4)
        return recipe._replace(training=training)

    (found,) = compare(smoke, dataclasses.replace(smoke, recipe=slower))
    assert (found.field, found.a, found.b) == ("training.learning_rate", 1e-3, 5e-4)
    assert found.tasks == tuple(sorted(smoke.tasks))
