"""The training loop: step, evaluate, checkpoint, continue.

Batch number n depends on (seed, n) alone and dropout's random state is in the checkpoint, so a
run that was killed and started again ends with the metrics of one that was not. Several processes
train as one would: each gradient is that of the whole batch, each number that of all of them.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longspan.attention import Attention
from longspan.errors import DivergedError
from longspan.memory import PeakMemory
from longspan.results import Alarm, Point, Score
from longspan.tasks.base import Batch, Task
from longspan.training.alarms import Sight, Warmed, alarms
from longspan.training.callbacks import Callback
from longspan.training.checkpoint import Checkpoints, Progress
from longspan.training.config import Parallel, TrainConfig
from longspan.training.distributed.group import (
    ProcessGroup,
    RowShard,
    current_group,
    make_accelerator,
)
from longspan.training.distributed.sharding import check_config, wrap_model
from longspan.training.evaluate import Evaluation, answered, scored, to_device
from longspan.training.prefetch import prefetch_batches
from longspan.training.schedule import compute_learning_rate

QUEUEING = ("cuda",)  # devices that still work when a call has returned
SEEDS = 2**43  # of redraws: times the million by which mechanisms tell layers apart, below 2^63


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run ended with; scores are of the selected checkpoint."""

    scores: dict[str, Score]
    test: Evaluation | None  # None: nobody was to look at test
    curve: list[Point]
    alarms: list[Alarm]
    steps: int
    best_step: int | None
    seconds: float
    waiting: float  # of the seconds, those spent waiting for the next batch
    tokens: int
    peak_memory: int | None
    device: str
    processes: int
    parallelism: str  # "none", or one of `distributed.PARALLELISM`
    model: Path  # folder of the selected model


def fit(
    model: PreTrainedModel,
    task: Task,
    config: TrainConfig,
    *,
    seed: int,
    folder: Path,
    device: str | None = None,
    parallel: Parallel | None = None,
    callback: Callback | None = None,
    test: bool = True,
) -> Outcome:
    """Train a model on an open task, continuing from the checkpoint in `folder` if there is one.

    Args:
        model: with fresh weights; replaced by the checkpoint's when there is one.
        task: open; `train` is trained on, `validation` selects, `test` is scored once at the end.
        config: the recipe.
        seed: of the order of examples and of dropout.
        folder: for checkpoints and TensorBoard files of this run alone.
        device: "cpu" to stay off a CUDA device, None to use the one that is there.
        parallel: how several processes work together, when a launcher has started several (see
            `distributed.PARALLELISM`); each of them calls `fit`. Scores, curve and peak memory are the
            same for all; seconds and alarms about them are each one's own. With "fsdp" the
            parameters of `model` are replaced by shards.
        callback: told about steps and evaluations, in the main process.
        test: whether to look at `test`; a trial of a grid is scored on `validation` alone.

    Raises:
        OptionError: the device cannot train in the precision of the recipe, or the processes
            cannot share it out.
        DivergedError: the loss is not finite.
        RunError: a checkpoint cannot be read or written.
        SystemExit: one of several processes fails alone, or loses the others.
    """
    group = current_group(device, parallel)
    check_config(config, group)
    # All devices by number: without, torch warns where there are several.
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices), group.exit_on_local_error():
        torch.manual_seed(group.rank_seed(seed))
        return _Run(model, task, config, seed, folder, device, callback, group).complete(test)


