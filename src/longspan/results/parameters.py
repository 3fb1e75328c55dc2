"""Parameter counts compared with the same model around the baseline mechanism."""

from typing import Protocol, runtime_checkable

PARAMETER_TOLERANCE = 0.10  # largest share by which comparable models differ


@runtime_checkable
class Counted(Protocol):
    """Run with a parameter count: a result, or a planned run."""

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""

    @property
    def full_num_parameters(self) -> int | None:
        """Parameters of the same model with `full`; None: not recorded."""


def parameter_excess(run: Counted) -> float | None:
    """Return the share of parameters beyond those of the model with `full`; None: not recorded."""
    if not run.full_num_parameters:
        return None
    return run.num_parameters / run.full_num_parameters - 1


def exceeds_parameter_tolerance(run: Counted) -> bool:
    """Return whether the parameter count is known to differ by more than 10 % from `full`."""
    excess = parameter_excess(run)
    return excess is not None and abs(excess) > PARAMETER_TOLERANCE
