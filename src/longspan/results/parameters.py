"""Whether a model stands beside the one with full attention in its number of parameters."""

from typing import Protocol, runtime_checkable

PARAMETER_BUDGET = 0.10  # largest share by which a comparison of like with like may differ


@runtime_checkable
class Counted(Protocol):
    """What has parameters to compare: a result, or a run that is planned."""

    @property
    def parameters(self) -> int:
        """Of the model."""

    @property
    def full_parameters(self) -> int | None:
        """Of the same model with full attention; None: not counted."""


def parameter_excess(run: Counted) -> float | None:
    """The share of parameters that a model has more (or, negative, less) than with full attention.

    None where nobody counted those.
    """
    if not run.full_parameters:
        return None
    return run.parameters / run.full_parameters - 1


def outside_parameter_budget(run: Counted) -> bool:
    """Whether a model is known to differ by more than the budget: 10 % of full attention's."""
    excess = parameter_excess(run)
    return excess is not None and abs(excess) > PARAMETER_BUDGET
