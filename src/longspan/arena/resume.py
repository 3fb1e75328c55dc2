"""What a folder of runs already holds of an experiment, and whether it is the same one."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.errors import DataError, RunError
from longspan.files import plain, read_json, sweep, write_json
from longspan.results import FAILED, Failure, Result, as_asked, load, load_failure
from longspan.tasks import Task, build
from longspan.training.config import POINTER

CLAIM = "experiment.json"  # in a run's folder: whose it is
ELSEWHERE = "move it away or choose another --runs"
SHOWN = 8  # fields of a difference that one line holds


class Ended:
    """The records of experiments that have ended; the data of a task is looked up once."""

    def __init__(self, paths: RunPaths):
        """Look in these paths."""
        self.paths = paths
        self.checksums: dict[str, str | None] = {}

    def result(self, experiment: Experiment) -> Result | None:
        """The result of an experiment that has one, checked against what would be run now.

        The set is not opened: its record says what it holds. Where there is none, the result
        stands for itself.

        Raises:
            DataError: the file is no record.
            RunError: it records another configuration, or was scored on other data.
        """
        path = self.paths.record_file(experiment)
        if not path.exists():
            return None
        return checked(experiment, self._checksum(experiment), path)

    def failure(self, experiment: Experiment) -> Failure | None:
        """The record of an experiment that failed, if it did.

        Raises:
            DataError: the file is no record of a failure.
        """
        path = self.paths.failure_file(experiment)
        return load_failure(path) if path.exists() else None

    def _checksum(self, experiment: Experiment) -> str | None:
        key = experiment.task.key
        if key not in self.checksums:
            task = build(experiment.task.name, dict(experiment.task.options))
            self.checksums[key] = task.built_checksum(self.paths.cache, self.paths.data)
        return self.checksums[key]


def checked(experiment: Experiment, checksum: str | None, path: Path) -> Result:
    """The record in a file, after a look whether it is this experiment's, on this data.

    Raises:
        DataError: the file is no record.
        RunError: it records another configuration, or was scored on other data.
    """
    result = load(path)
    if result.config_hash != experiment.hash or result.seed != experiment.seed:
        differing = differences(_recorded(result), _recipe(experiment.config()))
        raise RunError(
            f"{path} records configuration {result.config_hash} with seed {result.seed}, expected "
            f"{experiment.hash} with {experiment.seed}{_in_brackets(differing)}; {ELSEWHERE}"
        )
    if checksum is not None and (reason := other_data(result, checksum, path)):
        raise RunError(f"{reason} or choose another --runs")
    return result


def other_data(result: Result, checksum: str, path: Path) -> str | None:
    """Why data of this checksum cannot stand beside a record; None when it is the record's own."""
    if result.data_checksum == checksum:
        return None
    return (
        f"{path.name} was scored on data {result.data_checksum[:12]}, here is "
        f"{checksum[:12]}; pass the same source with --data"
    )


def claim(experiment: Experiment, task: Task, work: Path) -> None:
    """Write the configuration into the run's work folder, or compare it with the one there.

    Raises:
        RunError: the folder was started with another configuration, or on other data.
    """
    path, config = work / CLAIM, {**experiment.config(), "data": task.checksum}
    sweep(path)
    if not path.exists():
        # Overrides are no part of what a run is: they say what of it the protocol does not.
        write_json(path, {**config, "overrides": dict(experiment.overrides)})
    elif differing := differences(_bare(read_json(path)), plain(config)):
        raise RunError(
            f"{work} was started with another configuration{_in_brackets(differing)}; {ELSEWHERE}"
        )


def _bare(claimed: Any) -> Any:
    """A claim without the overrides; one of an earlier version has none."""
    named = isinstance(claimed, dict)
    return {k: x for k, x in claimed.items() if k != "overrides"} if named else claimed


