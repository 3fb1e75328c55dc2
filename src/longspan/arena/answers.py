"""Answers of a run's model to the examples of a split, in the form of the official evaluation."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from longspan.arena.paths import RunPaths
from longspan.arena.rescore import (
    check_request,
    evaluation_options,
    load_run,
    prepare_model,
)
from longspan.errors import OptionError
from longspan.files import atomic_write
from longspan.tasks.base import Split, Task
from longspan.training.arguments import model_inputs


def answer_questions(
    record: Path, split: str, paths: RunPaths, batch_size: int | None = None
) -> dict[str, Any]:
    """Return the answers of the selected model of a run to all examples of a split.

    Args:
        record: record of a run on a task of questions, or of coreference.
        split: split to answer.
        paths: folders of the run's data, and the device.
        batch_size: examples per batch; None: that of the run's evaluations.

    Returns:
        The content of a file for the official evaluation, such as {id: answer}; of coreference the
        columns of each document.

    Raises:
        UnknownNameError: there is no such split.
        OptionError: the task has no answers, or the batch size is less than 1.
        DataError: the record, the model or the data is absent, or the data differs.
    """
    return _answer(record, split, paths, batch_size)[0]


def write_answers(
    record: Path, split: str, paths: RunPaths, output: Path, batch_size: int | None = None
) -> tuple[int, str]:
    """Write the answers of a run's model to a file for the official evaluation of its task.

    Args:
        record: see `answer_questions`.
        split: see `answer_questions`.
        paths: see `answer_questions`.
        output: file to write: JSON, or columns of CoNLL-2012.
        batch_size: see `answer_questions`.

    Returns:
        The number of answers, and what has been answered: question or document.

    Raises:
        UnknownNameError: see `answer_questions`.
        OptionError: see `answer_questions`.
        DataError: see `answer_questions`.
        RunError: the file cannot be written.
    """
    found, task = _answer(record, split, paths, batch_size)
    if task.head_name == "coreference":
        text, count, unit = "".join(found.values()), len(found), "document"
    else:
        text = json.dumps(found, indent=1, ensure_ascii=False)
        count, unit = len(found.get("answer", found)), "question"
    with atomic_write(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return count, unit


def _answer(
    record: Path, split: str, paths: RunPaths, batch_size: int | None
) -> tuple[dict[str, Any], Task]:
    """Return the answers to a split, and the task."""
    check_request(split, None, batch_size)
    result, task, model = load_run(record, paths)
    if not task.has_answers:
        raise OptionError(
            f"{record} was trained on {task.info.name}, which asks no questions; name a run on a "
            "task of questions, or on coreference"
        )
    prepared, where = prepare_model(record, result, model, paths, batch_size)
    prepared.eval()
    chosen, found = cast(Split, split), dict[str, Any]()
    rows = np.arange(task.size(chosen))
    with evaluation_options(result, prepared).applied(chosen):
        for batch in task.batches(chosen, batch_size=where["batch_size"], rows=rows):
            with torch.no_grad():
                output = prepared(**model_inputs(prepared, batch.inputs, where["device"]))
            logits = task.head.scores(output).cpu()
            _merge(found, task.answers(chosen, batch.rows, logits, batch.targets))
    return found, task


def _merge(found: dict[str, Any], more: dict[str, Any]) -> None:
    """Add answers; those of several kinds are added kind by kind."""
    for name, value in more.items():
        if isinstance(value, dict):
            found.setdefault(name, {}).update(value)
        else:
            found[name] = value
