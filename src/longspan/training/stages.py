"""Stages of a training: where each begins and ends, and how it takes over from the one before."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.config import TrainingConfig
from longspan.errors import OptionError, RunError
from longspan.models import LongspanPreTrainedModel
from longspan.tasks import Task
from longspan.training.checkpoint import Checkpoints
from longspan.training.progress import Progress
from longspan.training.schedule import scheduled_steps
from longspan.training.stage_weights import load_checkpoint

_SEED_STRIDE = 2**32  # between the orders of batches in the stages of one seed
_EXTENSION = "tile"  # of learned positions to the longer inputs of a stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a training.

    Attributes:
        task: open task.
        config: recipe of the stage, with its own number of steps.
        make_model: returns the model of the stage with fresh weights, which those at the end of
            the stage before, or a checkpoint, replace.
        keep_optimizer: whether the moments of the optimizer are kept from the stage before.
        mechanism: name of the mechanism of `evaluation_changes`.
        evaluation_changes: options of the mechanism in held-out evaluation that differ from those
            of the model.
    """

    task: Task
    config: TrainingConfig
    make_model: Callable[[], PreTrainedModel]
    keep_optimizer: bool = True
    mechanism: str = ""
    evaluation_changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def stage_steps(stages: Sequence[Stage], number: int) -> tuple[int, int]:
    """Return the step of the run before a stage, and that at its end."""
    first = sum(stage.config.steps for stage in stages[:number])
    return first, first + stages[number].config.steps


def stage_schedule(stages: Sequence[Stage], number: int) -> tuple[TrainingConfig, int]:
    """Return the recipe of a stage's learning rates, and the step of the run that is its step 0."""
    first, total = stage_steps(stages, number)[0], sum(x.config.steps for x in stages)
    return scheduled_steps(stages[number].config, first, total)


def stage_seed(seed: int, number: int) -> int:
    """Return the seed of the order of batches: that of the run in the first stage."""
    return seed + number * _SEED_STRIDE


def first_stage(checkpoints: Checkpoints, stages: Sequence[Stage]) -> int:
    """Return the number of the stage that a run begins with or resumes in.

    Raises:
        RunError: the checkpoint is of a later stage than there are, or cannot be read.
    """
    checkpoints.tidy()
    if not checkpoints.exists():
        return 0
    progress = checkpoints.peek()
    if progress.stage >= len(stages):
        raise RunError(
            f"the checkpoint in {checkpoints.folder} is of stage {progress.stage + 1}, the run has "
            f"{len(stages)}; remove the folder to start the run over"
        )
    is_over = progress.step >= stage_steps(stages, progress.stage)[1]
    return min(progress.stage + is_over, len(stages) - 1)


def load_stage_before(checkpoints: Checkpoints, model: PreTrainedModel, number: int) -> None:
    """Load the weights at the end of the stage before into the model of a new stage.

    Learned positions are repeated for longer inputs, and buffers of another shape are random.

    Args:
        checkpoints: checkpoints of the run.
        model: model of the new stage, before it is wrapped.
        number: number of the new stage.

    Raises:
        OptionError: a weight has another shape than in the stage before.
    """
    buffers = {name for name, _ in model.named_buffers()}
    try:
        record = load_checkpoint(
            cast(LongspanPreTrainedModel, model),
            checkpoints.last(),
            extend_positions=_EXTENSION,
            is_same_task=True,
        )
    except OptionError as error:
        reason = str(error)
    else:
        other = sorted({*record.new, *record.dropped, *record.started} - buffers)
        reason = f"such as {other[0]}" if other else ""
    if reason:
        raise OptionError(
            f"stage {number + 1} has other weights than the one before it ({reason}); change "
            "options that decide no shape, such as windows"
        )


def begin_stage(
    checkpoints: Checkpoints, optimizer: torch.optim.Optimizer, stage: Stage, number: int
) -> Progress:
    """Load the moments at the end of the stage before; return the progress of the run.

    The best checkpoint is that of the new stage alone, since scores of other lengths and windows
    are not comparable with it.

    Args:
        checkpoints: checkpoints of the run.
        optimizer: optimizer of the new stage.
        stage: new stage.
        number: its number.
    """
    shapes = [x.shape for group in optimizer.param_groups for x in group["params"]]
    progress = checkpoints.load_state(
        optimizer, lambda tensors: _keep_moments(tensors, shapes if stage.keep_optimizer else [])
    )
    return dataclasses.replace(
        progress,
        stage=number,
        best=None,
        best_loss=None,
        best_step=None,
        window_loss=0.0,
        window_steps=0,
        window_statistics={},
    )


def _keep_moments(tensors: dict[str, Tensor], shapes: Sequence[torch.Size]) -> None:
    """Remove what a new stage does not continue: moments of other shapes, and states of streams.

    A parameter has all of its moments, or none.

    Args:
        tensors: tensors of a checkpoint by name, moments as those of `flatten_optimizer_state`.
        shapes: shapes of the parameters; empty: no moments are kept.
    """

    def fits(index: str) -> bool:
        return (
            index.isdigit()
            and int(index) < len(shapes)
            and tensors[f"{index}.exp_avg_sq"].shape == shapes[int(index)]
        )

    indices = {index for index in {name.partition(".")[0] for name in tensors} if fits(index)}
    for name in list(tensors):
        if name.partition(".")[0] not in indices:
            del tensors[name]
