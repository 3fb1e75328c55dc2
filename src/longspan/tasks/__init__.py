"""Tasks: metadata, data, head, metrics. Importing the package registers every task.

A folder holds the tasks of one subject with their readers, encodings and generators. The modules
beside the folders are the interface of tasks, and what several subjects share.
"""

import importlib
import pkgutil

from longspan.tasks.base import SPLITS, Batch, Split, Task
from longspan.tasks.documents.own_texts import OwnSummaries, OwnTexts
from longspan.tasks.imported import imported_names, register_imported
from longspan.tasks.info import Published, TaskInfo
from longspan.tasks.language.corpora import CorpusStreamTask, CorpusTask, ImportedCorpus
from longspan.tasks.questions.imports import OwnQuestions
from longspan.tasks.ranking.beir import BeirTask
from longspan.tasks.registry import TASKS, build, configure, register
from longspan.tasks.scoring import IGNORE

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    if "._" not in _module.name:
        importlib.import_module(_module.name)

__all__ = [
    "IGNORE",
    "SPLITS",
    "TASKS",
    "Batch",
    "BeirTask",
    "CorpusStreamTask",
    "CorpusTask",
    "ImportedCorpus",
    "OwnQuestions",
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
