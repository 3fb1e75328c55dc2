"""Finished runs: record, open task and selected model, and their evaluation."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from longspan.arena.paths import RunPaths
from longspan.arena.run_state import data_mismatch
from longspan.attention import MECHANISMS
from longspan.errors import (
    DataError,
    OptionError,
    UnknownNameError,
    check_name,
)
from longspan.models import LongspanPreTrainedModel
from longspan.results import Inference, Result, load_result
from longspan.tasks import TASKS, Task, build
from longspan.tasks.base import SPLITS, Split
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_folder import load_pretrained
from longspan.training.distributed.group import current_group, make_accelerator
from longspan.training.evaluate import Evaluation
from longspan.training.evaluation_options import EvaluationOptions
from longspan.training.final_evaluation import FinalEvaluation, evaluate_final
from longspan.training.inference import evaluate_timed


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A finished run with its open task and its selected model, on the CPU.

    Attributes:
        record: file of the record.
        result: its content.
        task: task, on the data of the run.
        model: selected model.
        paths: folders of the data, and the device.
    """

    record: Path
    result: Result
    task: Task
    model: LongspanPreTrainedModel
    paths: RunPaths

    @property
    def eval_batch_size(self) -> int:
        """Examples of a batch of the run's evaluations."""
        return self.result.effective_config.training.eval_batch_size

    def prepare(
        self, batch_size: int | None = None, model: LongspanPreTrainedModel | None = None
    ) -> tuple[nn.Module, dict[str, Any]]:
        """Return a model on its device and in its precision, and the arguments of `evaluate`.

        Args:
            batch_size: examples per batch; None: that of the run's evaluations.
            model: model in place of the run's, such as a longer one.

        Raises:
            OptionError: the device does not support the precision.
        """
        training, device = self.result.effective_config.training, self.paths.device
        accelerator = make_accelerator(training.precision, _run_dir(self.record), device)
        # Before `current_group`, which resets the state that the accelerator reads.
        prepared = accelerator.prepare(self.model if model is None else model)
        where = {
            "batch_size": batch_size or self.eval_batch_size,
            "device": accelerator.device,
            "group": current_group(device),
        }
        return prepared, where

    @contextlib.contextmanager
    def evaluating(
        self,
        split: Split,
        batch_size: int | None = None,
        *,
        model: LongspanPreTrainedModel | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        """Yield a prepared model in evaluation mode, with the options of the mechanism for a split.

        Args:
            split: split to evaluate.
            batch_size: see `prepare`.
            model: see `prepare`.
            options: options that differ from those of training; None: those of the run's
                evaluations.
        """
        prepared, where = self.prepare(batch_size, model)
        applied = evaluation_options(self.result, prepared, options)
        with applied.applied(split):
            yield prepared.eval(), where

    def choose_rows(
        self, split: Split, examples: int | None, task: Task | None = None
    ) -> np.ndarray | None:
        """Return a sample of the rows of a split; None for the whole split.

        Args:
            split: split to score.
            examples: size of the sample; None: the whole split, and of the training split as many
                examples as the run scores at its end; all of them if nothing is held out.
            task: open task to score; None: that of the run.

        Raises:
            OptionError: the split has fewer examples.
        """
        task = task or self.task
        size = task.size(split)
        if examples is None:
            if split != "train":
                return None
            count = self.result.effective_config.training.train_eval_examples
            examples = min(count or task.size("validation") or size, size)
        if examples > size:
            raise OptionError(
                f"examples must be between 1 and {size:,}, the size of {split}; got {examples}"
            )
        return task.sample_rows(split, examples)


def load_run(record: Path, paths: RunPaths) -> FinishedRun:
    """Load a run's record, data and selected model.

    Raises:
        DataError: the record or the model is absent, or the data differs.
        UnknownNameError: a plug-in that registers the mechanism or the task is not loaded.
    """
    result = load_result(record)
    check_registered(record, result)
    task = build(result.task, result.config.task.options)
    task.open(paths.cache, paths.data)
    return _with_model(record, result, task, paths)


def _with_model(record: Path, result: Result, task: Task, paths: RunPaths) -> FinishedRun:
    """Load the selected model of a run on its open task."""
    run_dir = _run_dir(record)
    try:
        saved = Checkpoints(run_dir).best()
    except DataError as error:
        raise DataError(f"{error}; run it again") from error
    if saved is None:
        raise DataError(f"{run_dir} holds no saved model of {record.name}; run it again")
    if reason := data_mismatch(result, task.checksum, record):
        raise DataError(reason)
    model = load_pretrained(task.head, saved, "run it again")
    return FinishedRun(record=record, result=result, task=task, model=model, paths=paths)


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
            if source is not None and not source.is_external:  # a class of ours made the task
                remedy = "it is an import of another cache: --cache FOLDER, or import it again"
            else:
                file = "the file" if source is None or source.sha256 is None else str(source)
                remedy = f"pass {file} that registers it: --import FILE"
            raise UnknownNameError(
                f"{record.name} was made with {kind} {name!r}, which is not registered here; "
                f"{remedy}"
            )


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
    run, scored_split = load_run(record, paths), cast(Split, split)
    rows = run.choose_rows(scored_split, examples)
    with run.evaluating(scored_split, batch_size) as (model, where):
        return evaluate_timed(model, run.task, scored_split, rows=rows, **where)


def evaluate_selected(record: Path, result: Result, task: Task, paths: RunPaths) -> FinalEvaluation:
    """Evaluate the selected model of a trial on its open task, as at the end of a run.

    Raises:
        DataError: the model is absent or damaged, or the data differs.
    """
    model, where = _with_model(record, result, task, paths).prepare()
    count = result.effective_config.training.train_eval_examples
    options = evaluation_options(result, model)
    return evaluate_final(model, task, count, options=options, **where)


def evaluation_options(
    result: Result, model: nn.Module, changes: Mapping[str, Any] | None = None
) -> EvaluationOptions:
    """Return the options of a run's model in held-out evaluation; None: those of the run."""
    config = result.effective_config
    changes = config.evaluation_changes if changes is None else changes
    return EvaluationOptions(model, config.mechanism.name, changes)


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


def _run_dir(record: Path) -> Path:
    return record.parent / "work" / record.stem
