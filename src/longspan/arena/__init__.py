"""Arena: protocols, experiments, runs, grids and searches.

Training code is imported only when something is trained.
"""

import importlib
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
from longspan.arena.grid import arena, find_refusal, grid, order_runs
from longspan.arena.one_run import RunChoices, finetune, pretrain
from longspan.arena.paths import RunPaths
from longspan.arena.plan import plan
from longspan.arena.plugins import load_plugin, load_protocol
from longspan.arena.protocols import PROTOCOLS, Protocol, get
from longspan.arena.run import run
from longspan.arena.search import Search, SearchSpace, search, searches
from longspan.arena.selection import RULES, SearchResult, select_and_score, tune

if TYPE_CHECKING:
    from longspan.arena.generation import generate
    from longspan.arena.model import make_model

_LAZY = {"generate": "longspan.arena.generation", "make_model": "longspan.arena.model"}

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
    "find_refusal",
    "finetune",
    "generate",
    "get",
    "grid",
    "load_plugin",
    "load_protocol",
    "make_model",
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
    """Load the functions whose modules import transformers."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
