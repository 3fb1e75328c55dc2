"""Answers of a run's model to the questions of a split, in the form of the official evaluation."""

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
from longspan.tasks.base import Split
from longspan.training.evaluate import model_inputs


def answer_questions(
    record: Path, split: str, paths: RunPaths, batch_size: int | None = None
) -> dict[str, Any]:
    """Return the answers of the selected model of a run to all questions of a split.

    Args:
        record: record of a run on a task of questions.
        split: split to answer.
        paths: folders of the run's data, and the device.
        batch_size: questions per batch; None: that of the run's evaluations.

    Returns:
        The content of a file for the official evaluation, such as {id: answer}.

    Raises:
        UnknownNameError: there is no such split.
        OptionError: the task has no questions, or the batch size is less than 1.
        DataError: the record, the model or the data is absent, or the data differs.
    """
    check_request(split, None, batch_size)
    result, task, model = load_run(record, paths)
    if not task.asks_questions:
        raise OptionError(f"{record} was trained on {task.info.name}, which asks no questions")
    prepared, where = prepare_model(record, result, model, paths, batch_size)
    prepared.eval()
    chosen, found = cast(Split, split), dict[str, Any]()
    rows = np.arange(task.size(chosen))
    with evaluation_options(result, prepared).applied(chosen):
        for batch in task.batches(chosen, batch_size=where["batch_size"], rows=rows):
            with torch.no_grad():
                output = prepared(**model_inputs(prepared, task, batch, where["device"]))
            logits = task.output_logits(output).cpu()
            _merge(found, task.answers(chosen, batch.rows, logits, batch.targets))
    return found


def _merge(found: dict[str, Any], more: dict[str, Any]) -> None:
    """Add answers; those of several kinds are added kind by kind."""
    for name, value in more.items():
        if isinstance(value, dict):
            found.setdefault(name, {}).update(value)
        else:
            found[name] = value
