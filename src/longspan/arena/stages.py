"""Stages of a run: the task and the model of each, what they cost, and whether they can follow.

A run without stages of its own has one.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from longspan.arena.experiment import Experiment
from longspan.arena.model import forward_flops, make_model, model_config
from longspan.attention.allocation import sizes_alone
from longspan.attention.other_options import OtherOptions
from longspan.config import RunConfig, TrainingConfig, flatten
from longspan.config.stages import stage_ends
from longspan.errors import LongspanError, OptionError
from longspan.models import LongspanPreTrainedModel
from longspan.models.attention_layer import build_mechanism
from longspan.models.config_checks import layered_refusals
from longspan.models.conversion.family import POSITIONS
from longspan.tasks import Task, build

if TYPE_CHECKING:
    from longspan.training import Stage

BACKWARD = 2  # FLOPs of the backward pass per FLOP of the forward pass
Shapes = dict[str, tuple[int, ...]]


def stages_of(config: RunConfig, task: Task) -> Iterator[tuple[RunConfig, Task]]:
    """Yield the configuration and the task of each stage of a run.

    Raises:
        OptionError: the options of a stage are invalid, or need other data than those of the run.
    """
    for stage in config.stages():
        yield stage, _stage_task(stage, task)


def _stage_task(config: RunConfig, task: Task) -> Task:
    """Return the task of a stage, open on the data of the run's task if that is open.

    Raises:
        OptionError: the options of the stage are invalid, or need other data than those of the run.
    """
    stage_task = build(config.task.name, config.task.options)
    if stage_task.options == task.options:
        return task
    stage_task.share_data(task)
    return stage_task


def make_stages(
    experiment: Experiment, task: Task, start: Callable[[LongspanPreTrainedModel], None]
) -> "list[Stage]":
    """Return the stages of an experiment as the training loop takes them.

    Args:
        experiment: experiment as it runs under its budget.
        task: its open task.
        start: loads the checkpoint that the run starts from into the model of the first stage.
    """
    from longspan.training import Stage

    keeps = [stage.keep_optimizer for stage in experiment.config.training.stages] or [True]

    def make(config: RunConfig, task: Task, is_first: bool) -> LongspanPreTrainedModel:
        model = make_model(dataclasses.replace(experiment, config=config), task)
        if not is_first:
            return model
        if config.training.word_vectors == "lsa":
            from longspan.arena.documents.word_vectors import set_word_vectors, training_texts

            set_word_vectors(model, training_texts(task), task.vocab_size, experiment.seed)
        start(model)
        return model

    return [
        Stage(
            task=stage_task,
            config=config.training,
            make_model=functools.partial(make, config, stage_task, number == 0),
            keep_optimizer=keeps[number],
            mechanism=experiment.mechanism,
            evaluation_changes=config.evaluation_changes,
        )
        for number, (config, stage_task) in enumerate(stages_of(experiment.config, task))
    ]


def training_flops(forward: int, batch_size: int) -> int:
    """Return the FLOPs of one training step from the forward FLOPs of one example."""
    return (1 + BACKWARD) * forward * batch_size


def _total_cost(training: TrainingConfig, costs: Sequence[float], steps: int) -> float:
    """Return the cost of so many steps from that of a step in each stage."""
    ends = stage_ends(training.stages, steps) or [steps]
    starts = [0, *ends[:-1]]
    return sum(cost * (y - x) for cost, x, y in zip(costs, starts, ends, strict=True))


def mean_cost(training: TrainingConfig, costs: Sequence[float], steps: int) -> float:
    """Return the mean cost of a step; see `_total_cost`."""
    return costs[0] if len(costs) == 1 else _total_cost(training, costs, steps) / steps


def most_steps(training: TrainingConfig, costs: Sequence[float], limit: float) -> int:
    """Return the largest number of steps that costs no more than a limit; 0: there is none.

    The steps of the recipe do not matter: few of them are divided in other shares than many.

    Args:
        training: recipe of the run.
        costs: cost of a training step in each stage.
        limit: largest cost of the training.
    """
    shares = [stage.steps for stage in training.stages] or [1]
    mean = sum(x * cost for x, cost in zip(shares, costs, strict=True)) / sum(shares)
    # Stages have whole steps, and so not exactly their shares.
    candidates = range(int(limit / mean) + len(shares), len(shares) - 1, -1)
    return next((x for x in candidates if _total_cost(training, costs, x) <= limit), 0)


def stage_seconds(experiment: Experiment, task: Task, **timing: Any) -> list[float]:
    """Time real training steps of every stage; return the seconds of a step of each.

    Args:
        experiment: experiment.
        task: its open task.
        **timing: further arguments of `measure_step_seconds`.
    """
    from longspan.training.timing import measure_step_seconds

    def measure(config: RunConfig, task: Task) -> float:
        model = make_model(dataclasses.replace(experiment, config=config), task)
        return measure_step_seconds(model, task, config.training, seed=experiment.seed, **timing)

    return [measure(*stage) for stage in stages_of(experiment.config, task)]


def mean_step_seconds(experiment: Experiment, task: Task, **timing: Any) -> float:
    """Return the mean seconds of a step; see `stage_seconds`."""
    training = experiment.config.training
    return mean_cost(training, stage_seconds(experiment, task, **timing), training.steps)


def stage_flops(config: RunConfig, task: Task) -> list[int]:
    """Return the FLOPs of a training step of each stage, every example at the stage's length."""
    return [
        training_flops(forward_flops(x, y), x.training.batch_size)
        for x, y in stages_of(config, task)
    ]


