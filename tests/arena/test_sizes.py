"""Sizes that cannot be meant are refused in words, before anything is allocated."""

import dataclasses
import functools
import math

import pytest

import tiny
from longspan import space
from longspan.arena import PROTOCOLS, get, override
from longspan.arena.experiment import Experiment, replace_budget
from longspan.arena.model import TRAINING_COPIES, check_weights, make_model, num_parameters
from longspan.arena.plan import plan
from longspan.arena.run import run
from longspan.config import flatten, parse_budget
from longspan.errors import LongspanError, NoMemoryError, OptionError, RunError
from longspan.tasks import TASKS, build
from longspan.training import timing

NOT_MEANT = (0, -1, 2**31, 2**63 - 1, 10**12, 1e300, -1.5, math.nan)
OVERFLOWING = (2**31, 2**63 - 1, 10**12)
# Sizes that other options of the configuration bound, and numbers that are no sizes.
UNBOUNDED = {
    *("task.seed", "task.split_seed", "task.minimum", "training.max_grad_norm"),
    *("training.learning_rate", "training.weight_decay", "training.adam_epsilon"),
    *("model.initializer_range", "task.temperature"),
}
BUDGETS = (
    *("seconds=1e300", "seconds=1e308d", "seconds=1e-300", "seconds=0", "seconds=-1"),
    *("seconds=nan", "flops=1e300", "flops=1e999", "flops=9999999999E", "flops=1e-300"),
    *("memory=1e300", "memory=1e-300", "memory=1TB"),
)


def numbers(config):
    """Return the dotted names of the fields that hold a number, or may."""
    fixed = ("task.version", "budget.limit")
    values = flatten(config).items()
    return [x for x, old in values if x not in fixed and type(old) in (int, float, type(None))]


@functools.cache
def experiment(task):
    protocols = (*PROTOCOLS.values(), get("finetune"), get("pretrain"))
    protocol = next(x for x in protocols if task in x.tasks)
    return protocol.experiment(task, "local", 0)


# The tasks of masked inputs are made alike, from tasks that are here themselves.
NAMES = [x for x in TASKS if not x.startswith("masked_") or x == "masked_listops"]
FIELDS = [(task, name) for task in NAMES for name in numbers(experiment(task).config)]
# The fields of the model and of training are those of every task.
CASES = [(task, name) for task, name in FIELDS if task == "listops" or name.startswith("task.")]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Function that plans an experiment, at a fixed rate of matrix products."""
    monkeypatch.setattr(timing, "measure_matmul_rate", lambda device: 1e12)
    return lambda experiment: list(plan([experiment], tiny.paths(tmp_path / "runs", tmp_path)))


def refusal(action):
    """Return the message of the refusal; None if there is none."""
    try:
        action()
    except LongspanError as error:
        return str(error)
    return None


@pytest.mark.timeout(60)  # a hang is a failure
@pytest.mark.parametrize(("task", "name"), CASES)
def test_every_number_is_planned_or_refused(task, name, planned):
    for value in NOT_MEANT:
        changed = {name: value}
        message = refusal(lambda changed=changed: planned(override(experiment(task), changed)))
        if message is None:
            overflows = value in OVERFLOWING and name not in UNBOUNDED
            assert not overflows, f"{name}={value} was accepted"
        else:
            assert name.partition(".")[2] in message or str(value) in message


@pytest.mark.parametrize("text", BUDGETS)
def test_every_budget_is_planned_or_refused(text, planned):
    rows = []
    message = refusal(
        lambda: rows.extend(planned(replace_budget(tiny.experiment(), parse_budget(text))))
    )
    if message is None:
        unusable = text in ("flops=9999999999E", "flops=1e-300", "memory=1e-300")
        assert (rows[0].reason is not None) == unusable
    else:
        assert "limit" in message


def test_seed_has_64_bits():
    config = tiny.experiment().config
    with pytest.raises(OptionError, match="seed must be at most 9,223,372,036,854,775,807, got"):
        Experiment(protocol="smoke", config=config, seed=2**63)


GENERATED = {
    "copying": {"train": 300, "validation": 20, "test": 30, "length": 64},
    "recall": {"train": 300, "validation": 20, "test": 30},
    "listops": {"train": 200, "validation": 20, "test": 20},
    "pathfinder": {"train": 60, "validation": 10, "test": 10},
}


@pytest.mark.parametrize("name", GENERATED)
def test_estimate_of_build_is_near_its_files(name, tmp_path):
    task = build(name, GENERATED[name])
    task.open(tmp_path)
    written = sum(file.bytes for file in task.dataset.manifest.files.values())
    # But for ListOps, which builds in memory, a file of the same size is on the disk too.
    spools = 1 if name == "listops" else 2
    assert task.estimate_build().disk == pytest.approx(spools * written, rel=0.3)


@pytest.mark.parametrize("name", GENERATED)
def test_build_that_exceeds_memory_is_refused_before_it_starts(name, tmp_path, monkeypatch):
    monkeypatch.setattr(space, "available_memory", lambda: 10**9)
    task = build(name, {**GENERATED[name], "train": 10**9})
    message = f"building the data set of {name} needs .* 953.7 MiB are available; choose fewer"
    with pytest.raises(NoMemoryError, match=message):
        task.open(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("name", GENERATED)
def test_build_that_exceeds_disk_is_refused_before_it_starts(name, tmp_path, monkeypatch):
    monkeypatch.setattr(space, "available_memory", lambda: None)
    task = build(name, {**GENERATED[name], "train": 10**9})
    with pytest.raises(RunError, match=r"[GT]iB on the disk of .* free; .* set LONGSPAN_CACHE"):
        task.open(tmp_path)


def test_built_data_set_is_opened_whatever_memory_is_left(tmp_path, monkeypatch):
    first, again = (build("copying", GENERATED["copying"]) for _ in range(2))
    first.open(tmp_path)
    monkeypatch.setattr(space, "available_memory", lambda: 0)
    again.open(tmp_path)
    assert again.checksum == first.checksum


def test_weights_and_optimizer_are_counted(monkeypatch):
    config, task = tiny.experiment().config, build("listops", tiny.TASK)
    parameters = sum(x.numel() for x in make_model(tiny.experiment(), task).parameters())
    assert num_parameters(config, task) == parameters
    for copies in (1, TRAINING_COPIES):
        needed = 4 * copies * parameters
        monkeypatch.setattr(space, "available_memory", lambda needed=needed: needed)
        check_weights(config, task, copies)
        monkeypatch.setattr(space, "available_memory", lambda needed=needed: needed - 1)
        with pytest.raises(NoMemoryError, match=f"{parameters:,} parameters.*smaller model"):
            check_weights(config, task, copies)


def test_model_that_exceeds_memory_is_refused_before_it_is_built():
    config = dataclasses.replace(get("smoke").config("listops", "full").model, hidden_size=2**18)
    changes = {f"model.{name}": x for name, x in dataclasses.asdict(config).items()}
    with pytest.raises(NoMemoryError, match=r"full with .* parameters needs .* are available"):
        make_model(override(tiny.experiment("full"), changes), build("listops", tiny.TASK))


def test_run_whose_optimizer_exceeds_memory_is_refused(listops, monkeypatch, paths):
    parameters = num_parameters(tiny.experiment().config, listops)
    monkeypatch.setattr(space, "available_memory", lambda: 15 * parameters)
    with pytest.raises(NoMemoryError, match="gradients and AdamW's moments needs"):
        run(tiny.experiment(), listops, paths)
