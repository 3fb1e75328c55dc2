"""Outcomes of runs: a result, a failure, or a reason why there is neither."""

import dataclasses
from typing import Literal, TypeAlias

from longspan.arena.experiment import Experiment
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
