"""Tasks made of the imports in a cache: one class for each import."""

import logging
from collections.abc import Callable
from pathlib import Path

from longspan.data.imports import D, ImportKind
from longspan.errors import DataError
from longspan.results.reading import OTHER_FOLDERS
from longspan.tasks.base import Task
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import TASKS, register

logger = logging.getLogger(__name__)


def register_imported(
    base: type, kind: ImportKind[D], cache: Path, make: Callable[[Path, D], type[Task]]
) -> list[str]:
    """Register the imports of a kind in a cache as tasks; return their names.

    Imports that another cache or an earlier call registered are forgotten. One that is damaged, or
    has the name of another task, is left out with a warning.

    Args:
        base: class of all tasks of the kind.
        kind: kind of the imports.
        cache: folder of built data sets.
        make: returns the task class of the import in a folder with a description.
    """
    for name in imported_names(base):
        del TASKS[name]
    for folder in kind.find(cache):
        try:
            description = kind.load(folder)
        except DataError as error:
            logger.warning("leaving out %s: %s", folder.name, error)
            continue
        if folder.name in OTHER_FOLDERS:
            logger.warning("leaving out %s: records of a task have no such folder", folder)
            continue
        if folder.name in TASKS or description.name != folder.name:
            logger.warning("leaving out %s: its name is that of another task", folder)
            continue
        register(make(folder, description))
    return imported_names(base)


def imported_names(base: type) -> list[str]:
    """Return the names of the registered tasks of a kind."""
    return sorted(name for name, cls in TASKS.items() if issubclass(cls, base))


def make_class(base: type[Task], info: TaskInfo, folder: Path, description: object) -> type[Task]:
    """Return the task class of an import, whose record names the file of its base.

    Args:
        base: class with the class variables `folder` and `description`.
        info: metadata of the task.
        folder: folder of the import.
        description: its description.
    """
    members = {"info": info, "folder": folder, "description": description}
    about = {"__doc__": info.summary, "__module__": base.__module__}
    return type(f"{base.__name__}_{info.name}", (base,), about | members)
