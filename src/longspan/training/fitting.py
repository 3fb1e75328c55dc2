"""Training of a model: in one stage, or in several that follow each other."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longspan.config import TrainingConfig
from longspan.config.training import Parallelism
from longspan.errors import OptionError
from longspan.tasks import Task
from longspan.training.callbacks import Callback
from longspan.training.checkpoint import Checkpoints
from longspan.training.distributed.group import current_group
from longspan.training.distributed.sharding import check_config
from longspan.training.final_evaluation import TrainingOutcome
from longspan.training.loop import StageTrainer
from longspan.training.stages import Stage, first_stage


def fit(
    model: PreTrainedModel,
    task: Task,
    config: TrainingConfig,
    *,
    seed: int,
    folder: Path,
    device: str | None = None,
    parallel: Parallelism | None = None,
    callback: Callback | None = None,
    test: bool = True,
) -> TrainingOutcome:
    """Train a model on an open task in one stage; see `fit_stages`.

    Raises:
        OptionError: the configuration has stages of its own, or as `fit_stages` says.
        DivergedError, RunError, SystemExit: as `fit_stages` says.
    """
    if config.stages:
        raise OptionError(
            f"fit trains one stage, and the configuration has {len(config.stages)}; call "
            "fit_stages, or set stages=()"
        )
    stage = Stage(task=task, config=config, make_model=lambda: model)
    return fit_stages(
        [stage],
        seed=seed,
        folder=folder,
        device=device,
        parallel=parallel,
        callback=callback,
        test=test,
    )


def fit_stages(
    stages: Sequence[Stage],
    *,
    seed: int,
    folder: Path,
    device: str | None = None,
    parallel: Parallelism | None = None,
    callback: Callback | None = None,
    test: bool = True,
) -> TrainingOutcome:
    """Train a model in stages, resuming from the checkpoint in `folder` if there is one.

    A stage begins with the weights at the end of the one before it. The last one selects the
    checkpoint, on its own task: `train` trains, `validation` selects, `test` is scored once at the
    end.

    Args:
        stages: task, recipe and model of each stage.
        seed: seed of batch order and dropout.
        folder: folder for checkpoints and TensorBoard files of this run alone.
        device: "cpu" to ignore a CUDA device, None to use it.
        parallel: parallelism of the processes that a launcher has started (see
            `distributed.PARALLELISM`); each of them calls `fit`. Scores, curve and peak memory are
            equal in all; seconds and alarms about them are those of each process. "fsdp" replaces
            the parameters of the model by shards.
        callback: receives steps, evaluations and alarms in the main process.
        test: whether to score `test`; trials of a search are scored on `validation` alone.

    Raises:
        OptionError: the device does not support the precision, the processes cannot share the
            batch, or a stage has weights of another shape than the one before it.
        DivergedError: the loss is not finite.
        RunError: a checkpoint cannot be read or written.
        SystemExit: one of several processes fails alone, or loses the others.
    """
    group = current_group(device, parallel)
    for stage in stages:
        check_config(stage.config, group)
    # Named devices: without them torch warns where there are several.
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices), group.exit_on_local_error():
        torch.manual_seed(group.rank_seed(seed))
        checkpoints = Checkpoints(folder, group)
        number = first_stage(checkpoints, stages)
        while True:
            trainer = StageTrainer(stages, number, checkpoints, seed, device, callback)
            with trainer.logging():
                trainer.train()
                if number == len(stages) - 1:
                    return trainer.outcome(test)
            number += 1
