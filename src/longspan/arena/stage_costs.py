"""Costs of training over all stages of a run; those of a run without stages are of its one."""

from collections.abc import Callable

from longspan.arena.model import forward_flops
from longspan.arena.stage_tasks import stage_task
from longspan.config import RunConfig
from longspan.tasks import Task

BACKWARD = 2  # FLOPs of the backward pass per FLOP of the forward pass


def training_flops(forward: int, batch_size: int) -> int:
    """Return the FLOPs of one training step from the forward FLOPs of one example."""
    return (1 + BACKWARD) * forward * batch_size


def mean_over_stages(
    config: RunConfig, task: Task, measure: Callable[[RunConfig, Task], float]
) -> float:
    """Return the mean of a quantity of a training step, over the steps of all stages.

    Args:
        config: configuration of the run.
        task: its task.
        measure: returns the quantity from the configuration and the task of a stage.
    """
    stages = config.stages()
    if len(stages) == 1:
        return measure(stages[0], stage_task(stages[0], task))
    total = sum(x.training.steps * measure(x, stage_task(x, task)) for x in stages)
    return total / sum(x.training.steps for x in stages)


def mean_step_flops(config: RunConfig, task: Task) -> float:
    """Return the mean FLOPs of a training step, every example at the length of its stage."""
    return mean_over_stages(
        config, task, lambda x, own: training_flops(forward_flops(x, own), x.training.batch_size)
    )