def refuse_changed(experiment: Experiment, paths: RunPaths) -> None:
    """Refuse to begin a run where the same command has begun, or ended, one of another recipe.

    The same command: protocol, task, mechanism, seed and overrides are equal. Then the protocol or
    a default has changed since. Other settings side by side are what a folder is for.

    Raises:
        RunError: there is such a run; the message names it and what differs.
    """
    # The combinations of a grid are meant to differ.
    if paths.is_trial or (paths.run_dir(experiment) / CLAIM).exists():
        return
    here, overrides = _recipe(experiment.config()), plain(experiment.overrides)
    found = itertools.chain(_ended(experiment, paths), _begun(experiment, paths))
    for path, there, asked in found:
        differing = differences(there, here) if asked == overrides else []
        if differing:
            raise RunError(
                f"{path} is of the same command under an earlier recipe{_in_brackets(differing)}; "
                f"{ELSEWHERE}"
            )


Found = tuple[Path, dict[str, Any], Any]  # a run, its recipe and what was overridden of it


def _ended(experiment: Experiment, paths: RunPaths) -> Iterator[Found]:
    """Records of the same mechanism and seed; of choices from grids the grid differs too."""
    folder = paths.record_file(experiment).parent
    for path in sorted(folder.glob(f"{experiment.mechanism}-*-{experiment.seed}.json")):
        # what is malformed the report refuses by name
        with contextlib.suppress(DataError):
            if (result := load(path)).tuning is None:
                yield path, _recorded(result), result.overrides


def _begun(experiment: Experiment, paths: RunPaths) -> Iterator[Found]:
    """Folders with a checkpoint to continue from, of the same mechanism and seed."""
    folder = paths.run_dir(experiment).parent
    for path in sorted(folder.glob(f"{experiment.mechanism}-*-{experiment.seed}/{CLAIM}")):
        failed = folder.parent / f"{path.parent.name}{FAILED}"
        if failed.exists() or behind(path.parent) is None:
            continue
        # what is malformed is refused where it is gone on with
        with contextlib.suppress(DataError, KeyError, TypeError):
            config = read_json(path)
            yield path.parent, _recipe(config), config.get("overrides")


def behind(work: Path) -> int | None:
    """Steps behind the last checkpoint in a run's folder; None where there is none."""
    pointer = work / POINTER
    last = read_json(pointer).get("last") if pointer.exists() else None
    return None if last is None else int(last.removeprefix("step-"))


def _recorded(result: Result) -> dict[str, Any]:
    """What of a record follows from the recipe, under the names that `--set` takes."""
    result = as_asked(result)
    kind, limit = result.budget["kind"], result.budget["limit"]
    return plain(
        {
            **({"budget": {"kind": kind, "limit": limit}} if kind != "steps" else {}),
            "task": {"version": result.task_version, **result.task_options},
            "options": result.options,
            "model": result.model,
            "train": result.training,
        }
    )


def _recipe(config: dict[str, Any]) -> dict[str, Any]:
    """The same of a configuration."""
    task = {"version": config["task"]["version"], **config["task"]["options"]}
    held = {"budget": config["budget"]} if "budget" in config else {}
    parts = {name: config[name] for name in ("options", "model", "train")}
    return plain({**held, "task": task, **parts})


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Field by field what differs, as `train.steps: 200 there, 300 here`."""
    if not isinstance(there, dict) or not isinstance(here, dict):
        same = there == here
        return [] if same else [f"{name}: {_shown(there)} there, {_shown(here)} here"]
    return [
        difference
        for key in sorted({*there, *here})
        for difference in differences(
            there.get(key, ABSENT), here.get(key, ABSENT), f"{name}.{key}".lstrip(".")
        )
    ]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _in_brackets(differing: list[str]) -> str:
    return f" ({_listed(differing)})" if differing else ""


def _listed(differing: list[str]) -> str:
    more = len(differing) - SHOWN
    return "; ".join(differing[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
