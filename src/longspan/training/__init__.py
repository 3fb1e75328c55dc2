"""Training: one loop, exact resumption, evaluation over every example.

The loop imports accelerate and transformers, which takes seconds, so it is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from longspan.training.callbacks import Callback

if TYPE_CHECKING:
    from longspan.training.loop import TrainingOutcome, fit

__all__ = ["Callback", "TrainingOutcome", "fit"]


def __getattr__(name: str) -> Any:
    """Load `fit` and `TrainingOutcome` from the loop."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longspan.training import loop

    return getattr(loop, name)
