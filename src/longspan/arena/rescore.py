"""Scoring the saved model of a finished run again."""

from pathlib import Path
from typing import NamedTuple, cast

from safetensors import SafetensorError

from longspan.arena.run import Places, model_class, other_data
from longspan.errors import DataError, known
from longspan.models import LongspanPreTrainedModel
from longspan.results import Result, Score, load
from longspan.tasks import Task, build
from longspan.tasks.base import Split
from longspan.training.checkpoint import Checkpoints
from longspan.training.evaluate import evaluate
from longspan.training.loop import accelerator

# a split for training has no end
SCORED = ("validation", "test")


class Reopened(NamedTuple):
    """A finished run with what it was made of."""

    result: Result
    task: Task  # open
    model: LongspanPreTrainedModel  # the selected one, on the CPU


def reopened(record: Path, places: Places) -> Reopened:
    """Load a run's record, its data and the model that was selected.

    Raises:
        DataError: the record or the model beside it is absent, or the data is another one.
    """
    result = load(record)
    work = record.parent / "work" / record.stem
    saved = Checkpoints(work).best()
    if saved is None:
        raise DataError(f"{work} holds no saved model of {record.name}; run it again")
    task = build(result.task, result.task_options)
    task.open(places.cache, places.data)
    if reason := other_data(result, task, record):
        raise DataError(reason)
    try:
        model = model_class(task).from_pretrained(saved)
    except (OSError, SafetensorError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{saved} cannot be read ({reason}); run it again") from error
    return Reopened(result, task, model)


def rescore(record: Path, split: str, places: Places) -> Score:
    """Score the selected model of a run on a split, in the precision it was trained in.

    Raises:
        UnknownNameError: no such split.
        DataError: the record or the model beside it is absent, or the data is another one.
    """
    known(split, SCORED, "split to score")
    result, task, model = reopened(record, places)
    work = record.parent / "work" / record.stem
    engine = accelerator(result.training["precision"], work, places.device)
    return evaluate(
        engine.prepare(model),
        task,
        cast(Split, split),
        batch=result.training["evaluation_batch"],
        device=engine.device,
    )
