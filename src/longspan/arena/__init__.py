"""Comparing mechanisms: protocols, experiments, runs and grids of them.

Nothing that trains is imported before it is needed.
"""

from typing import TYPE_CHECKING, Any

from longspan.arena.budget import Budget
from longspan.arena.executors import (
    Executor,
    GridCallback,
    RayExecutor,
    SerialExecutor,
    Skipped,
    WorkerPoolExecutor,
)
from longspan.arena.experiment import Experiment, ModelSpec, TaskSpec, override, under
from longspan.arena.grid import arena, grid, unfit
from longspan.arena.paths import RunPaths
from longspan.arena.plan import ordered, plan
from longspan.arena.promotion import Settled, promote, settle, tune
from longspan.arena.protocols import PROTOCOLS, Protocol, get
from longspan.arena.run import run
from longspan.arena.tuning import RULES, Search, search, searches

if TYPE_CHECKING:
    from longspan.arena.model import make_model

__all__ = [
    "PROTOCOLS",
    "RULES",
    "Budget",
    "Executor",
    "Experiment",
    "GridCallback",
    "ModelSpec",
    "Protocol",
    "RayExecutor",
    "RunPaths",
    "Search",
    "SerialExecutor",
    "Settled",
    "Skipped",
    "TaskSpec",
    "WorkerPoolExecutor",
    "arena",
    "get",
    "grid",
    "make_model",
    "ordered",
    "override",
    "plan",
    "promote",
    "run",
    "search",
    "searches",
    "settle",
    "tune",
    "under",
    "unfit",
]


def __getattr__(name: str) -> Any:
    """`make_model`, which brings transformers."""
    if name != "make_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longspan.arena import model

    return model.make_model
