"""Training: one loop, exact resumption, and evaluation over every example.

A recipe is at hand at once; the loop brings accelerate and transformers, seconds of imports, and
comes when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

from longspan.training.callbacks import Callback
from longspan.training.config import TrainConfig

if TYPE_CHECKING:
    from longspan.training.loop import Outcome, fit

__all__ = ["Callback", "Outcome", "TrainConfig", "fit"]


def __getattr__(name: str) -> Any:
    """`fit` and `Outcome`, from the loop."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longspan.training import loop

    return getattr(loop, name)
