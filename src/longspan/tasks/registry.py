"""Registry of tasks, by name."""

import dataclasses
from typing import Any

from longspan.config import TaskConfig
from longspan.errors import OptionError, check_name
from longspan.metrics import get_metric
from longspan.results.reading import check_folder_name
from longspan.tasks.base import Task
from longspan.tasks.scoring import LOGIT_STATISTICS

TASKS: dict[str, type[Task]] = {}


def register(cls: type[Task]) -> type[Task]:
    """Register a task class under the name in its metadata.

    Raises:
        OptionError: the name is taken, or that of a folder beside records; an option has the name
            of a field of `TaskConfig`, or the per-example statistics of a metric are undefined, or
            the number of token ids or classes.
        UnknownNameError: a metric is not registered.
    """
    name = cls.info.name
    check_folder_name("task", name)
    if name in TASKS:
        owner = TASKS[name].__qualname__
        raise OptionError(f"task {name!r} is already registered by {owner}; choose another name")
    config_fields = {field.name for field in dataclasses.fields(TaskConfig)}
    if collisions := config_fields & {field.name for field in dataclasses.fields(cls.Options)}:
        raise OptionError(f"task {name!r} may not name an option {', '.join(sorted(collisions))}")
    for size in ("vocab_size", "num_classes"):
        if not getattr(cls.info, size) and getattr(cls, size) is getattr(Task, size):
            raise OptionError(
                f"task {name!r} has no {size}; set it in its TaskInfo, or override the property"
            )
    _check_metrics(cls)
    TASKS[name] = cls
    return cls


def _check_metrics(cls: type[Task]) -> None:
    names = [get_metric(name).name for name in cls.info.metrics]
    undefined = [name for name in names if name not in LOGIT_STATISTICS]
    defines = (
        cls.example_statistics is not Task.example_statistics
        or cls.generation_statistics is not Task.generation_statistics
    )
    if undefined and not defines:
        raise OptionError(
            f"task {cls.info.name!r} has no per-example statistics of {', '.join(undefined)}; "
            "override example_statistics, or generation_statistics of generated texts"
        )


def build(name: str, options: dict[str, Any] | None = None) -> Task:
    """Build a task by name.

    Raises:
        UnknownNameError: there is no such task or option; the message suggests near names.
        OptionError: an option has an invalid value.
    """
    cls = TASKS[check_name(name, TASKS, "task")]
    fields = [field.name for field in dataclasses.fields(cls.Options)]
    for option in options or {}:
        check_name(option, fields, f"option of task {name!r}")
    return cls(cls.Options(**(options or {})))


def configure(name: str, options: dict[str, Any] | None = None) -> TaskConfig:
    """Return the configuration of a task, its default options included.

    Raises:
        UnknownNameError: there is no such task or option; the message suggests near names.
        OptionError: an option has an invalid value.
    """
    task = build(name, options)
    return TaskConfig(
        name=name, version=task.info.version, options=dataclasses.asdict(task.options)
    )
