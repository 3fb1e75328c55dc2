"""Start of a run from a checkpoint: where it is, and whether it may be used."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from longspan.arena.checkpoint_folder import trained_task, weights_sha256
from longspan.arena.experiment import Experiment
from longspan.arena.lock import hold_lock
from longspan.arena.paths import RunPaths
from longspan.arena.resume import find_source_failure, find_source_record
from longspan.arena.run_state import read_state, write_state
from longspan.arena.start_weights import load_start
from longspan.config import StartConfig, TaskConfig
from longspan.data.word_pieces import has_word_pieces, load_word_pieces
from longspan.errors import OptionError, RunError, SourceFailedError
from longspan.models import LongspanPreTrainedModel
from longspan.results import StartRecord, load_result
from longspan.tasks import TASKS, Task, build
from longspan.tasks._encoded_text import EncodedTextTask
from longspan.tasks.vocabulary import describe_other_symbols, describe_other_tokens
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_pointer import saved_step

_EXPORT = (
    "the checkpoint's vocabulary was learned from its texts: write it as a tokenizer beside the "
    "weights with longspan export RECORD --output FOLDER, and start from FOLDER"
)


class Source(NamedTuple):
    """Checkpoint that a run starts from.

    Attributes:
        folder: folder with the configuration and the weights.
        name: folder as a record names it.
        sha256: of the weights.
        task: task that a run trained it on; None: not known.
    """

    folder: Path
    name: str
    sha256: str
    task: TaskConfig | None


def find_start(experiment: Experiment, task: Task, paths: RunPaths) -> Source | StartRecord | None:
    """Return what an experiment starts from, checked against its open task.

    A run that is interrupted keeps the record of its start: its own weights are loaded later. None:
    weights are drawn.

    Raises:
        BusyError: another process trains the run that this one starts from.
        SourceFailedError: that run has failed.
        RunError: that run has not finished, its model is gone, or a resumed run would start from
            other weights than it did.
        OptionError: token ids of the task are other tokens than those of the checkpoint.
        DataError: the checkpoint cannot be read.
    """
    if experiment.config.start is None:
        return None
    run_dir = paths.run_dir(experiment)
    state = read_state(run_dir)
    known = None if state is None else state.start
    if known is not None and saved_step(run_dir) is not None:
        return known
    source = find_source(experiment, paths)
    if known is not None and known.sha256 != source.sha256:
        raise RunError(
            f"{run_dir} started from other weights, {known.sha256[:12]}, than those of "
            f"{source.folder}, {source.sha256[:12]}; remove {run_dir} to start the run over"
        )
    _check_tokens(source, task, paths)
    return source


def start_model(
    model: LongspanPreTrainedModel,
    found: Source | StartRecord | None,
    config: StartConfig | None,
) -> StartRecord | None:
    """Load the weights that `find_start` found into a model; return the record of the start.

    Args:
        model: model to change.
        found: checkpoint; the record of an earlier start is returned as it is.
        config: start of the run's configuration.

    Raises:
        OptionError: the weights do not fit; the message lists the reasons.
        DataError: the checkpoint cannot be read.
    """
    if not isinstance(found, Source):
        return found
    return load_start(
        model,
        found.folder,
        name=found.name,
        sha256=found.sha256,
        extend_positions=None if config is None else config.extend_positions,
    )


def record_start(run_dir: Path, start: StartRecord | None) -> None:
    """Add a start to the state of a run directory."""
    state = read_state(run_dir)
    if state is not None and state.start != start:
        write_state(run_dir, dataclasses.replace(state, start=start))


def find_source(experiment: Experiment, paths: RunPaths) -> Source:
    """Return the checkpoint that an experiment starts from.

    Raises:
        BusyError: another process trains the run that it starts from.
        SourceFailedError: that run has failed.
        RunError: that run has not finished, its model is gone, or the given checkpoint has changed.
        DataError: the model is damaged.
    """
    start = experiment.config.start
    assert start is not None
    if start.checkpoint is not None:
        return _given(experiment, start.checkpoint)
    record = find_source_record(experiment, paths)
    if record is None:
        raise _missing(experiment, paths)
    best = Checkpoints(record.parent / "work" / record.stem).best()
    if best is None:
        raise RunError(f"{record} has no saved model beside it; run it again to start from it")
    name = best.relative_to(paths.source_folder).as_posix()
    return Source(best, name, weights_sha256(best), load_result(record).config.task)


def _missing(experiment: Experiment, paths: RunPaths) -> RunError:
    """Return the error for a source without a record.

    Raises:
        BusyError: another process trains it now.
    """
    start = experiment.config.start
    assert start is not None
    about = f"{experiment.name} on {experiment.task} starts from run {start.run} of {start.task}"
    if failure := find_source_failure(experiment, paths):
        return SourceFailedError(f"{about}, which failed: {failure.reason}")
    folder = paths.source_folder / experiment.protocol / str(start.task)
    for run_dir in (folder / "work").glob(f"*-{start.run}-{experiment.seed}"):
        with hold_lock(run_dir, "run"):
            pass
    return RunError(
        f"{about} with seed {experiment.seed}, which has no record in {folder}; run both with "
        f"longspan arena --protocol {experiment.protocol} --tasks {experiment.task}"
    )


def _given(experiment: Experiment, sha256: str) -> Source:
    """Return the given checkpoint, if its weights are those of the configuration."""
    folder = experiment.checkpoint
    if folder is None:
        raise RunError(
            f"{experiment.name} starts from a checkpoint with sha256 {sha256[:12]}, and no folder "
            "of it is known; name it"
        )
    if (found := weights_sha256(folder)) != sha256:
        raise RunError(
            f"the weights of {folder} have sha256 {found[:12]}, expected {sha256[:12]}; name the "
            "folder of the checkpoint that the configuration names"
        )
    return Source(folder, folder.as_posix(), sha256, trained_task(folder))


def _check_tokens(source: Source, task: Task, paths: RunPaths) -> None:
    """Refuse a run on a task whose token ids mean other tokens.

    Raises:
        OptionError: they do.
    """
    if task.input_features is not None or not _names_tokens(task):
        return
    reason, owner, remedy = None, "its tokenizer", "encode the task with the checkpoint's tokenizer"
    if has_word_pieces(source.folder):
        reason = describe_other_symbols(load_word_pieces(source.folder).symbols[1:], task)
    elif source.task is not None and source.task.name in TASKS:
        trained = build(source.task.name, source.task.options)
        is_learned = isinstance(trained, EncodedTextTask) and trained.has_learned_vocabulary
        if _names_tokens(trained) and trained.open_built(paths.cache):
            reason, owner = describe_other_tokens(trained, task), trained.info.name
        elif is_learned:
            reason, owner = f"its data set is not built in {paths.cache}", trained.info.name
        if is_learned:
            remedy = _EXPORT
    if reason is not None:
        raise OptionError(
            f"token ids of {task.info.name} are not those of {source.folder} ({owner}): {reason}; "
            f"{remedy}"
        )


def _names_tokens(task: Task) -> bool:
    """Return whether a task knows its tokens; others show the ids."""
    return type(task).ids_to_tokens is not Task.ids_to_tokens
