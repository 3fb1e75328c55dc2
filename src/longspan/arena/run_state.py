"""State of a run directory: the configuration it belongs to, and its resolved budget."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from longspan.arena.experiment import Experiment, identity
from longspan.arena.provenance import code_differences, code_version
from longspan.config import RunConfig, settings
from longspan.errors import DataError, RunError
from longspan.files import read_json_file, write_json
from longspan.results import CodeVersion, ResolvedBudget, StartRecord
from longspan.results.reading import validate
from longspan.tasks import Task
from longspan.temporaries import remove_temporaries
from longspan.training.checkpoint_pointer import saved_step

logger = logging.getLogger(__name__)

FILE = "experiment.json"
REMEDY = "move it away or choose another --runs"
MAX_DIFFERENCES = 8  # differences that one message lists


@dataclasses.dataclass(frozen=True)
class _Absent:
    def __repr__(self) -> str:
        return "absent"


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
    """Return the record of the checkpoint that a run has started from; None: weights were drawn."""
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
    """Return a state with the code of this process.

    Raises:
        RunError: other code has trained, and changes are not accepted.
    """
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
    old, new, absent = identity(there), identity(here), _Absent()
    return [
        f"{name}: {_short(old.get(name, absent))} there, {_short(new.get(name, absent))} here"
        for name in sorted({*old, *new})
        if old.get(name, absent) != new.get(name, absent)
    ]


def in_brackets(differing: list[str]) -> str:
    """Return differences as text behind a sentence; empty without any."""
    if not differing:
        return ""
    more = len(differing) - MAX_DIFFERENCES
    rest = f"; and {more} more" if more > 0 else ""
    return f" ({'; '.join(differing[:MAX_DIFFERENCES])}{rest})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
