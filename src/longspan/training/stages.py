"""Stages of a training: where each begins and ends, and how it takes over from the one before."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.config import TrainingConfig
from longspan.errors import OptionError, RunError
from longspan.models import LongspanConfig
from longspan.models.conversion.family import POSITIONS
from longspan.models.conversion.positions import stretch_own_table
from longspan.tasks import Task
from longspan.training.checkpoint import Checkpoints
from longspan.training.progress import Progress
from longspan.training.schedule import scheduled_steps

SEED_STRIDE = 2**32  # between the orders of batches in the stages of one seed
EXTENSION = "tile"  # of learned positions to the longer inputs of a stage


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
    return seed + number * SEED_STRIDE


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


def begin_stage(
    checkpoints: Checkpoints,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    stage: Stage,
    number: int,
) -> Progress:
    """Load the end of the stage before into a new stage; return the progress of the run.

    Learned positions are repeated for longer inputs, and buffers of another shape are drawn. The
    best checkpoint is that of the new stage alone, since scores of other lengths and windows are
    not comparable with it.

    Args:
        checkpoints: checkpoints of the run.
        model: model of the new stage.
        optimizer: its optimizer.
        stage: new stage.
        number: its number.

    Raises:
        OptionError: a weight has another shape than in the stage before.
    """
    adapt = _Adaptation(model, number)
    progress, _ = checkpoints.load(
        model,
        optimizer,
        adapt_weights=adapt.weights,
        restore_further=lambda tensors: adapt.moments(tensors, optimizer, stage.keep_optimizer),
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


class _Adaptation:
    """Changes of the tensors of a checkpoint for the model of the next stage."""

    def __init__(self, model: PreTrainedModel, number: int):
        self.model, self.number = model, number
        self.table = f"{model.base_model_prefix}.{POSITIONS}"

    def weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights with positions and buffers for the inputs of the new stage.

        Buffers are drawn, not trained, such as hashes and random blocks: where the new inputs need
        another shape, they are those of the new model.
        """
        state = self.model.state_dict()
        if self.table in weights and self.table in state:
            table, rows = weights[self.table], len(state[self.table])
            if len(table) < rows:
                config = cast(LongspanConfig, self.model.config)
                length = config.max_position_embeddings
                weights[self.table], _ = stretch_own_table(config, length, EXTENSION, table)
            else:
                weights[self.table] = table[:rows]
        for name, _ in self.model.named_buffers():
            if name in weights and name in state and weights[name].shape != state[name].shape:
                weights[name] = state[name]
        wrong = [x for x in weights if x in state and weights[x].shape != state[x].shape]
        if wrong or weights.keys() - state.keys():
            first = min(wrong or weights.keys() - state.keys())
            raise OptionError(
                f"stage {self.number + 1} has other weights than the one before it, such as "
                f"{first}; change options that decide no shape, such as windows"
            )
        return weights

    def moments(
        self, tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer, keep: bool
    ) -> None:
        """Remove what the new stage does not continue: moments of other shapes, and states."""
        shapes = [x.shape for group in optimizer.param_groups for x in group["params"]]
        for name in list(tensors):
            index, _, key = name.partition(".")
            is_moment = index.isdigit()
            fits = is_moment and (key == "step" or tensors[name].shape == shapes[int(index)])
            if not (keep and fits):
                del tensors[name]
        # A parameter has all of its moments, or none.
        whole = {x.partition(".")[0] for x in tensors if x.endswith("exp_avg_sq")}
        for name in list(tensors):
            if name.partition(".")[0] not in whole:
                del tensors[name]