def mean_step_flops(config: RunConfig, task: Task) -> float:
    """Return the mean FLOPs of a training step, every example at the length of its stage."""
    return mean_cost(config.training, stage_flops(config, task), config.training.steps)


def check_stages(config: RunConfig, task: Task) -> None:
    """Refuse stages whose model cannot be built, or cannot take over the weights before it.

    The end of a run shows that late, after all stages before it.

    Args:
        config: configuration of the run.
        task: its task, which need not be open.

    Raises:
        OptionError: the message names the stage.
    """
    stages = config.stages()
    if len(stages) == 1:
        return
    shapes = [_shapes(number, stage, task) for number, stage in enumerate(stages, 1)]
    for number, (before, after) in enumerate(itertools.pairwise(shapes), 2):
        different = sorted(x for x in before.keys() | after.keys() if before.get(x) != after.get(x))
        if different:
            values = [flatten(stage) for stage in stages[number - 2 : number]]
            fields = [
                name
                for name, value in values[1].items()
                if name.startswith(("task.", "mechanism.")) and value != values[0].get(name)
            ]
            raise OptionError(
                f"stage {number} has other weights than the one before it, such as {different[0]} "
                f"of {config.mechanism.name}: {_text(after, different[0])}, not "
                f"{_text(before, different[0])}; the stages differ in {', '.join(fields)}. Keep "
                "what decides shapes, or choose a mechanism whose weights depend on no length"
            )


def check_evaluations(config: RunConfig, task: Task) -> None:
    """Refuse options that the evaluations of a stage cannot have.

    Args:
        config: configuration of the run.
        task: its task, which need not be open.

    Raises:
        OptionError: a value is invalid, a list has not one value for each layer, or an option
            changes a parameter or a buffer.
        UnknownNameError: the mechanism has no such option.
    """
    for stage, stage_task in stages_of(config, task):
        if not (changes := stage.evaluation_changes):
            continue
        model = model_config(stage, stage_task)
        if reasons := layered_refusals(stage.mechanism.name, changes, model.num_hidden_layers):
            raise OptionError(f"evaluation: {'; '.join(reasons)}")
        OtherOptions(build_mechanism(model, layer=0), changes)


def check_goal(config: RunConfig, task: Task) -> None:
    """Refuse a goal that no score on validation reaches, or that every one does.

    Args:
        config: configuration of the run.
        task: its task, which need not be open.

    Raises:
        OptionError: the message names the metric and its values.
    """
    goal, metric = config.training.stop_at, task.selection_metrics[0]
    if goal is None or metric.lowest <= goal <= metric.highest:
        return
    bounds = [f"at least {metric.lowest:g}"] if math.isfinite(metric.lowest) else []
    bounds += [f"at most {metric.highest:g}"] if math.isfinite(metric.highest) else []
    raise OptionError(
        f"training.stop_at is a score of {metric.name} on {task.info.name}, which is "
        f"{' and '.join(bounds)}, got {goal:g}; set {task.info.name}.training.stop_at to another "
        "value, or to none"
    )


def _shapes(number: int, stage: RunConfig, task: Task) -> Shapes:
    """Return the shapes of the parameters of a stage but the positions, which a stage extends.

    Raises:
        OptionError: the model cannot be built.
    """
    try:
        stage_task = _stage_task(stage, task)
        with sizes_alone():
            model = stage_task.head(model_config(stage, stage_task))
    except LongspanError as error:
        raise OptionError(f"stage {number}: {error}") from None
    parameters = model.named_parameters()
    return {name: tuple(x.shape) for name, x in parameters if not name.endswith(POSITIONS)}


def _text(shapes: Shapes, name: str) -> str:
    return str(shapes[name]) if name in shapes else "none"
