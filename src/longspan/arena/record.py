"""Construction of records from finished and failed runs."""

import datetime
import functools
import importlib.metadata
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any, Literal

import torch

from longspan import __version__
from longspan.arena.budget_resolution import apply_budget
from longspan.arena.experiment import Experiment
from longspan.arena.model import forward_flops, full_num_parameters
from longspan.attention import Attention
from longspan.models import LongspanPreTrainedModel, parameters
from longspan.results import Failure, ResolvedBudget, Result, Slice, pack_scores
from longspan.tasks import Task
from longspan.tasks.base import Split
from longspan.training import TrainingOutcome
from longspan.training.evaluate import Evaluation

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
DTYPES = {"no": "float32", "bf16": "bfloat16 mixed", "fp16": "float16 mixed"}


def make_result(
    experiment: Experiment,
    task: Task,
    model: LongspanPreTrainedModel,
    outcome: TrainingOutcome,
    resolved: ResolvedBudget | None = None,
) -> Result:
    """Return the record of a finished run.

    Args:
        experiment: experiment with the requested configuration.
        task: open task.
        model: trained model.
        outcome: outcome of `fit`.
        resolved: changes of the configuration by its budget.
    """
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    config, tested = apply_budget(experiment, resolved).config, outcome.test
    return Result(
        **_identity(experiment, device_name(outcome.device)),
        data_source=task.source,
        data_checksum=task.checksum,
        metric=task.metrics[0].name,
        chance=task.chance,
        selected_on="test" if task.validation_is_test else "validation",
        selected_step=outcome.best_step,
        resolved_budget=resolved,
        tuning=None,
        backend_used=str(attentions[0].backend_used),
        num_parameters=parameters(model),
        full_num_parameters=full_num_parameters(config, task),
        flops=forward_flops(config, task),
        attended_pairs=_attended_pairs(attentions, task.length),
        length=task.length,
        scores=outcome.scores,
        example_scores=pack_scores(task.metrics[0].name, tested.statistics) if tested else None,
        slices=score_slices(task, "test", tested) if tested else {},
        alarms=outcome.alarms,
        steps=outcome.steps,
        curve=outcome.curve,
        seconds=outcome.seconds,
        data_wait_seconds=outcome.data_wait_seconds,
        tokens_per_second=outcome.tokens / outcome.seconds,
        peak_memory=outcome.peak_memory,
        world_size=outcome.world_size,
        parallelism=outcome.parallelism,
        dtype=DTYPES[config.training.precision],
    )


def make_failure(
    experiment: Experiment,
    kind: Literal["memory", "diverged", "died"],
    reason: str,
    step: int | None,
    device: str,
) -> Failure:
    """Return the record of a failed run.

    Args:
        experiment: experiment that failed.
        kind: kind of failure; "died": the process exited without an error.
        reason: message with the remedy.
        step: last known step.
        device: device, as `device_name` returns it.
    """
    return Failure(**_identity(experiment, device), kind=kind, reason=reason, step=step)


def _identity(experiment: Experiment, device: str) -> dict[str, Any]:
    """Return the fields that results and failures share."""
    return {
        "protocol": experiment.protocol,
        "config": experiment.config,
        "overrides": experiment.overrides,
        "seed": experiment.seed,
        "config_hash": experiment.hash,
        "device": device,
        "versions": versions(),
        "git_commit": git_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


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


def _attended_pairs(attentions: list[Attention], length: int) -> int | None:
    """Return query-key pairs per head, averaged over heads and layers."""
    means = []
    for attention in attentions:
        pairs = attention.pairs(length)
        if pairs is None:
            return None
        means.append(statistics.fmean(pairs) if isinstance(pairs, tuple) else pairs)
    return round(statistics.fmean(means))


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"longspan": __version__, "python": platform.python_version(), **found}


def device_name(device: str) -> str:
    """Return the name of a torch device for records."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


@functools.cache
def git_commit() -> str | None:
    """Return the commit of the library's working tree, marked if dirty; None outside one."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", str(Path(__file__))],
            cwd=here,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() if tracked.returncode == 0 else None
