"""Scoring the saved model of a finished run again."""

from pathlib import Path
from typing import NamedTuple, cast

from safetensors import SafetensorError

from longspan.arena.model import model_class
from longspan.arena.paths import RunPaths
from longspan.arena.resume import other_data
from longspan.errors import DataError, known
from longspan.models import LongspanPreTrainedModel
from longspan.results import Result, Score, load
from longspan.tasks import Task, build
from longspan.tasks.base import Split
from longspan.training.checkpoint import Checkpoints
from longspan.training.distributed.group import current_group, make_accelerator
from longspan.training.evaluate import Evaluation, answered

# a split for training has no end
SCORED = ("validation", "test")


class Reopened(NamedTuple):
    """A finished run with what it was made of."""

    result: Result
    task: Task  # open
    model: LongspanPreTrainedModel  # the selected one, on the CPU


def reopened(record: Path, paths: RunPaths) -> Reopened:
    """Load a run's record, its data and the model that was selected.

    Raises:
        DataError: the record or the model beside it is absent, or the data is another one.
    """
    result = load(record)
    task = build(result.task, result.task_options)
    task.open(paths.cache, paths.data)
    return Reopened(result, task, _selected(record, result, task))


def rescore(record: Path, split: str, paths: RunPaths) -> Score:
    """Score the selected model of a run on a split, in the precision it was trained in.

    Raises:
        UnknownNameError: no such split.
        DataError: the record or the model beside it is absent, or the data is another one.
    """
    known(split, SCORED, "split to score")
    result = load(record)
    task = build(result.task, result.task_options)
    task.open(paths.cache, paths.data)
    return answered_again(record, result, task, cast(Split, split), paths).score


def answered_again(
    record: Path, result: Result, task: Task, split: Split, paths: RunPaths
) -> Evaluation:
    """Let the model saved beside a record answer a split of its task, which is open.

    Raises:
        DataError: the model is absent or damaged, or the data is not the record's.
    """
    model = _selected(record, result, task)
    engine = make_accelerator(result.training["precision"], _work(record), paths.device)
    return answered(
        engine.prepare(model),
        task,
        split,
        batch=result.training["evaluation_batch"],
        device=engine.device,
        group=current_group(paths.device),
    )


def _work(record: Path) -> Path:
    """The folder of a run's checkpoints."""
    return record.parent / "work" / record.stem


def _selected(record: Path, result: Result, task: Task) -> LongspanPreTrainedModel:
    """The model saved beside a record."""
    work = _work(record)
    saved = Checkpoints(work).best()
    if saved is None:
        raise DataError(f"{work} holds no saved model of {record.name}; run it again")
    if reason := other_data(result, task.checksum, record):
        raise DataError(reason)
    try:
        return model_class(task).from_pretrained(saved)
    except (OSError, SafetensorError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{saved} cannot be read ({reason}); run it again") from error
