"""Tasks, one file each: metadata, data, layout, metrics. Importing the package registers them."""

import importlib
import pkgutil

from longspan.tasks.base import (
    SPLITS,
    TASKS,
    Batch,
    Published,
    Split,
    Task,
    TaskInfo,
    build,
    configure,
    register,
)
from longspan.tasks.scoring import IGNORE

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "IGNORE",
    "SPLITS",
    "TASKS",
    "Batch",
    "Published",
    "Split",
    "Task",
    "TaskInfo",
    "build",
    "configure",
    "register",
]
