"""What differs between two recipes is told, all of it, once, and the same from both sides."""

import dataclasses
import itertools

import pytest

from longspan.arena import PROTOCOLS, get
from longspan.arena.protocols import Choice
from longspan.arena.protocols.compare import compare, settings
from longspan.attention import MECHANISMS
from longspan.errors import UnknownNameError

PAIRS = list(itertools.combinations(sorted(PROTOCOLS), 2))


def fields(a, b, **more):
    return {d.field: d for d in compare(get(a), get(b), **more)}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_does_not_differ_from_itself(name):
    assert compare(get(name), get(name)) == []


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_other_way_round_says_the_same(a, b):
    there, back = compare(get(a), get(b)), compare(get(b), get(a))
    assert [difference.swapped() for difference in back] == there


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_everything_that_differs_is_told_and_nothing_else(a, b):
    """Against a comparison by hand of every value of every shared task."""
    expected = set()
    for task in {*get(a).tasks} & {*get(b).tasks}:
        one, two = (settings(get(name), task, MECHANISMS) for name in (a, b))
        expected |= {(task, f) for f in one | two if one.get(f) != two.get(f)}
    expected |= {(task, "covered") for task in {*get(a).tasks} ^ {*get(b).tasks}}
    told = [(task, d.field) for d in compare(get(a), get(b)) for task in d.tasks]
    assert len(told) == len(set(told))
    assert set(told) == expected


@pytest.mark.parametrize("name", PROTOCOLS)
def test_settings_are_those_of_the_experiment(name):
    for task in get(name).tasks:
        config = get(name).experiment(task, "nystrom", 0).config()
        flat = settings(get(name), task, ["nystrom"])
        assert {f"train.{k}": v for k, v in config["train"].items()}.items() <= flat.items()
        assert {f"model.{k}": v for k, v in config["model"].items()}.items() <= flat.items()
        assert {f"task.{k}" for k in config["task"]["options"]} <= set(flat)
        assert flat["mechanism.nystrom.landmarks"] == config["options"]["landmarks"]
        assert not [field for field in flat if field.startswith("mechanism.local")]


def test_values_and_choices_stand_beside_each_other():
    rate = fields("lra-paper", "lra-repo", tasks=["retrieval"])["training.learning_rate"]
    assert (rate.tasks, rate.a, rate.b) == (("retrieval",), 0.5, 0.05)
    (one,), (two,) = rate.choices_a, rate.choices_b
    assert isinstance(one, Choice)
    assert one.instead[0][0] == rate.b
    assert two.instead[0][0] == rate.a


def test_choices_of_joined_tasks_are_all_told_and_once():
    found = fields("lra-paper", "lra-small", tasks=["image", "pathfinder", "listops"])
    decay, position = found["training.weight_decay"], found["model.position"]
    assert decay.tasks == ("listops",)
    assert position.tasks == ("pathfinder", "listops")
    assert [choice.tasks for choice in position.choices_a] == [("pathfinder",), ("listops",)]
    landmarks = fields("lra-small", "xiong")["mechanism.nystrom.landmarks"]
    assert landmarks.tasks == ("listops", "retrieval", "text")
    assert len(landmarks.choices_a) == len(landmarks.choices_b) == 1


def test_equal_differences_of_several_tasks_are_one():
    found = compare(get("lra-small"), get("lra-repo"), tasks=["text", "listops"])
    betas = [d for d in found if d.field == "training.adam_betas"]
    assert [(d.tasks, d.a, d.b) for d in betas] == [
        (("text", "listops"), (0.9, 0.999), (0.9, 0.98))
    ]
    steps = [(d.tasks, d.a, d.b) for d in found if d.field == "training.warmup_steps"]
    assert steps == []


def test_tasks_and_mechanisms_can_be_picked():
    found = fields("xiong", "lra-small", tasks=["listops"], mechanisms=["blockwise"])
    assert {d.tasks for d in found.values()} == {("listops",)}
    options = {f: (d.a, d.b) for f, d in found.items() if f.startswith("mechanism.")}
    assert options == {"mechanism.blockwise.block": (8, 16)}
    assert (found["training.steps"].a, found["training.steps"].b) == (10_000, 5_000)
    assert found["grid.seed"].b is None


def test_a_task_of_one_protocol_alone_is_told():
    covered = fields("xiong", "lra-small")["covered"]
    assert (covered.tasks, covered.a, covered.b) == (("image", "pathfinder"), False, True)
    only = compare(get("xiong"), get("lra-small"), tasks=["image"])
    assert [d.field for d in only] == ["covered"]


def test_fields_come_in_the_order_of_the_configuration():
    found = [d.field.partition(".")[0] for d in compare(get("lra-small"), get("xiong"))]
    order = ("covered", "task", "model", "train", "options", "grid")
    assert found == sorted(found, key=order.index)


def test_one_changed_value_is_one_difference():
    quick = get("quick")

    def slower(task):
        spec, model, train = quick.parts(task)
        return spec, model, dataclasses.replace(train, learning_rate=5e-4)

    (found,) = compare(quick, dataclasses.replace(quick, parts=slower))
    assert (found.field, found.a, found.b) == ("training.learning_rate", 1e-3, 5e-4)
    assert found.tasks == tuple(sorted(quick.tasks))


def test_unknown_names_are_refused_with_near_ones():
    quick, small = get("quick"), get("lra-small")
    with pytest.raises(UnknownNameError, match="no task of 'quick' or 'lra-small' called 'txt'"):
        compare(quick, small, tasks=["txt"])
    with pytest.raises(UnknownNameError, match="no mechanism called 'locl'; did you mean local"):
        compare(quick, small, mechanisms=["locl"])
