"""What is written down of a run that has ended, well or not."""

import dataclasses
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
from longspan.arena.experiment import Experiment
from longspan.arena.model import forward_flops, full_parameters
from longspan.attention import Attention, options_of
from longspan.files import to_json_types
from longspan.models import LongspanPreTrainedModel, parameters
from longspan.results import Failure, Result, Slice, pack
from longspan.tasks import TASKS, Task
from longspan.tasks.base import Split
from longspan.training import Outcome
from longspan.training.evaluate import Evaluation

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
DTYPES = {"no": "float32", "bf16": "bfloat16 mixed", "fp16": "float16 mixed"}


def result_of(
    experiment: Experiment, task: Task, model: LongspanPreTrainedModel, outcome: Outcome
) -> Result:
    """The record of a run that ended with a score."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    length, train, tested = task.length, experiment.train, outcome.test
    return Result(
        **_what(experiment),
        data_source=task.source,
        data_checksum=task.checksum,
        chance=task.chance,
        backend=str(attentions[0].ran),
        parameters=parameters(model),
        full_parameters=full_parameters(experiment, task),
        tuning=None,
        flops=forward_flops(experiment, task),
        attended_pairs=_attended_pairs(attentions, length),
        length=length,
        selection=_selection(experiment, task),
        selected_step=outcome.best_step,
        scores=outcome.scores,
        answers=pack(tested.right.tolist(), tested.asked.tolist()) if tested else None,
        slices=sliced(task, "test", tested) if tested else {},
        alarms=outcome.alarms,
        steps=outcome.steps,
        curve=outcome.curve,
        seconds=outcome.seconds,
        waiting=outcome.waiting,
        tokens_per_second=outcome.tokens / outcome.seconds,
        peak_memory=outcome.peak_memory,
        device=device_name(outcome.device),
        processes=outcome.processes,
        parallelism=outcome.parallelism,
        dtype=DTYPES[train.precision],
        **_whence(),
    )


def failure_of(
    experiment: Experiment,
    kind: Literal["memory", "diverged", "died"],
    reason: str,
    step: int | None,
    device: str,
) -> Failure:
    """The record of a run that ended without a score.

    Args:
        experiment: what was run.
        kind: what it ended of; "died": its process ended without a word.
        reason: in words, with what to change.
        step: the last one that is known of.
        device: where it ran, as `device_name` has it.
    """
    return Failure(
        **_what(experiment),
        kind=kind,
        reason=reason,
        step=step,
        device=device,
        **_whence(),
    )


def _what(experiment: Experiment) -> dict[str, Any]:
    """The fields that name a run, of a result and of a failure."""
    task = experiment.task
    return {
        "protocol": experiment.protocol,
        "overrides": dict(experiment.overrides),
        "task": task.name,
        "task_version": TASKS[task.name].info.version,
        "task_options": task.complete(),
        "mechanism": experiment.mechanism,
        "options": {**options_of(experiment.mechanism), **experiment.options},
        "model": dataclasses.asdict(experiment.model),
        "training": to_json_types(dataclasses.asdict(experiment.train)),
        "budget": experiment.budget.record(experiment.train.steps),
        "seed": experiment.seed,
        "config_hash": experiment.hash,
    }


def _whence() -> dict[str, Any]:
    """The fields that say when a record was made, and with which code."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _selection(experiment: Experiment, task: Task) -> str:
    """Which checkpoint was tested, and whether test itself chose it."""
    rule = experiment.train.selection
    return f"{rule} (validation is test)" if task.validation_is_test else rule


def sliced(task: Task, split: Split, scored: Evaluation) -> dict[str, list[Slice]]:
    """Scores of the groups of a split; a group without examples is left out."""
    return {
        grouping.name: [
            Slice(
                label=label,
                accuracy=int(scored.right[rows].sum()) / int(scored.asked[rows].sum()),
                examples=int(scored.asked[rows].sum()),
            )
            for number, label in enumerate(grouping.labels)
            if (rows := grouping.group == number).any()
        ]
        for grouping in task.groupings(split)
    }


def _attended_pairs(attentions: list[Attention], length: int) -> int | None:
    """Query-key pairs per head, averaged over heads and layers that differ."""
    means = []
    for attention in attentions:
        pairs = attention.pairs(length)
        if pairs is None:
            return None
        means.append(statistics.fmean(pairs) if isinstance(pairs, tuple) else pairs)
    return round(statistics.fmean(means))


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"longspan": __version__, "python": platform.python_version(), **found}


def device_name(device: str) -> str:
    """A device that torch names, as a record has it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


@functools.cache
def git_commit() -> str | None:
    """The commit of the library's working tree, or None outside one (marked when it is changed)."""
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
