"""Scoring the saved model of a finished run again."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from torch import nn

from longspan.arena.paths import RunPaths
from longspan.arena.resume import data_mismatch
from longspan.attention import MECHANISMS
from longspan.errors import DataError, OptionError, UnknownNameError, check_name
from longspan.models import LongspanPreTrainedModel
from longspan.results import Inference, Result, Score, load_result
from longspan.tasks import TASKS, Task, build
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.batching import sample_rows
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_folder import load_pretrained
from longspan.training.distributed.group import current_group, make_accelerator
from longspan.training.evaluate import Evaluation
from longspan.training.evaluation_options import EvaluationOptions
from longspan.training.final_evaluation import FinalEvaluation, evaluate_final
from longspan.training.inference import evaluate_timed


class FinishedRun(NamedTuple):
    """A finished run with its open task and its selected model, on the CPU."""

    result: Result
    task: Task
    model: LongspanPreTrainedModel


def load_run(record: Path, paths: RunPaths) -> FinishedRun:
    """Load a run's record, data and selected model.

    Raises:
        DataError: the record or the model is absent, or the data differs.
        UnknownNameError: a plug-in that registers the mechanism or the task is not loaded.
    """
    result = load_result(record)
    check_registered(record, result)
    task = _open_task(result, paths)
    return FinishedRun(result, task, _selected_model(record, result, task))


def check_registered(record: Path, result: Result) -> None:
    """Check that the mechanism and the task of a record are registered.

    Raises:
        UnknownNameError: a plug-in that registers them is not loaded.
    """
    names = {"mechanism": result.mechanism, "task": result.task}
    registries: dict[str, dict] = {"mechanism": MECHANISMS, "task": TASKS}
    for kind, name in names.items():
        if name not in registries[kind]:
            source = (result.source_files or {}).get(kind)
            file = "the file" if source is None or source.sha256 is None else str(source)
            raise UnknownNameError(
                f"{record.name} was made with {kind} {name!r}, which is not registered here; pass "
                f"{file} that registers it: --import FILE"
            )


def rescore(record: Path, split: str, paths: RunPaths) -> Score:
    """Score the selected model of a run on a split; see `evaluate_run`."""
    return evaluate_run(record, split, paths)[0].score


def evaluate_run(
    record: Path,
    split: str,
    paths: RunPaths,
    *,
    examples: int | None = None,
    batch_size: int | None = None,
) -> tuple[Evaluation, Inference]:
    """Evaluate the selected model of a run on a split, in the precision of its training.

    On validation and test the mechanism has the options of the run's evaluations.

    Args:
        record: record of the run.
        split: split to score.
        paths: folders of the data, and the device.
        examples: size of a random sample to score; None: the whole split, and of the training
            split as many examples as the run scores at its end.
        batch_size: examples per batch; None: that of the run.

    Raises:
        UnknownNameError: there is no such split.
        OptionError: a number is less than 1, or the split has fewer examples.
        DataError: the record or the model is absent, or the data differs.
    """
    check_request(split, examples, batch_size)
    result, task, model = load_run(record, paths)
    rows = choose_rows(task, cast(Split, split), examples, result)
    prepared, where = prepare_model(record, result, model, paths, batch_size)
    with evaluation_options(result, prepared).applied(cast(Split, split)):
        return evaluate_timed(prepared, task, cast(Split, split), rows=rows, **where)


def evaluate_selected(record: Path, result: Result, task: Task, paths: RunPaths) -> FinalEvaluation:
    """Evaluate the selected model of a trial on its open task, as at the end of a run.

    Raises:
        DataError: the model is absent or damaged, or the data differs.
    """
    model = _selected_model(record, result, task)
    prepared, where = prepare_model(record, result, model, paths)
    count = result.effective_config.training.train_eval_examples
    options = evaluation_options(result, prepared)
    return evaluate_final(prepared, task, count, options=options, **where)


def evaluation_options(result: Result, model: nn.Module) -> EvaluationOptions:
    """Return the options of a run's model in held-out evaluation."""
    config = result.effective_config
    return EvaluationOptions(model, config.mechanism.name, config.evaluation_changes)


def check_request(split: str, examples: int | None, batch_size: int | None) -> None:
    """Check the arguments of an evaluation that need neither data nor model.

    Raises:
        UnknownNameError: there is no such split.
        OptionError: a number is less than 1.
    """
    check_name(split, SPLITS, "split to score")
    for name, value in (("examples", examples), ("batch size", batch_size)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")


def choose_rows(
    task: Task, split: Split, examples: int | None, result: Result
) -> np.ndarray | None:
    """Return a sample of the rows of a split; None for the whole split.

    Args:
        task: open task to score.
        split: split to score.
        examples: size of the sample; None: the whole split, and of the training split as many
            examples as the run scores at its end.
        result: record of the run.

    Raises:
        OptionError: the split has fewer examples.
    """
    size = task.size(split)
    if examples is None:
        if split != "train":
            return None
        count = result.effective_config.training.train_eval_examples
        examples = min(count or task.size("validation"), size)
    if examples > size:
        raise OptionError(
            f"examples must be between 1 and {size:,}, the size of {split}; got {examples}"
        )
    return sample_rows(size, examples)


def prepare_model(
    record: Path,
    result: Result,
    model: LongspanPreTrainedModel,
    paths: RunPaths,
    batch_size: int | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Return a run's model on its device and in its precision, and the arguments of `evaluate`.

    Raises:
        OptionError: the device does not support the precision.
    """
    training = result.effective_config.training
    accelerator = make_accelerator(training.precision, _run_dir(record), paths.device)
    # Before `current_group`, which resets the state that the accelerator reads.
    prepared = accelerator.prepare(model)
    where = {
        "batch_size": batch_size or training.eval_batch_size,
        "device": accelerator.device,
        "group": current_group(paths.device),
    }
    return prepared, where


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
    return load_pretrained(task.head, saved, "run it again")
