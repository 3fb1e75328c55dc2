"""Single runs: pretraining on a corpus, and finetuning a checkpoint on a task."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.arena import protocols
from longspan.arena.callbacks import GridCallback
from longspan.arena.experiment import Experiment
from longspan.arena.grid import arena, find_refusal, with_sources
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.base import Protocol
from longspan.arena.protocols.files import OWN, register_imports
from longspan.arena.protocols.scopes import check_limits, lift_limits
from longspan.attention import MECHANISMS
from longspan.config import Budget
from longspan.errors import OptionError, RunError, UnknownNameError
from longspan.results import BASELINE, Result
from longspan.tasks import TASKS, build
from longspan.tasks.documents.coverage import FROM_SCRATCH
from longspan.tasks.info import LANGUAGE_MODELING

if TYPE_CHECKING:
    from longspan.arena.saved_checkpoint import SavedCheckpoint

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunChoices:
    """Choices of a single run besides its task.

    Attributes:
        mechanism: mechanism; None: that of the checkpoint, or `full`.
        protocol: protocol of the recipe; None: that of the command's name.
        seed: seed.
        changes: fields to override, by dotted name, as for `grid`.
        budget: quantity to hold equal; None: that of the protocol.
        extend_positions: how learned positions of a checkpoint are extended if the task is longer:
            tile, keep or interpolate, as for `longify`; None: the task is no longer.
    """

    mechanism: str | None = None
    protocol: str | None = None
    seed: int = 0
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    budget: Budget | None = None
    extend_positions: str | None = None


def pretrain(
    corpus: str,
    paths: RunPaths,
    callback: GridCallback | None = None,
    *,
    start: str | Path | None = None,
    choices: RunChoices | None = None,
) -> Result:
    """Train a language model on a corpus, from random initialization or a checkpoint.

    It predicts masked tokens, or next ones if the corpus was imported with that objective. The same
    call resumes an interrupted run, and loads a finished one.

    Args:
        corpus: task of masked or next tokens, such as an imported corpus.
        paths: folders of results and data sets, and the device.
        callback: receives steps and evaluations.
        start: checkpoint to start from, as for `finetune`; None: random initialization.
        choices: mechanism, protocol, seed, changed fields and budget.

    Raises:
        UnknownNameError: there is no such corpus, mechanism, protocol or field.
        OptionError: the task is no corpus, or the checkpoint does not fit it.
        DataError: there is no checkpoint, or it is damaged.
        RunError: the run has failed.
    """
    register_imports(paths.cache)
    return _run(pretraining_experiment(corpus, start, choices or RunChoices()), paths, callback)


def finetune(
    checkpoint: str | Path,
    task: str,
    paths: RunPaths,
    callback: GridCallback | None = None,
    *,
    choices: RunChoices | None = None,
) -> Result:
    """Train a checkpoint on a task: its weights are loaded by name, the head is new.

    Architecture and mechanism are those of the checkpoint, and texts are encoded with its
    tokenizer. The same call resumes an interrupted run, and loads a finished one.

    Args:
        checkpoint: record or directory of a finished run; or a folder that `save_pretrained`,
            `longify` or `convert` has written.
        task: name of a task.
        paths: folders of results and data sets, and the device.
        callback: receives steps and evaluations.
        choices: mechanism, protocol, seed, changed fields and budget.

    Raises:
        UnknownNameError: there is no such task, mechanism, protocol or field.
        OptionError: the checkpoint does not fit the task.
        DataError: there is no checkpoint, or it is damaged.
        RunError: the run has failed.
    """
    register_imports(paths.cache)
    return _run(finetuning_experiment(checkpoint, task, choices or RunChoices()), paths, callback)


def pretraining_experiment(
    corpus: str, start: str | Path | None, choices: RunChoices
) -> Experiment:
    """Return the experiment of `pretrain`.

    Raises:
        UnknownNameError: see `pretrain`.
        OptionError: see `pretrain`.
        DataError: see `pretrain`.
    """
    protocol = protocols.get(choices.protocol or "pretrain")
    if corpus in TASKS and TASKS[corpus].info.head not in LANGUAGE_MODELING:
        raise OptionError(
            f"{corpus} has neither masked nor next tokens to predict; name an imported corpus, "
            "longspan data import corpus PATH"
        )
    if corpus not in TASKS and Path(corpus).exists():
        raise OptionError(
            f"{corpus} is no imported corpus; import it first: longspan data import corpus {corpus}"
        )
    try:
        protocol.check_task(corpus)
    except UnknownNameError as error:
        if corpus in TASKS or corpus in protocol.imports:
            raise
        raise UnknownNameError(
            f"{error}; texts become one: longspan data import corpus PATH --name {corpus}"
        ) from None
    if start is not None:
        return _from_checkpoint(protocol, start, corpus, choices)
    return _from_scratch(protocol, corpus, choices, BASELINE)


def choices_on(task: str, choices: RunChoices) -> RunChoices:
    """Return choices with the settings that are limited to the task by their field alone.

    Raises:
        UnknownNameError: see `longspan.arena.protocols.scopes`.
        OptionError: two settings contradict each other.
    """
    rows = protocols.get(choices.protocol or "finetune").row_names
    return dataclasses.replace(choices, changes=lift_limits(choices.changes, task, rows))


def finetuning_experiment(
    checkpoint: "str | Path | SavedCheckpoint | None", task: str, choices: RunChoices
) -> Experiment:
    """Return the experiment of `finetune`; None in place of a checkpoint: a new model.

    Raises:
        UnknownNameError: see `finetune`.
        OptionError: see `finetune`.
        DataError: see `finetune`.
    """
    protocol = protocols.get(choices.protocol or ("finetune" if checkpoint else OWN))
    protocol.check_task(task)
    if checkpoint is None:
        return _from_scratch(protocol, task, choices, FROM_SCRATCH)
    return _from_checkpoint(protocol, checkpoint, task, choices)


def _from_scratch(protocol: Protocol, task: str, choices: RunChoices, mechanism: str) -> Experiment:
    """Return an experiment of a new model, with a mechanism unless another one is named.

    Raises:
        OptionError: positions of a checkpoint are to be extended, or the model cannot be built.
    """
    if choices.extend_positions is not None:
        raise OptionError(
            "positions of a checkpoint are extended, and none is named; name one to start from, or "
            "omit --extend-positions"
        )
    name = choices.mechanism or mechanism
    experiment = protocol.row(task, name, choices.seed, choices.changes, choices.budget)
    _check(protocol, experiment, choices)
    return experiment


def _from_checkpoint(
    protocol: Protocol,
    checkpoint: "str | Path | SavedCheckpoint",
    task: str,
    choices: RunChoices,
) -> Experiment:
    """Return an experiment that starts from a checkpoint; given changes take precedence."""
    from longspan.arena.saved_checkpoint import open_checkpoint  # imports transformers

    source = open_checkpoint(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    name = choices.mechanism or source.mechanism
    published = build(task, dict(protocol.recipe(task).task_options))
    changes = protocol.changes(task, name, choices.changes)
    fitted = source.changes(published, choices.mechanism, choices.extend_positions)
    if "task.vocabulary" in changes:
        fitted.pop("start.tokenizer", None)  # the user has chosen another one
    elif (source.task, source.vocabulary) == (None, None) and hasattr(
        published.options, "vocabulary"
    ):
        logger.warning(
            "%s has no tokenizer, so its tokens are not known, and texts are read as %s; save the "
            "tokenizer beside its weights, or pass --set task.vocabulary=tokenizer:FOLDER",
            source.folder,
            published.options.vocabulary,
        )
    experiment = protocol.row(task, name, choices.seed, choices.changes, choices.budget, fitted)
    _check(protocol, experiment, choices, source.folder)
    _warn_of_lost_order(experiment, source)
    if "task.length" in fitted.keys() - changes.keys() and not published.is_own:
        logger.info(
            "inputs have up to %d tokens, the positions of the checkpoint; the %d of the protocol "
            "need --extend-positions tile --set task.length=%d",
            fitted["task.length"],
            published.length,
            published.length,
        )
    return dataclasses.replace(experiment, checkpoint=source.folder)


def _warn_of_lost_order(experiment: Experiment, source: "SavedCheckpoint") -> None:
    """Say so where only the mechanism of a checkpoint told positions apart, and is replaced."""
    model, name = experiment.config.model, experiment.mechanism
    has_order = model.position != "none" or model.is_decoder or model.short_convolution
    if has_order or source.config.is_decoder or MECHANISMS[name].traits.carries_positions:
        return
    if MECHANISMS[source.mechanism].traits.carries_positions:
        logger.warning(
            "%s of %s told the positions of tokens apart, and %s does not: the model does not know "
            "the order of its tokens; choose a mechanism that carries positions, or pretrain one "
            "with model.position",
            source.mechanism,
            source.folder,
            name,
        )


def _check(
    protocol: Protocol, experiment: Experiment, choices: RunChoices, folder: Path | None = None
) -> None:
    """Refuse changes that do not apply, and a model that cannot be built.

    Raises:
        OptionError: there are some.
    """
    check_limits(choices.changes, with_sources([experiment]), protocol.row_names)
    if reason := find_refusal(experiment):
        raise OptionError(reason.replace("longify CHECKPOINT", f"longify {folder}"))


def _run(experiment: Experiment, paths: RunPaths, callback: GridCallback | None) -> Result:
    runs = with_sources([experiment])
    results, failed = arena(runs, paths, callback or GridCallback(), retry_failed=True)
    if failed:
        raise RunError(failed[0].reason)
    return results[-1]
