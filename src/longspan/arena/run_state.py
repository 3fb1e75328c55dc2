"""State of run directories: their lock, the configuration they belong to, and finished runs."""

import contextlib
import dataclasses
import itertools
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from longspan.arena.experiment import Experiment, identity
from longspan.arena.paths import RunPaths
from longspan.arena.provenance import code_differences, code_version, now
from longspan.config import RunConfig, settings
from longspan.errors import BusyError, DataError, RunError
from longspan.files import WRITE_REMEDY, read_json, read_json_file, to_json_types, write_json
from longspan.results import (
    FAILED,
    CodeVersion,
    Failure,
    ResolvedBudget,
    Result,
    StartRecord,
    load_failure,
    load_result,
)
from longspan.results.reading import validate
from longspan.tasks import Task, build
from longspan.temporaries import remove_temporaries
from longspan.training.checkpoint_names import saved_step

logger = logging.getLogger(__name__)

FILE = "experiment.json"
REMEDY = "move it away or choose another --runs"
_MAX_DIFFERENCES = 8  # differences that one message lists


@settings
class RunState:
    """Content of `experiment.json` in a run directory."""

    config: RunConfig
    overrides: dict[str, Any]
    data_checksum: str
    resolved_budget: ResolvedBudget | None = None
    code: CodeVersion | None = None  # None: written by an earlier version
    # Code of earlier parts of the run, oldest first.
    earlier_code: list[CodeVersion] = dataclasses.field(default_factory=list)
    start: StartRecord | None = None


def read_state(run_dir: Path) -> RunState | None:
    """Read the state of a run directory; None for a directory without one.

    Raises:
        RunError: the file is invalid, or was written by another version.
    """
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        return validate(RunState, read_json_file(path).text, path)
    except DataError as error:
        raise RunError(f"{error}; {REMEDY}") from error


def write_state(run_dir: Path, state: RunState) -> None:
    """Write the state of a run directory, atomically."""
    remove_temporaries(run_dir / FILE)
    write_json(run_dir / FILE, dataclasses.asdict(state))


def recorded_start(run_dir: Path) -> StartRecord | None:
    """Return the record of a run's first checkpoint; None: random initialization."""
    state = read_state(run_dir)
    return None if state is None else state.start


def record_start(run_dir: Path, start: StartRecord) -> None:
    """Add a start to the state of a run directory."""
    state = read_state(run_dir)
    if state is not None and state.start != start:
        write_state(run_dir, dataclasses.replace(state, start=start))


def claim(
    experiment: Experiment, task: Task, run_dir: Path, *, accept_changes: bool = False
) -> RunState:
    """Assign a run directory to an experiment, or check that it belongs to it.

    Args:
        experiment: experiment.
        task: its open task.
        run_dir: run directory.
        accept_changes: whether other code may resume training; the state then has both.

    Raises:
        RunError: it belongs to another configuration, to other data, or to other code.
    """
    state = read_state(run_dir)
    if state is None:
        state = RunState(
            config=experiment.config,
            overrides=experiment.overrides,
            data_checksum=task.checksum,
            code=code_version(experiment),
        )
        write_state(run_dir, state)
        return state
    differing = differences(state.config, experiment.config)
    if state.data_checksum != task.checksum:
        differing.append(f"data: {state.data_checksum[:12]} there, {task.checksum[:12]} here")
    if differing:
        raise RunError(
            f"{run_dir} belongs to another configuration{in_brackets(differing)}; {REMEDY}"
        )
    claimed = _with_code(state, code_version(experiment), run_dir, accept_changes)
    if claimed != state:
        write_state(run_dir, claimed)
    return claimed


def _with_code(state: RunState, here: CodeVersion, run_dir: Path, accept_changes: bool) -> RunState:
    """Return a state with the code of this process."""
    there = state.code
    if there is None or not (differing := code_differences(there, here)):
        return state if there is not None else dataclasses.replace(state, code=here)
    if saved_step(run_dir) is None:
        # Nothing is trained yet, but a budget may have been resolved by the other code.
        return dataclasses.replace(state, code=here, resolved_budget=None)
    check_code(str(run_dir), differing, accept_changes=accept_changes)
    return dataclasses.replace(state, code=here, earlier_code=[*state.earlier_code, there])


def check_code(trained: str, differing: list[str], *, accept_changes: bool) -> None:
    """Refuse to continue what other code has trained, unless changes are accepted.

    Raises:
        RunError: the message names the differences.
    """
    if not differing:
        return
    if not accept_changes:
        raise RunError(
            f"{trained} was trained by other code{in_brackets(differing)}; restore that code, "
            "continue with --accept-changes, which records both, or move it away"
        )
    logger.warning("%s continues with other code%s", trained, in_brackets(differing))


def differences(there: RunConfig, here: RunConfig) -> list[str]:
    """Return the fields that differ, as `training.steps: 200 there, 300 here`.

    Those of stages are `stage.NUMBER.FIELD`.
    """
    old, new = identity(there), identity(here)
    return [
        f"{name}: {_value_text(old, name)} there, {_value_text(new, name)} here"
        for name in sorted({*old, *new})
        if not (name in old and name in new and old[name] == new[name])
    ]


