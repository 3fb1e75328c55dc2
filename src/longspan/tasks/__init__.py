"""Tasks: metadata, data, head, metrics. Importing the package registers every task.

A module without a leading underscore is a task or part of the interface; a module with one is
shared by tasks of this package alone.
"""

import importlib
import pkgutil

from longspan.tasks.base import SPLITS, Batch, Split, Task
from longspan.tasks.beir import BeirTask
from longspan.tasks.corpora import CorpusTask
from longspan.tasks.corpus_streams import CorpusStreamTask, ImportedCorpus
from longspan.tasks.imported import imported_names, register_imported
from longspan.tasks.info import Published, TaskInfo
from longspan.tasks.own_texts import OwnSummaries, OwnTexts
from longspan.tasks.registry import TASKS, build, configure, register
from longspan.tasks.scoring import IGNORE

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "IGNORE",
    "SPLITS",
    "TASKS",
    "Batch",
    "BeirTask",
    "CorpusStreamTask",
    "CorpusTask",
    "ImportedCorpus",
    "OwnSummaries",
    "OwnTexts",
    "Published",
    "Split",
    "Task",
    "TaskInfo",
    "build",
    "configure",
    "imported_names",
    "register",
    "register_imported",
]
