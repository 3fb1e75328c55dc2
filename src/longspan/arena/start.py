"""Start of a run from a checkpoint: where it is, whether it may be used, and what it gives."""

from pathlib import Path

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.run_state import recorded_start
from longspan.arena.saved_checkpoint import SavedCheckpoint, open_checkpoint
from longspan.data.word_pieces import has_word_pieces, load_word_pieces
from longspan.errors import OptionError, RunError
from longspan.models import LongspanPreTrainedModel
from longspan.results import StartRecord
from longspan.tasks import TASKS, Task, build
from longspan.tasks.encoded_text import EncodedTextTask
from longspan.tasks.vocabulary import describe_other_symbols, describe_other_tokens
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_names import saved_step
from longspan.training.stage_weights import load_checkpoint

_BELOW_RUNS = 5  # parts of the path of a run's checkpoint: protocol, task, work, run, checkpoint
_EXPORT = (
    "the checkpoint's vocabulary was learned from its texts: write it as a tokenizer beside the "
    "weights with longspan export RECORD --output FOLDER, and start from FOLDER"
)


def find_start(experiment: Experiment, task: Task, paths: RunPaths) -> SavedCheckpoint | None:
    """Return the checkpoint that an experiment starts from, checked against its open task.

    None: random initialization, or the run's own checkpoint, since it was interrupted.

    Raises:
        RunError: the run to start from has no model, the named checkpoint has changed, or a resumed
            run would start from other weights than it did.
        OptionError: token ids of the task are other tokens than those of the checkpoint.
        DataError: the checkpoint cannot be read.
    """
    if experiment.config.start is None:
        return None
    run_dir = paths.run_dir(experiment)
    before = recorded_start(run_dir)
    if before is not None and saved_step(run_dir) is not None:
        return None
    checkpoint = find_checkpoint(experiment, paths)
    if before is not None and before.sha256 != checkpoint.sha256:
        raise RunError(
            f"{run_dir} started from other weights, {before.sha256[:12]}, than those of "
            f"{checkpoint.folder}, {checkpoint.sha256[:12]}; remove {run_dir} to start the run over"
        )
    _check_tokens(checkpoint, task, paths)
    return checkpoint


def load_start(
    model: LongspanPreTrainedModel, checkpoint: SavedCheckpoint, experiment: Experiment
) -> StartRecord:
    """Load the checkpoint that an experiment starts from into its model; return the record of it.

    Raises:
        OptionError: the weights do not fit; the message lists the reasons.
        DataError: the checkpoint cannot be read.
    """
    start, folder = experiment.config.start, checkpoint.folder
    assert start is not None
    # A record names a run below the folder of runs, which may be moved.
    source = folder if start.checkpoint is not None else Path(*folder.parts[-_BELOW_RUNS:])
    return load_checkpoint(
        model,
        folder,
        source=source.as_posix(),
        sha256=checkpoint.sha256,
        extend_positions=start.extend_positions,
    )


def find_checkpoint(experiment: Experiment, paths: RunPaths) -> SavedCheckpoint:
    """Return the checkpoint that an experiment starts from: of a run, or in a named folder.

    Raises:
        RunError: the run has no model, no folder is named, or its checkpoint has changed.
        DataError: the checkpoint cannot be read.
    """
    start, source, folder = experiment.config.start, experiment.source, experiment.checkpoint
    if source is not None:
        where = paths.for_sources()
        folder = Checkpoints(where.run_dir(source)).best()
        if folder is None:
            raise RunError(
                f"{where.record_file(source)} has no saved model beside it; run it again to start "
                "from it"
            )
    expected = None if start is None else start.checkpoint
    if folder is None:
        digest = f" with sha256 {expected[:12]}" if expected else ""
        raise RunError(
            f"{experiment.name} starts from a checkpoint{digest}, and no folder of it is known; "
            "name it"
        )
    checkpoint = open_checkpoint(folder)
    if expected not in (None, checkpoint.sha256):
        raise RunError(
            f"the weights of {folder} have sha256 {checkpoint.sha256[:12]}, expected "
            f"{expected[:12]}; name the folder of the checkpoint that the configuration names"
        )
    return checkpoint


def _check_tokens(checkpoint: SavedCheckpoint, task: Task, paths: RunPaths) -> None:
    """Refuse a run on a task whose token ids mean other tokens.

    Raises:
        OptionError: they do.
    """
    if task.input_features is not None or not _names_tokens(task):
        return
    reason, owner, remedy = None, "its tokenizer", "encode the task with the checkpoint's tokenizer"
    if has_word_pieces(checkpoint.folder):
        reason = describe_other_symbols(load_word_pieces(checkpoint.folder).symbols[1:], task)
    elif checkpoint.task is not None and checkpoint.task.name in TASKS:
        trained = build(checkpoint.task.name, checkpoint.task.options)
        is_learned = isinstance(trained, EncodedTextTask) and trained.has_learned_vocabulary
        if _names_tokens(trained) and trained.open_built(paths.cache):
            reason, owner = describe_other_tokens(trained, task), trained.info.name
        elif is_learned:
            reason, owner = f"its data set is not built in {paths.cache}", trained.info.name
        if is_learned:
            remedy = _EXPORT
    if reason is not None:
        raise OptionError(
            f"token ids of {task.info.name} are not those of {checkpoint.folder} ({owner}): "
            f"{reason}; {remedy}"
        )


def _names_tokens(task: Task) -> bool:
    """Return whether a task knows its tokens; others show the ids."""
    return type(task).ids_to_tokens is not Task.ids_to_tokens
