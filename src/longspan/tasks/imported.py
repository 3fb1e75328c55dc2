"""Tasks made of the imports in a cache: one class for each import, under its name."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

from longspan.data.cache import BuiltDataset, find_built
from longspan.data.corpora.imports import name_tokenizers
from longspan.data.imports.stored import ImportDescription
from longspan.errors import DataError
from longspan.results.reading import OTHER_FOLDERS
from longspan.tasks.base import Task
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import TASKS, register

logger = logging.getLogger(__name__)

Maker = Callable[[Path, Any], type[Task]]
_MAKERS: dict[str, tuple[type[ImportDescription], Maker]] = {}  # by the folder of the kind


class ImportedTask(Task):
    """Task of an import; each one is a subclass with its folder and description."""

    folder: ClassVar[Path]
    description: ClassVar[Any]

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the imported rows; `data` has no effect."""
        return self.description.origin

    def _find_built(self, cache: Path) -> BuiltDataset | None:
        """Return the data set of this import, and none of a replaced one of its name."""
        spec = self._dataset_spec(self.description.origin)
        return find_built(cache, spec.task, spec.version, spec.options, spec.key)


def makes_tasks(kind: type[ImportDescription]) -> Callable[[Maker], Maker]:
    """Register the function that returns the task class of an import of a kind (decorator)."""

    def add(make: Maker) -> Maker:
        _MAKERS[kind.folder] = kind, make
        return make

    return add


def register_imported(cache: Path) -> list[str]:
    """Register the imports in a cache as tasks, and their tokenizers; return their names.

    Imports that another cache or an earlier call registered are forgotten. One that is damaged, or
    has the name of another task, is left out with a warning.
    """
    for name in imported_names():
        del TASKS[name]
    for _, (kind, make) in sorted(_MAKERS.items()):
        for folder in kind.find(cache):
            _register(kind, make, folder)
    names = imported_names()
    name_tokenizers(cast("type[ImportedTask]", TASKS[name]).folder for name in names)
    return names


def _register(kind: type[ImportDescription], make: Maker, folder: Path) -> None:
    try:
        description = kind.load(folder)
    except DataError as error:
        logger.warning("leaving out %s: %s", folder.name, error)
        return
    if folder.name in OTHER_FOLDERS:
        logger.warning("leaving out %s: records of a task have no such folder", folder)
    elif folder.name in TASKS or description.name != folder.name:
        logger.warning("leaving out %s: its name is that of another task", folder)
    else:
        register(make(folder, description))


def imported_names(*bases: type) -> list[str]:
    """Return the names of the registered tasks that are imports, or imports of some classes."""
    return sorted(x for x, cls in TASKS.items() if issubclass(cls, bases or ImportedTask))


def make_task(
    base: type[ImportedTask],
    folder: Path,
    description: ImportDescription,
    files: str,
    **fields: Any,
) -> type[Any]:
    """Return the task class of an import, whose record names the file of its base.

    Args:
        base: class of the tasks of its kind.
        folder: folder of the import.
        description: its description.
        files: files that were imported, for readers.
        fields: further fields of `TaskInfo`.
    """
    info = TaskInfo(
        name=description.name,
        title=f"{description.name} ({files})",
        source=f"{files}, imported",
        license="that of the files",
        sizes=description.sizes,
        **fields,
    )
    members = {"info": info, "folder": folder, "description": description}
    about = {"__doc__": info.summary, "__module__": base.__module__}
    return type(f"{base.__name__}_{info.name}", (base,), about | members)
