"""Resumption: finished and interrupted runs in a folder of results, checked against experiments."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.run_state import FILE, REMEDY, differences, in_brackets, read_state
from longspan.config import RunConfig
from longspan.errors import DataError, RunError
from longspan.files import to_json_types
from longspan.results import FAILED, Failure, Result, load_failure, load_result
from longspan.tasks import build
from longspan.training.checkpoint_pointer import saved_step


class FinishedRuns:
    """Records of finished and failed runs; the checksum of each data set is read once."""

    def __init__(self, paths: RunPaths):
        """Look for records in these paths."""
        self.paths = paths
        self.checksums: dict[str, str | None] = {}

    def result(self, experiment: Experiment) -> Result | None:
        """Return the result of an experiment, checked against its configuration and data.

        The data set is not opened: its manifest has the checksum. Where it is not built, the
        record is trusted.

        Raises:
            DataError: the file is not a valid record.
            RunError: it records another configuration, or was scored on other data.
        """
        path = self.paths.record_file(experiment)
        if not path.exists():
            return None
        return load_checked(experiment, self._checksum(experiment), path)

    def failure(self, experiment: Experiment) -> Failure | None:
        """Return the recorded failure of an experiment, or None.

        The failure of its source counts until that run has a record.

        Raises:
            DataError: the file is not a valid record.
        """
        path = self.paths.failure_file(experiment)
        failure = load_failure(path) if path.exists() else None
        source = experiment.source
        if failure and failure.kind == "source" and source is not None:
            return None if self.paths.for_sources().record_file(source).exists() else failure
        return failure

    def _checksum(self, experiment: Experiment) -> str | None:
        config = experiment.config.task
        if config.key not in self.checksums:
            task = build(config.name, config.options)
            self.checksums[config.key] = task.built_checksum(self.paths.cache, self.paths.data)
        return self.checksums[config.key]


def load_checked(experiment: Experiment, checksum: str | None, path: Path) -> Result:
    """Load a record and check that it belongs to an experiment and its data.

    Raises:
        DataError: the file is not a valid record.
        RunError: it records another row or configuration, or was scored on other data.
    """
    result = load_result(path)
    if result.row_name != experiment.row_name:
        raise RunError(
            f"{path} records row {result.row_name!r}, expected {experiment.row_name!r}; {REMEDY}"
        )
    # A default that changed without the next version leaves the hash.
    differing = differences(result.config, experiment.config)
    if differing or result.config_hash != experiment.hash or result.seed != experiment.seed:
        raise RunError(
            f"{path} records configuration {result.config_hash} with seed {result.seed}, expected "
            f"{experiment.hash} with seed {experiment.seed}{in_brackets(differing)}; {REMEDY}"
        )
    if checksum is not None and (reason := data_mismatch(result, checksum, path)):
        raise RunError(f"{reason} or choose another --runs")
    return result


def data_mismatch(result: Result, checksum: str, path: Path) -> str | None:
    """Return the message for a record that was scored on other data, or None."""
    if result.data_checksum == checksum:
        return None
    return (
        f"{path.name} was scored on data {result.data_checksum[:12]}, but the data here is "
        f"{checksum[:12]}; pass the same source with --data"
    )


def refuse_changed_recipe(experiment: Experiment, paths: RunPaths) -> None:
    """Refuse an experiment whose command has started or finished under an earlier recipe.

    Two runs have the same command if protocol, task, row, seed and overrides are equal. Then
    the protocol or a default has changed since. Runs with other overrides may share a folder.

    Raises:
        RunError: there is such a run; the message names it and what differs.
    """
    # Combinations of a grid differ by design.
    if paths.is_trial or (paths.run_dir(experiment) / FILE).exists():
        return
    overrides = to_json_types(experiment.overrides)
    found = itertools.chain(_finished(experiment, paths), _interrupted(experiment, paths))
    for path, config, theirs in found:
        differing = differences(config, experiment.config) if theirs == overrides else []
        if differing:
            raise RunError(
                f"{path} has the same command under an earlier recipe{in_brackets(differing)}; "
                f"{REMEDY}"
            )


Found = tuple[Path, RunConfig, dict]  # path, configuration and overrides of a run


def _finished(experiment: Experiment, paths: RunPaths) -> Iterator[Found]:
    """Yield records of the same row and seed, without those selected from a grid."""
    folder = paths.record_file(experiment).parent
    for path in sorted(folder.glob(f"{experiment.row_name}-*-{experiment.seed}.json")):
        # The report names invalid records.
        with contextlib.suppress(DataError):
            if (result := load_result(path)).tuning is None:
                yield path, result.config, result.overrides


def _interrupted(experiment: Experiment, paths: RunPaths) -> Iterator[Found]:
    """Yield run directories of the same row and seed that have a checkpoint."""
    folder = paths.run_dir(experiment).parent
    for path in sorted(folder.glob(f"{experiment.row_name}-*-{experiment.seed}/{FILE}")):
        run_dir = path.parent
        if (folder.parent / f"{run_dir.name}{FAILED}").exists():
            continue
        # Invalid directories are refused on resumption.
        with contextlib.suppress(RunError, DataError):
            if saved_step(run_dir) is not None and (state := read_state(run_dir)) is not None:
                yield run_dir, state.config, state.overrides
