"""Tasks: metadata, data, head, metrics. Importing the package registers every task.

A module without a leading underscore is a task or part of the interface; a module with one is
shared by tasks of this package alone.
"""

import importlib
import pkgutil

from longspan.tasks.base import SPLITS, Batch, Split, Task
from longspan.tasks.beir import BeirTask, beir_names, register_beir
from longspan.tasks.corpora import CorpusTask, corpus_names, register_corpora
from longspan.tasks.corpus_streams import CorpusStreamTask
from longspan.tasks.info import Published, TaskInfo
from longspan.tasks.own_summaries import (
    OwnSummaries,
    own_summary_names,
    register_own_summaries,
)
from longspan.tasks.own_texts import OwnTexts, own_names, register_own_texts
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
    "OwnSummaries",
    "OwnTexts",
    "Published",
    "Split",
    "Task",
    "TaskInfo",
    "beir_names",
    "build",
    "configure",
    "corpus_names",
    "own_names",
    "own_summary_names",
    "register",
    "register_beir",
    "register_corpora",
    "register_own_summaries",
    "register_own_texts",
]