def in_brackets(differing: list[str]) -> str:
    """Return differences as text behind a sentence; empty without any."""
    if not differing:
        return ""
    more = len(differing) - _MAX_DIFFERENCES
    rest = f"; and {more} more" if more > 0 else ""
    return f" ({'; '.join(differing[:_MAX_DIFFERENCES])}{rest})"


def _value_text(values: dict[str, Any], name: str) -> str:
    text = repr(values[name]) if name in values else "absent"
    return text if len(text) <= 40 else f"{text[:37]}..."


@contextlib.contextmanager
def hold_lock(folder: Path, name: str, *, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock `<name>.lock` of a folder and describe the holder in `<name>.json`.

    The lock file is never removed: otherwise two processes could lock two files of one name.

    Args:
        folder: the run's folder; created if absent.
        name: name of the lock.
        timeout: seconds to wait for another process to release the lock.

    Raises:
        BusyError: another process holds the lock; the message names process, host and time.
        RunError: the folder cannot be written.
    """
    lock, holder_file = FileLock(folder / f"{name}.lock"), folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout, poll_interval=0.2)
    except Timeout as error:
        raise BusyError(
            f"Another process holds this run's lock{_describe_holder(holder_file)}."
        ) from error
    except OSError as error:
        raise RunError(
            f"cannot write {folder}: {error.strerror or error}; {WRITE_REMEDY}"
        ) from error
    try:
        remove_temporaries(holder_file)
        since = now()
        write_json(holder_file, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        yield
    finally:
        holder_file.unlink(missing_ok=True)
        lock.release()


def _describe_holder(holder_file: Path) -> str:
    """Return " (pid ..., host ..., since ...)", or nothing if the file cannot be read."""
    # The holder may be writing or removing the file at this moment.
    try:
        holder = read_json(holder_file)
        return f" (pid {holder['pid']}, host {holder['host']}, since {holder['since']})"
    except (DataError, TypeError, KeyError):
        return ""


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

    def has(self, experiment: Experiment) -> bool:
        """Return whether an experiment is finished; refuse one that an earlier recipe began.

        Raises:
            DataError: as `result` says.
            RunError: as `result` and `refuse_changed_recipe` say.
        """
        if self.result(experiment) is not None:
            return True
        refuse_changed_recipe(experiment, self.paths)
        return False

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

    Two runs have the same command if protocol, task, row, seed, overrides, and what a checkpoint
    decides that they start from are equal. Then the protocol or a default has changed since. Other
    runs may share a folder, such as those from a checkpoint and from its exported folder, or from
    two checkpoints whose equal weights have other windows.

    Raises:
        RunError: there is such a run; the message names it and what differs.
    """
    # Combinations of a grid differ by design.
    if paths.is_trial or (paths.run_dir(experiment) / FILE).exists():
        return
    overrides, parts = to_json_types(experiment.overrides), _parts_of_start(experiment)
    runs = itertools.chain(_finished_runs(experiment, paths), _interrupted_runs(experiment, paths))
    for path, config, theirs in runs:
        starts = [_select(x, parts) for x in (config, experiment.config)]
        is_same = theirs == overrides and starts[0] == starts[1]
        differing = differences(config, experiment.config) if is_same else []
        if differing:
            raise RunError(
                f"{path} has the same command under an earlier recipe{in_brackets(differing)}; "
                f"{REMEDY}"
            )


EarlierRun = tuple[Path, RunConfig, dict]  # path, configuration and overrides of a run


def _parts_of_start(experiment: Experiment) -> tuple[str, ...]:
    """Return the parts that a given checkpoint decides of a run that starts from it."""
    if experiment.checkpoint is None:
        return ("start.checkpoint",)
    from longspan.training.checkpoint_folder import read_config  # imports transformers

    # Another mechanism than that of the checkpoint has the options of the protocol.
    is_own = experiment.row_name in read_config(experiment.checkpoint).attention_names
    return ("start.", "model.", *(["mechanism."] if is_own else []))


def _select(config: RunConfig, parts: tuple[str, ...]) -> dict[str, Any]:
    values = identity(config).items()
    return {name: x for name, x in values if x is not None and name.startswith(parts)}


def _finished_runs(experiment: Experiment, paths: RunPaths) -> Iterator[EarlierRun]:
    """Yield records of the same row and seed, without those selected from a grid."""
    folder = paths.record_file(experiment).parent
    for path in sorted(folder.glob(f"{experiment.row_name}-*-{experiment.seed}.json")):
        # The report names invalid records.
        with contextlib.suppress(DataError):
            if (result := load_result(path)).tuning is None:
                yield path, result.config, result.overrides


def _interrupted_runs(experiment: Experiment, paths: RunPaths) -> Iterator[EarlierRun]:
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
