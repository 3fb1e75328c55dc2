"""What a folder of runs already holds of an experiment, and whether it is the same one."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longspan.arena.experiment import Experiment
from longspan.arena.places import Places
from longspan.errors import DataError, RunError
from longspan.files import plain, read_json, sweep, write_json
from longspan.results import FAILED, Failure, Result, as_asked, load, load_failure
from longspan.tasks import Task, build

ELSEWHERE = "move it away or choose another --runs"
SHOWN = 8  # fields of a difference that one line holds


class Ended:
    """The records of experiments that have ended; the data of a task is looked up once."""

    def __init__(self, places: Places):
        """Look in these places."""
        self.places = places
        self.checksums: dict[str, str | None] = {}

    def result(self, experiment: Experiment) -> Result | None:
        """The result of an experiment that has one, checked against what would be run now.

        The set is not opened: its record says what it holds. Where there is none, the result
        stands for itself.

        Raises:
            DataError: the file is no record.
            RunError: it records another configuration, or was scored on other data.
        """
        path = self.places.record(experiment)
        if not path.exists():
            return None
        return checked(experiment, self._checksum(experiment), path)

    def failure(self, experiment: Experiment) -> Failure | None:
        """The record of an experiment that failed, if it did.

        Raises:
            DataError: the file is no record of a failure.
        """
        path = self.places.failure(experiment)
        return load_failure(path) if path.exists() else None

    def _checksum(self, experiment: Experiment) -> str | None:
        options = dict(experiment.task.options)
        key = repr((experiment.task.name, sorted(options.items(), key=str)))
        if key not in self.checksums:
            task = build(experiment.task.name, options)
            self.checksums[key] = task.built_checksum(self.places.cache, self.places.data)
        return self.checksums[key]


def checked(experiment: Experiment, checksum: str | None, path: Path) -> Result:
    """The record in a file, after a look whether it is this experiment's, on this data.

    Raises:
        DataError: the file is no record.
        RunError: it records another configuration, or was scored on other data.
    """
    result = load(path)
    if result.config_hash != experiment.hash or result.seed != experiment.seed:
        differing = differences(_recipe(result), _expected(experiment))
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
    path, config = work / "experiment.json", {**experiment.config(), "data": task.checksum}
    sweep(path)
    if not path.exists():
        write_json(path, config)
    elif differing := differences(read_json(path), plain(config)):
        raise RunError(
            f"{work} was started with another configuration{_in_brackets(differing)}; {ELSEWHERE}"
        )


def changed_recipes(experiments: Sequence[Experiment], places: Places) -> Iterator[str]:
    """One line for each group of records made under a protocol whose recipe has changed since.

    They are of the same mechanisms, tasks and seeds, changed by nobody, and of another hash.
    """
    if places.trials:
        # the combinations of a grid are meant to differ
        return
    own = [experiment for experiment in experiments if not experiment.overrides]
    for (protocol, task), group in itertools.groupby(sorted(own, key=_column), key=_column):
        found = [
            (path, differing)
            for experiment in group
            for path, differing in _of_another_recipe(experiment, places)
        ]
        if found:
            paths, differing = [path for path, _ in found], found[0][1]
            yield (
                f"{protocol}, {task}: {len(paths)} records of an earlier recipe "
                f"({_listed(differing)}), {paths[0].name} among them; they stay in the report, and "
                "what is run now stands beside them; move them away to keep one recipe"
            )


def _column(experiment: Experiment) -> tuple[str, str]:
    return experiment.protocol, experiment.task.name


def _of_another_recipe(experiment: Experiment, places: Places) -> Iterator[tuple[Path, list[str]]]:
    own = places.record(experiment)
    for path in sorted(own.parent.glob(f"{experiment.mechanism}-*-{experiment.seed}.json")):
        if path == own or path.name.endswith(FAILED):
            continue
        try:
            result = load(path)
        except DataError:
            # the report refuses it by name
            continue
        if result.tuning is not None:
            continue
        differing = differences(_recipe(result), _expected(experiment))
        if not result.overrides and result.budget["kind"] == experiment.budget.kind and differing:
            yield path, differing


def _recipe(result: Result) -> dict[str, Any]:
    """What of a record follows from the recipe, under the names that `--set` takes."""
    result = as_asked(result)
    return plain(
        {
            "task": {"version": result.task_version, **result.task_options},
            "options": result.options,
            "model": result.model,
            "train": result.training,
        }
    )


def _expected(experiment: Experiment) -> dict[str, Any]:
    """The same of an experiment."""
    config = experiment.config()
    task = {"version": config["task"]["version"], **config["task"]["options"]}
    return plain({"task": task, **{name: config[name] for name in ("options", "model", "train")}})


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
