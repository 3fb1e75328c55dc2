"""The training loop: step, evaluate, checkpoint, continue.

Batch number n depends on (seed, n) alone and dropout's random state is in the checkpoint, so a
run that was killed and started again ends with the metrics of one that was not.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import PreTrainedModel

from longspan.attention import Attention
from longspan.errors import OptionError, RunError
from longspan.memory import PeakMemory
from longspan.results import Alarm, Point, Score
from longspan.tasks.base import Batch, Task
from longspan.training.alarms import Sight, Warmed, alarms
from longspan.training.checkpoint import Checkpoints, Progress
from longspan.training.config import TrainConfig
from longspan.training.evaluate import Evaluation, answered, scored, to_device
from longspan.training.prefetch import ahead
from longspan.training.schedule import learning_rate


@runtime_checkable
class Watcher(Protocol):
    """Whoever wants to see the run while it goes on."""

    def stepped(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """One optimiser step is done: its loss, and tokens and seconds of the run so far."""

    def evaluated(self, point: Point) -> None:
        """A point of the learning curve is there."""

    def alarmed(self, alarm: Alarm) -> None:
        """Something looks wrong; the run goes on."""


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
    model: Path  # folder of the selected model


def accelerator(precision: str, folder: Path, device: str | None) -> Accelerator:
    """The device and precision of a run ("no", "bf16", "fp16"); trackers write below `folder`.

    Raises:
        OptionError: the device cannot train in this precision.
        RunError: the process is one of several, which this loop does not split batches over.
    """
    if precision == "fp16" and (device == "cpu" or not torch.cuda.is_available()):
        raise OptionError("precision fp16 needs a CUDA device, this run is on CPU; use bf16 or no")
    if AcceleratorState._shared_state:
        # Precision is global to accelerate; a run in the same process may have another one.
        AcceleratorState._reset_state(reset_partial_state=True)
    made = Accelerator(
        mixed_precision=precision,
        cpu=device == "cpu",
        log_with="tensorboard",
        project_dir=folder,
    )
    if made.num_processes > 1:
        raise RunError(
            f"one run trains in one process, got {made.num_processes}; start it without a launcher"
        )
    return made


def fit(
    model: PreTrainedModel,
    task: Task,
    config: TrainConfig,
    *,
    seed: int,
    folder: Path,
    device: str | None = None,
    watcher: Watcher | None = None,
    test: bool = True,
) -> Outcome:
    """Train a model on an open task, continuing from the checkpoint in `folder` if there is one.

    Args:
        model: with fresh weights; replaced by the checkpoint's when there is one.
        task: open; `train` is trained on, `validation` selects, `test` is scored once at the end.
        config: the recipe.
        seed: of the order of examples and of dropout.
        folder: for checkpoints and TensorBoard files of this run alone.
        device: "cpu" to stay off an accelerator, None to use the one that is there.
        watcher: told about steps and evaluations.
        test: whether to look at `test`; a trial of a grid is scored on `validation` alone.

    Raises:
        OptionError: the device cannot train in the precision of the recipe.
        RunError: the loss is not finite, or a checkpoint cannot be read or written.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _Run(model, task, config, seed, folder, device, watcher).complete(test)


