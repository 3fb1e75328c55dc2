"""Every protocol can be run with every mechanism, and its hash names all that decides a run."""

import dataclasses
import json
import subprocess
import sys

import pytest

import tiny
from longspan.arena import (
    PROTOCOLS,
    Budget,
    Experiment,
    ModelConfig,
    get,
    grid,
    make_model,
    override,
    search,
    unfit,
)
from longspan.arena.protocols import register
from longspan.attention import MECHANISMS, options_of
from longspan.errors import OptionError, UnknownNameError
from longspan.tasks import TASKS
from longspan.training import TrainingConfig

CELLS = [(p.name, task, m) for p in PROTOCOLS.values() for task in p.tasks for m in MECHANISMS]


@pytest.mark.parametrize(("protocol", "task", "mechanism"), CELLS)
def test_every_cell_is_an_experiment_whose_model_can_be_built(protocol, task, mechanism):
    made = get(protocol).experiment(task, mechanism, 7)
    assert (made.protocol, made.task, made.mechanism, made.seed) == (
        protocol,
        task,
        mechanism,
        7,
    )
    assert unfit(made) is None
    config = json.loads(json.dumps(made.config(), allow_nan=False))
    assert config["options"] == {**options_of(mechanism), **made.options}
    assert not made.overrides


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_where_it_comes_from_and_names_what_exists(name):
    protocol = get(name)
    assert all((protocol.summary, protocol.source, protocol.differs))
    assert protocol.tasks
    assert set(protocol.tasks) <= set(TASKS)
    assert set(protocol.settings) <= set(MECHANISMS)
    assert {m for own in protocol.exceptions.values() for m in own} <= set(MECHANISMS)
    assert {*protocol.exceptions, *protocol.grids} <= set(protocol.tasks)
    assert {task for choice in protocol.choices for task in choice.tasks} <= set(protocol.tasks)


def test_unknown_names_are_refused_with_near_ones():
    with pytest.raises(UnknownNameError, match="no protocol called 'quik'; did you mean quick"):
        get("quik")
    quick = get("quick")
    with pytest.raises(UnknownNameError, match="no task of protocol 'quick' called 'listop'; did"):
        quick.experiment("listop", "local", 0)
    with pytest.raises(UnknownNameError, match="no mechanism called 'locl'; did you mean local"):
        quick.experiment("listops", "locl", 0)


def test_a_protocol_is_registered_once():
    with pytest.raises(OptionError, match="protocol 'quick' is already there"):
        register(dataclasses.replace(get("quick"), summary="another"))


HASHES = """
from longspan.arena import PROTOCOLS
for p in PROTOCOLS.values():
    for task in p.tasks:
        print(p.name, task, p.experiment(task, "performer", 0).hash)
"""


def test_a_budget_of_a_protocol_is_that_of_its_runs_and_is_shown(cli, monkeypatch):
    budget = Budget(kind="flops", limit=1e9)
    held = dataclasses.replace(get("quick"), name="held", budget=budget)
    monkeypatch.setitem(PROTOCOLS, "held", held)
    (made,), _ = grid("held", tasks=["listops"], mechanisms=["local"])
    tried = search("held", "listops", "local", grid={"training.batch_size": [4]})
    assert made.budget == tried.experiments[0].budget == budget
    # it is no departure, and another one is
    assert made.overrides == {}
    (other,), _ = grid("held", tasks=["listops"], mechanisms=["local"], budget=Budget())
    assert (other.budget, other.overrides) == (Budget(), {"budget": "steps"})
    code, out, _ = cli("protocols", "show", "held", "--json")
    assert (code, json.loads(out)["budget"]) == (0, "flops=1000000000")


def test_hashes_are_the_same_in_another_process():
    done = subprocess.run(
        [sys.executable, "-c", HASHES],
        capture_output=True,
        text=True,
        check=True,
        env={**__import__("os").environ, "PYTHONHASHSEED": "77"},
    )
    here = [
        f"{p.name} {task} {p.experiment(task, 'performer', 0).hash}"
        for p in PROTOCOLS.values()
        for task in p.tasks
    ]
    assert done.stdout.splitlines() == here


def other(value, field):
    """Another value that the field accepts."""
    choices = {
        "head_dim": 4,
        "position": "rotary",
        "norm": "post",
        "pooling": "cls",
        "pair_head": "concatenate",
        "schedule": "cosine",
        "precision": "bf16",
        "selection": "last",
        "source": "release",
        "betas": [0.9, 0.98],
        "clip": 0.5,
    }
    if field in choices:
        return choices[field]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 if value else 0.5
    return value + 1


def every_field():
    made = tiny.experiment("performer")
    complete = {**options_of("performer"), **made.options}
    parts = {
        "model": dataclasses.asdict(made.model),
        "train": dataclasses.asdict(made.train),
        # files of the release refuse the sizes of the tiny expressions
        "task": {k: v for k, v in made.task.complete().items() if k != "source"},
        "options": {k: v for k, v in complete.items() if isinstance(v, int | float)},
    }
    for part, values in parts.items():
        yield from ((f"{part}.{name}", other(value, name)) for name, value in values.items())


FIELDS = dict(every_field())


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_changes_the_hash_and_is_recorded(name):
    made = tiny.experiment("performer")
    if name == "task.source":
        # the sizes of what is generated do not go with published files
        made = get("lra-small").experiment("listops", "performer", 0)
    changed = override(made, {name: FIELDS[name]})
    assert changed.hash != made.hash
    assert changed.overrides == {**made.overrides, name: FIELDS[name]}
    assert changed.config() != made.config()


def test_all_parts_of_the_configuration_are_covered():
    parts = {name.partition(".")[0] for name in FIELDS}
    assert parts == {"task", "options", "model", "train"}
    names = {f"{part}.{f.name}" for part, kind in (("model", ModelConfig), ("train", TrainingConfig))
             for f in dataclasses.fields(kind)}  # fmt: skip
    assert names <= set(FIELDS)


def test_mechanism_backend_and_task_change_the_hash_and_the_seed_does_not():
    made = tiny.experiment()
    others = [
        tiny.experiment("full"),
        dataclasses.replace(made, backend="reference"),
        get("quick").experiment("text", "local", 0),
        get("quick").experiment("listops", "local", 0),
    ]
    assert len({x.hash for x in (made, *others)}) == 5
    again = dataclasses.replace(made, seed=5)
    assert (again.hash, again.name) == (made.hash, f"local-{made.hash}-5")


@pytest.mark.parametrize("seed", [-1, 1.0, True, "0"])
def test_a_seed_is_a_whole_number(seed):
    made = tiny.experiment()
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(Experiment)}
    broken = object.__new__(Experiment)
    for name, value in {**fields, "seed": seed}.items():
        object.__setattr__(broken, name, value)
    with pytest.raises(OptionError, match="a seed is a whole number, 0 or more, got "):
        broken.__post_init__()


def test_the_seed_draws_the_weights(listops):
    one, two = (make_model(tiny.experiment(seed=seed), listops) for seed in (0, 1))
    again = make_model(tiny.experiment(seed=0), listops)
    name = "classifier.output.weight"
    assert one.state_dict()[name].equal(again.state_dict()[name])
    assert not one.state_dict()[name].equal(two.state_dict()[name])
