"""Arena: protocols, experiments, runs, grids and searches.

Training code is imported only when something is trained.
"""

from typing import TYPE_CHECKING, Any

from longspan.arena.callbacks import GridCallback
from longspan.arena.executors import (
    Executor,
    RayExecutor,
    SerialExecutor,
    Skipped,
    WorkerPoolExecutor,
)
from longspan.arena.experiment import Experiment, override, replace_budget
from longspan.arena.grid import arena, grid, misfit
from longspan.arena.one_run import RunChoices, finetune, pretrain
from longspan.arena.ordering import order_runs
from longspan.arena.paths import RunPaths
from longspan.arena.plan import plan
from longspan.arena.plugins import load_plugin, load_protocol
from longspan.arena.protocols import PROTOCOLS, Protocol, get
from longspan.arena.run import run
from longspan.arena.search import Search, SearchSpace, search, searches
from longspan.arena.selection import RULES, SearchResult, select_and_score, tune

if TYPE_CHECKING:
    from longspan.arena.model import make_model

__all__ = [
    "PROTOCOLS",
    "RULES",
    "Executor",
    "Experiment",
    "GridCallback",
    "Protocol",
    "RayExecutor",
    "RunChoices",
    "RunPaths",
    "Search",
    "SearchResult",
    "SearchSpace",
    "SerialExecutor",
    "Skipped",
    "WorkerPoolExecutor",
    "arena",
    "finetune",
    "get",
    "grid",
    "load_plugin",
    "load_protocol",
    "make_model",
    "misfit",
    "order_runs",
    "override",
    "plan",
    "pretrain",
    "replace_budget",
    "run",
    "search",
    "searches",
    "select_and_score",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load `make_model`, which imports transformers."""
    if name != "make_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longspan.arena import model

    return model.make_model