class _Run:
    """One run from its (re)start to its outcome."""

    def __init__(self, model, task, config, seed, folder, device, watcher):
        self.task, self.config, self.seed, self.watcher = task, config, seed, watcher
        self.accelerator = accelerator(config.precision, folder, device)
        self.device = self.accelerator.device
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            foreach=True,
        )
        self.bare = model
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.checkpoints = Checkpoints(folder)
        self.progress, self.best = Progress(), None
        self.checkpoints.tidy()
        if self.checkpoints.exists():
            self.progress, self.best = self.checkpoints.load(model, optimizer)
        self.memory = PeakMemory(self.device.type)
        self.window_loss = torch.tensor(self.progress.window_loss, device=self.device)
        self.window_hits = torch.tensor(self.progress.window_hits, device=self.device)
        self.window_steps = self.progress.window_steps
        self.window_scored = self.progress.window_scored

    def complete(self, test: bool) -> Outcome:
        """Train to the last step, then score the selected checkpoint."""
        self.memory.start()
        self.accelerator.init_trackers("tensorboard")
        self.model.train()
        with contextlib.closing(ahead(self._batches(), self.device)) as batches:
            while self.progress.step < self.config.steps:
                self._step(batches)
                self._evaluate_and_save()
        outcome = self._outcome(test)
        self.accelerator.end_training()
        return outcome

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
            group["lr"] = learning_rate(config, progress.step)
        inputs = to_device(batch, self.device)
        targets = batch.targets.to(self.device, non_blocking=True)
        total, count = torch.zeros((), device=self.device), scored(batch.targets)
        for part in torch.arange(len(targets)).chunk(config.accumulate):
            rows = slice(int(part[0]), int(part[-1]) + 1)
            logits = self.model(**{name: x[rows] for name, x in inputs.items()}).logits
            loss = self.task.losses(logits, targets[rows]).sum() / count
            self.accelerator.backward(loss)
            total += loss.detach()
            self.window_hits += self.task.hits(logits.detach(), targets[rows]).sum()
        if config.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.window_loss += total
        self.window_steps += 1
        self.window_scored += count
        progress.step += 1
        self._redraw()
        progress.tokens += int(batch.key_mask.sum())
        if batch.key_mask_b is not None:
            progress.tokens += int(batch.key_mask_b.sum())
        progress.seconds += time.perf_counter() - started
        if self.watcher is not None:
            self.watcher.stepped(progress.step, total, progress.tokens, progress.seconds)

    def _redraw(self) -> None:
        """Draw anew what mechanisms want redrawn, from the run's seed and the step alone."""
        step = self.progress.step
        for module in self.bare.modules():
            every = module.redraw_every if isinstance(module, Attention) else None
            if every and step % every == 0:
                module.redraw(self.seed * 1_000_003 + step)

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
        """Wait for the steps that an accelerator still works on: they belong to the training."""
        if self.device.type == "cuda":
            started = time.perf_counter()
            torch.cuda.synchronize()
            self.progress.seconds += time.perf_counter() - started

    def _evaluate(self) -> None:
        self._check_finite("training", float(self.window_loss))
        score = self._score("validation")
        self._check_finite("validation", score.loss)
        point = self._point(score)
        self.progress.curve.append(dataclasses.asdict(point))
        self.accelerator.log(_logged(point), step=point.step)
        if self._is_best(score) or self.config.selection == "last":
            self.progress.best, self.progress.best_loss = score.accuracy, score.loss
            self.progress.best_step = point.step
            self.best = self.checkpoints.save_best(self.bare, point.step)
        if self.watcher is not None:
            self.watcher.evaluated(point)
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
            if self.watcher is not None:
                self.watcher.alarmed(alarm)

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
            learning_rate=learning_rate(self.config, step - 1),
            train_loss=loss,
            train_accuracy=accuracy,
            validation_loss=score.loss,
            validation_accuracy=score.accuracy,
        )

    def _check_finite(self, which: str, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"the {which} loss is {loss} at step {self.progress.step}; lower the learning "
                f"rate ({self.config.learning_rate}) or clip gradients"
            )

    def _save(self) -> None:
        self._check_finite("training", float(self.window_loss))
        self.progress.window_loss = float(self.window_loss)
        self.progress.window_hits = int(self.window_hits)
        self.progress.window_steps = self.window_steps
        self.progress.window_scored = self.window_scored
        self.checkpoints.save(self.bare, self.optimizer.optimizer, self.progress, self.best)

    def _score(self, split) -> Score:
        return self._answered(split).score

    def _answered(self, split) -> Evaluation:
        batch = self.config.evaluation_batch
        return answered(self.model, self.task, split, batch=batch, device=self.device)

    def _outcome(self, test: bool) -> Outcome:
        """Load the selected model, and look at test, if at all, for the first and only time."""
        peak = self.memory.peak()
        folder = self.checkpoints.load_best(self.bare)
        scores = {"validation": self._score("validation")}
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
            waiting=self.progress.waiting,
            tokens=self.progress.tokens,
            peak_memory=peak,
            device=str(self.device),
            model=folder,
        )


def _logged(point: Point) -> dict[str, float]:
    """The numbers of a point, by the names TensorBoard groups."""
    values = dataclasses.asdict(point)
    named = {name.replace("_", "/", 1): x for name, x in values.items() if name != "step"}
    return {name: x for name, x in named.items() if x is not None}