class _Run:
    """One run from its (re)start to its outcome."""

    def __init__(self, model, task, config, seed, folder, device, callback, group):
        self.task, self.config, self.seed = task, config, seed
        self.group: ProcessGroup = group
        self.callback = callback if group.is_main else None
        self.accelerator = make_accelerator(config.precision, folder, device)
        self.device = self.accelerator.device
        if config.gradient_checkpointing:
            model.activation_checkpointing_enable()
        self.bare, self.model = model, wrap_model(model, self.accelerator, group)
        # Before what a checkpoint brings back: it is of the run as what steps make is.
        self.memory = PeakMemory(self.device.type)
        self.memory.start()
        # After the model was spread: it may have other parameters now.
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            foreach=True,
        )
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.checkpoints = Checkpoints(folder, group)
        self.progress, self.best = Progress(), None
        self.checkpoints.tidy()
        if self.checkpoints.exists():
            self.progress, self.best = self.checkpoints.load(model, optimizer)
        scaler = self.accelerator.scaler
        if scaler is not None and self.progress.scaler is not None:
            scaler.load_state_dict(self.progress.scaler)
        self.window_loss = torch.tensor(self.progress.window_loss, device=self.device)
        self.window_hits = torch.tensor(self.progress.window_hits, device=self.device)
        self.window_steps = self.progress.window_steps
        self.window_scored = self.progress.window_scored

    def complete(self, test: bool) -> Outcome:
        """Train to the last step, then score the selected checkpoint."""
        self.accelerator.init_trackers("tensorboard")
        try:
            self.model.train()
            with contextlib.closing(prefetch_batches(self._batches(), self.device)) as batches:
                while self.progress.step < self.config.steps:
                    self._step(batches)
                    self._evaluate_and_save()
            return self._outcome(test)
        finally:
            # Not `end_training`, which parts the processes: they may have more runs to do.
            for tracker in self.accelerator.trackers:
                tracker.finish()

    def _batches(self) -> Iterator[Batch]:
        return self.task.batches(
            "train", batch=self.config.batch, seed=self.seed, start=self.progress.step
        )

    def _step(self, batches: Iterator[Batch]) -> None:
        started = time.perf_counter()
        batch = next(batches)
        progress, config = self.progress, self.config
        progress.waiting += time.perf_counter() - started
        for group in self.optimizer.param_groups:
            group["lr"] = compute_learning_rate(config, progress.step)
        inputs = to_device(batch, self.device)
        targets = batch.targets.to(self.device, non_blocking=True)
        sums, count = torch.zeros(2, device=self.device), scored(batch.targets)
        parts = self.group.shard_rows(len(targets), config.accumulate)
        for part in parts:
            last = part is parts[-1]
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                sums += self._worked(inputs, targets, part, count)
        loss, hits = self.group.all_reduce_sum(sums)
        if config.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.window_loss += loss
        self.window_hits += hits.long()
        self.window_steps += 1
        self.window_scored += count
        progress.step += 1
        self._redraw()
        progress.tokens += int(batch.key_mask.sum())
        if batch.key_mask_b is not None:
            progress.tokens += int(batch.key_mask_b.sum())
        progress.seconds += time.perf_counter() - started
        if self.callback is not None:
            # It may read the loss, and so wait for the step.
            with self._waiting():
                self.callback.on_step(progress.step, loss, progress.tokens, progress.seconds)

    def _worked(
        self, inputs: dict[str, torch.Tensor], targets: torch.Tensor, part: RowShard, count: int
    ) -> torch.Tensor:
        """Forward and backward of some rows: their part of the loss, and how many were right."""
        targets = targets[part.rows]
        logits = self.model(**{name: x[part.rows] for name, x in inputs.items()}).logits
        loss = part.weight * self.task.losses(logits, targets).sum() / count
        # Gradients are averaged over the processes, and are to be summed over the shares.
        self.accelerator.backward(self.group.num_shards * loss)
        hits = part.weight * self.task.hits(logits.detach(), targets).sum()
        return torch.stack((loss.detach(), hits.to(loss.dtype)))

    def _redraw(self) -> None:
        """Draw anew what mechanisms want redrawn, from the run's seed and the step alone."""
        step = self.progress.step
        for module in self.bare.modules():
            every = module.redraw_every if isinstance(module, Attention) else None
            if every and step % every == 0:
                module.redraw((self.seed * 1_000_003 + step) % SEEDS)

    def _evaluate_and_save(self) -> None:
        step, config = self.progress.step, self.config
        done = step == config.steps
        evaluating = step % config.evaluate_every == 0 or done
        saving = evaluating or step % config.checkpoint_every == 0
        if saving:
            self._settle()
        if evaluating:
            self._evaluate()
        if saving:
            self._save()

    def _settle(self) -> None:
        """Wait for the steps that the device still works on."""
        if self.device.type in QUEUEING:
            with self._waiting():
                torch.cuda.synchronize()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count the time within it where it may be that of steps the device still works on."""
        started = time.perf_counter()
        yield
        if self.device.type in QUEUEING:
            self.progress.seconds += time.perf_counter() - started

    def _evaluate(self) -> None:
        self._check_finite("training", float(self.window_loss))
        score = self._answered("validation").score
        point = self._point(score)
        self.progress.curve.append(dataclasses.asdict(point))
        self.accelerator.log(_logged(point), step=point.step)
        if self.group.broadcast(self._is_best(score) or self.config.selection == "last"):
            self.progress.best, self.progress.best_loss = score.accuracy, score.loss
            self.progress.best_step = point.step
            self.best = self.checkpoints.save_best(self.bare, point.step)
        if self.callback is not None:
            self.callback.on_evaluate(point)
        self._look_for_alarms(score)

    def _look_for_alarms(self, score: Score) -> None:
        progress = self.progress
        if len(progress.curve) == 1:
            progress.warm_seconds, progress.warm_waiting = progress.seconds, progress.waiting
        sight = Sight(
            config=self.config,
            curve=[Point(**point) for point in progress.curve],
            validation=score,
            seconds=progress.seconds,
            waiting=progress.waiting,
            warmed=Warmed(progress.warm_seconds, progress.warm_waiting),
        )
        for alarm in alarms(sight, [told["kind"] for told in progress.alarms]):
            progress.alarms.append(dataclasses.asdict(alarm))
            if self.callback is not None:
                self.callback.on_alarm(alarm)

    def _is_best(self, score: Score) -> bool:
        """Higher accuracy, or the same with a lower loss."""
        best, best_loss = self.progress.best, self.progress.best_loss
        if best is None or best_loss is None:
            return True
        return (score.accuracy, -score.loss) > (best, -best_loss)

    def _point(self, score: Score) -> Point:
        step, steps = self.progress.step, self.window_steps
        loss = float(self.window_loss) / steps if steps else None
        accuracy = float(self.window_hits) / self.window_scored if steps else None
        self.window_loss.zero_()
        self.window_hits.zero_()
        self.window_steps = self.window_scored = 0
        return Point(
            step=step,
            seconds=self.progress.seconds,
            learning_rate=compute_learning_rate(self.config, step - 1),
            train_loss=loss,
            train_accuracy=accuracy,
            validation_loss=score.loss,
            validation_accuracy=score.accuracy,
        )

    def _check_finite(self, which: str, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(
                f"the {which} loss is {loss} at step {self.progress.step}; lower the learning "
                f"rate ({self.config.learning_rate}) or clip gradients"
            )

    def _save(self) -> None:
        self._check_finite("training", float(self.window_loss))
        self.progress.window_loss = float(self.window_loss)
        self.progress.window_hits = int(self.window_hits)
        self.progress.window_steps = self.window_steps
        self.progress.window_scored = self.window_scored
        if self.accelerator.scaler is not None:
            self.progress.scaler = self.accelerator.scaler.state_dict()
        self._look_at_memory()
        self.checkpoints.save(self.bare, self.optimizer.optimizer, self.progress, self.best)

    def _look_at_memory(self) -> None:
        """Keep the largest peak of all processes, also of those that an interruption ended."""
        peak = self.group.all_reduce_max(self.memory.peak())
        if peak is not None:
            self.progress.peak_memory = max(self.progress.peak_memory or 0, int(peak))

    def _answered(self, split) -> Evaluation:
        batch = self.config.evaluation_batch
        found = answered(
            self.model,
            self.task,
            split,
            batch=batch,
            device=self.device,
            group=self.group,
        )
        self._check_finite(split, found.score.loss)
        return found

    def _outcome(self, test: bool) -> Outcome:
        """Load the selected model, and look at test, if at all, for the first and only time."""
        self._look_at_memory()
        waiting = self.group.all_reduce_max(self.progress.waiting)
        folder = self.checkpoints.load_best(self.bare)
        scores = {"validation": self._answered("validation").score}
        tested = self._answered("test") if test else None
        if tested is not None:
            scores["test"] = tested.score
        return Outcome(
            scores=scores,
            test=tested,
            curve=[Point(**point) for point in self.progress.curve],
            alarms=[Alarm(**alarm) for alarm in self.progress.alarms],
            steps=self.progress.step,
            best_step=self.progress.best_step,
            seconds=self.progress.seconds,
            waiting=waiting or 0.0,
            tokens=self.progress.tokens,
            peak_memory=self.progress.peak_memory,
            device=str(self.device),
            processes=self.group.world_size,
            parallelism=self.group.parallelism,
            model=folder,
        )


def _logged(point: Point) -> dict[str, float]:
    """The numbers of a point, by the names TensorBoard groups."""
    values = dataclasses.asdict(point)
    named = {name.replace("_", "/", 1): x for name, x in values.items() if name != "step"}
    return {name: x for name, x in named.items() if x is not None}
