"""Scoring the saved model of a finished run again."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from huggingface_hub.errors import StrictDataclassError
from transformers.utils import logging as transformers_logging

from longspan.arena.model import model_class
from longspan.arena.paths import RunPaths
from longspan.arena.resume import data_mismatch
from longspan.errors import DataError, check_name
from longspan.models import LongspanPreTrainedModel
from longspan.results import Result, Score, load_result
from longspan.tasks import Task, build
from longspan.tasks.base import Split
from longspan.training.checkpoint import UNREADABLE, Checkpoints
from longspan.training.distributed.group import current_group, make_accelerator
from longspan.training.evaluate import Evaluation, evaluate

SPLITS = ("validation", "test")  # `train` is endless


class FinishedRun(NamedTuple):
    """A finished run with its open task and its selected model, on the CPU."""

    result: Result
    task: Task
    model: LongspanPreTrainedModel


def load_run(record: Path, paths: RunPaths) -> FinishedRun:
    """Load a run's record, data and selected model.

    Raises:
        DataError: the record or the model is absent, or the data differs.
    """
    result = load_result(record)
    task = _open_task(result, paths)
    return FinishedRun(result, task, _selected_model(record, result, task))


def rescore(record: Path, split: str, paths: RunPaths) -> Score:
    """Score the selected model of a run on a split, in the precision of its training.

    Raises:
        UnknownNameError: there is no such split.
        DataError: the record or the model is absent, or the data differs.
    """
    check_name(split, SPLITS, "split to score")
    result = load_result(record)
    task = _open_task(result, paths)
    return evaluate_run(record, result, task, cast(Split, split), paths).score


def evaluate_run(
    record: Path, result: Result, task: Task, split: Split, paths: RunPaths
) -> Evaluation:
    """Evaluate the selected model of a run on a split of its open task.

    Raises:
        DataError: the model is absent or damaged, or the data differs.
    """
    model = _selected_model(record, result, task)
    training = result.effective_config.training
    accelerator = make_accelerator(training.precision, _run_dir(record), paths.device)
    return evaluate(
        accelerator.prepare(model),
        task,
        split,
        batch_size=training.eval_batch_size,
        device=accelerator.device,
        group=current_group(paths.device),
    )


def _open_task(result: Result, paths: RunPaths) -> Task:
    task = build(result.task, result.config.task.options)
    task.open(paths.cache, paths.data)
    return task


def _run_dir(record: Path) -> Path:
    return record.parent / "work" / record.stem


def _selected_model(record: Path, result: Result, task: Task) -> LongspanPreTrainedModel:
    run_dir = _run_dir(record)
    try:
        saved = Checkpoints(run_dir).best()
    except DataError as error:
        raise DataError(f"{error}; run it again") from error
    if saved is None:
        raise DataError(f"{run_dir} holds no saved model of {record.name}; run it again")
    if reason := data_mismatch(result, task.checksum, record):
        raise DataError(reason)
    try:
        with _hidden_progress_bar():
            return model_class(task).from_pretrained(saved)
    except (*UNREADABLE, StrictDataclassError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{saved} cannot be read ({reason}); run it again") from error


@contextlib.contextmanager
def _hidden_progress_bar() -> Iterator[None]:
    """Hide the progress bar with which transformers loads weights."""
    is_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_enabled:
            transformers_logging.enable_progress_bar()
