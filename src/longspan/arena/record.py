"""Construction of records from finished runs."""

import statistics
from typing import Any

from torch import nn

from longspan.arena.budget_resolution import apply_budget
from longspan.arena.decoding_state import measure_state
from longspan.arena.experiment import Experiment
from longspan.arena.model import forward_flops, full_num_parameters
from longspan.arena.provenance import device_name, run_identity
from longspan.attention import MECHANISMS, Attention
from longspan.results import (
    ExampleScores,
    ResolvedBudget,
    Result,
    Slice,
    StartRecord,
    pack_scores,
)
from longspan.tasks import Task
from longspan.tasks.base import HELD_OUT, Split
from longspan.training import TrainingOutcome
from longspan.training.evaluate import Evaluation

DTYPES = {"no": "float32", "bf16": "bfloat16 mixed", "fp16": "float16 mixed"}


def make_result(
    experiment: Experiment,
    task: Task,
    outcome: TrainingOutcome,
    resolved: ResolvedBudget | None = None,
    start: StartRecord | None = None,
) -> Result:
    """Return the record of a finished run.

    Args:
        experiment: experiment with the requested configuration.
        task: open task.
        outcome: outcome of `fit`.
        resolved: changes of the configuration by its budget.
        start: checkpoint that the model started from.
    """
    config, final = apply_budget(experiment, resolved).config, outcome.final
    model, metric = outcome.network, task.metrics[0].name
    return Result(
        **run_identity(experiment, device_name(outcome.device)),
        **_data(task),
        metric=metric,
        selected_step=outcome.best_step,
        resolved_budget=resolved,
        tuning=None,
        family=MECHANISMS[experiment.mechanism].traits.family,
        backend_used=_backend_used(model),
        num_parameters=model.num_parameters(only_trainable=True),
        full_num_parameters=full_num_parameters(config, task),
        flops=forward_flops(config, task),
        attended_pairs=attended_pairs(model, task.length),
        scores=outcome.scores,
        rules={x: task.rule_scores(x) for x in HELD_OUT if x in outcome.scores},
        example_scores=pack_test_scores(task, final.test) if final else None,
        slices=score_slices(task, "test", final.test) if final else {},
        alarms=outcome.alarms,
        steps=outcome.steps,
        curve=outcome.curve,
        seconds=outcome.seconds,
        data_wait_seconds=outcome.data_wait_seconds,
        tokens_per_second=outcome.tokens / outcome.seconds,
        peak_memory=outcome.peak_memory,
        inference=final.inference if final else None,
        world_size=outcome.world_size,
        parallelism=outcome.parallelism,
        dtype=DTYPES[config.training.precision],
        start=start,
        decoding_state=measure_state(model, task, config.training.precision),
    )


def _data(task: Task) -> dict[str, Any]:
    return {
        "data_source": task.source,
        "data_checksum": task.checksum,
        "chance": task.chance,
        "length": task.length,
        "selected_on": "test" if task.validation_is_test else "validation",
    }


def pack_test_scores(task: Task, scored: Evaluation) -> ExampleScores:
    """Return the statistics of the main metric on test, summed over the task's units."""
    metric = task.metrics[0].name
    return pack_scores(metric, scored.statistics, task.units("test"), task.unit_name("test"))


def score_slices(task: Task, split: Split, scored: Evaluation) -> dict[str, list[Slice]]:
    """Return the main metric by group of examples; groups without a target are left out."""
    metric = task.metrics[0]
    return {
        grouping.name: [
            Slice(
                label=label,
                value=metric.aggregate(scored.statistics[rows]),
                num_targets=int(scored.num_targets[rows].sum()),
            )
            for number, label in enumerate(grouping.labels)
            if (rows := grouping.group == number).any()
        ]
        for grouping in task.groupings(split)
    }


def attended_pairs(model: nn.Module, length: int) -> int | None:
    """Return query-key pairs per head, averaged over heads and layers; None: not defined."""
    means = []
    for attention in _attentions(model):
        pairs = attention.pairs(length)
        if pairs is None:
            return None
        means.append(statistics.fmean(pairs) if isinstance(pairs, tuple) else pairs)
    return round(statistics.fmean(means)) if means else 0


def _backend_used(model: nn.Module) -> str:
    """Return the backend of the first layer; "none" for a model without attention."""
    attentions = _attentions(model)
    return str(attentions[0].backend_used) if attentions else "none"


def _attentions(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]
