"""One file per task: its metadata, its data, its metric. Importing this finds them all."""

import importlib
import pkgutil

from longspan.tasks.base import (
    IGNORE,
    SPLITS,
    TASKS,
    Batch,
    Published,
    Split,
    Task,
    TaskInfo,
    build,
    register,
)

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
    "register",
]
