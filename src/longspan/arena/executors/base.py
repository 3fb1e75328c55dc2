"""Executors of grids, and outcomes of runs: a result, a failure, or a reason for neither."""

import dataclasses
from collections.abc import Generator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from longspan.arena.callbacks import GridCallback
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.provenance import run_identity
from longspan.results import Failure, Result

FailureKind: TypeAlias = Literal["memory", "diverged", "died", "source"]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A part of a grid without a record.

    Attributes:
        name: the experiment, task or mechanism that was skipped.
        reason: why it was skipped.
        is_locked: True if another process holds the run's lock.
    """

    name: str
    reason: str
    is_locked: bool = False


RunOutcome: TypeAlias = Result | Failure | Skipped
Outcomes: TypeAlias = Generator[tuple[int, RunOutcome], None, None]  # with positions, from 0


@runtime_checkable
class Executor(Protocol):
    """Runs experiments, in this process or elsewhere."""

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Outcomes:
        """Yield the position of each experiment, from 0, and its outcome, as runs end.

        Closing the generator, like Ctrl-C, stops the runs that have not ended.

        Raises:
            RunError: the processes or the cluster cannot be reached; earlier outcomes are valid.
        """


def skip_experiment(experiment: Experiment, reason: str, *, is_locked: bool = False) -> Skipped:
    """Return the outcome of an experiment that has no record."""
    return Skipped(f"{experiment.name} on {experiment.task}", reason, is_locked)


def make_failure(
    experiment: Experiment, kind: FailureKind, reason: str, step: int | None, device: str | None
) -> Failure:
    """Return the record of a failed run.

    Args:
        experiment: the experiment that was run.
        kind: kind of failure.
        reason: description with a remedy.
        step: last step that was reported; None if there is none.
        device: device of the run; None if it was not reported.
    """
    identity = run_identity(experiment, device or "unknown")
    return Failure(**identity, kind=kind, reason=reason, step=step)
