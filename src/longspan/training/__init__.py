"""Training: one loop, exact resumption, evaluation over every example.

The loop imports accelerate and transformers, which takes seconds, so it is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from longspan.training.callbacks import Callback

if TYPE_CHECKING:
    from longspan.training.fitting import Stage, TrainingOutcome, fit, fit_stages

__all__ = ["Callback", "Stage", "TrainingOutcome", "fit", "fit_stages"]


def __getattr__(name: str) -> Any:
    """Load the names of the loop."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longspan.training import fitting

    return getattr(fitting, name)
