"""Comparing mechanisms: protocols, experiments, runs and grids of them.

Nothing that trains is imported before it is needed.
"""

from typing import TYPE_CHECKING, Any

from longspan.arena.budget import Budget
from longspan.arena.experiment import Experiment, ModelSpec, TaskSpec, override, under
from longspan.arena.grid import arena, grid, unfit
from longspan.arena.launch import GridWatcher, Launcher, Ray, Serial, Skipped, Workers
from longspan.arena.places import Places
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
    "Experiment",
    "GridWatcher",
    "Launcher",
    "ModelSpec",
    "Places",
    "Protocol",
    "Ray",
    "Search",
    "Serial",
    "Settled",
    "Skipped",
    "TaskSpec",
    "Workers",
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
