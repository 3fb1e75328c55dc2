"""Calls that tests of tasks share: open a task, read a split, score logits, describe a run."""

import dataclasses

import numpy as np

import tiny
from longspan.config import TaskConfig
from longspan.tasks import build


def open_task(name, cache, data=None, **options):
    """Return an open task."""
    task = build(name, options)
    task.open(cache, data)
    return task


def open_beside(name, data, **options):
    """Return a task of a folder of files, whose cache is beside the folder."""
    return open_task(name, data.parent / "cache", data, **options)


def read_whole(task, split):
    """Return all examples of a split as one batch."""
    size = task.size(split)
    return next(task.batches(split, batch_size=size, rows=np.arange(size)))


def score_logits(task, split, batch, logits):
    """Return the score of the logits of a batch under each metric of the task."""
    found = task.example_statistics(task.metrics, split, batch.rows, logits, batch.targets)
    return {metric.name: metric.aggregate(found[metric.name].numpy()) for metric in task.metrics}


def make_experiment(task, mechanism="local", changes=None):
    """Return an experiment of the smoke protocol's recipe on a task."""
    base = tiny.experiment(mechanism, changes=changes)
    options = dataclasses.asdict(task.options)
    config = TaskConfig(name=task.info.name, version=task.info.version, options=options)
    return dataclasses.replace(base, config=dataclasses.replace(base.config, task=config))
