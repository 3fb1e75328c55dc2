"""Training: one loop, exact resumption, and evaluation over every example."""

from longspan.training.config import TrainConfig
from longspan.training.loop import Outcome, Watcher, fit

__all__ = ["Outcome", "TrainConfig", "Watcher", "fit"]
