"""The training loop: step, evaluate, checkpoint, resume.

Batch n depends on (seed, n) alone and the random state of dropout is in the checkpoint, so a run
that was killed and resumed ends with the metrics of an uninterrupted one. Several processes train
as one would: each gradient is that of the whole batch, each number that of all processes. Exempt
are auxiliary losses, which are means over the tokens of a microbatch, and negatives of retrieval,
which are those of its documents.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.attention import Attention
from longspan.config import TrainingConfig
from longspan.errors import DivergedError, NonFiniteLossError, RunError
from longspan.memory import PeakMemory
from longspan.models.embeddings import Embeddings
from longspan.results import Alarm, Point, Score
from longspan.tasks.base import Batch
from longspan.training.alarms import raise_alarms
from longspan.training.arguments import label_arguments, model_inputs
from longspan.training.checkpoint import Checkpoints
from longspan.training.curve import CurveWindow, scalars_of
from longspan.training.distributed.group import (
    ProcessGroup,
    make_accelerator,
)
from longspan.training.distributed.sharding import recompute_activations, wrap_model
from longspan.training.evaluate import evaluate
from longspan.training.evaluation_options import EvaluationOptions
from longspan.training.final_evaluation import TrainingOutcome, evaluate_final
from longspan.training.prefetch import prefetch_batches
from longspan.training.progress import Progress
from longspan.training.schedule import compute_learning_rate, ends_training
from longspan.training.stages import (
    Stage,
    begin_stage,
    load_stage_before,
    stage_schedule,
    stage_seed,
    stage_steps,
)
from longspan.training.stream_state import StreamState

ASYNCHRONOUS = ("cuda",)  # devices that may still compute when a call has returned
REDRAW_SEEDS = 2**43  # mechanisms multiply seeds by 1,000,003, and torch takes 64 bits


class StageTrainer:
    """One stage of a run from its start or resumption to its end."""

    def __init__(self, stages, number, checkpoints, seed, device, callback):
        stage: Stage = stages[number]
        self.task, self.config, self.seed = stage.task, stage.config, stage_seed(seed, number)
        self.run_seed = seed
        self.checkpoints: Checkpoints = checkpoints
        self.group: ProcessGroup = checkpoints.group
        self.callback = callback if self.group.is_main else None
        self.first_step, self.last_step = stage_steps(stages, number)
        self.schedule, self.schedule_start = stage_schedule(stages, number)
        model = stage.make_model()  # before the accelerator, whose state it may reset
        is_resumed = checkpoints.exists()
        begins = is_resumed and checkpoints.peek().stage != number
        if begins:
            load_stage_before(checkpoints, model, number)
        self.options = EvaluationOptions(model, stage.mechanism, stage.evaluation_changes)
        self.accelerator = make_accelerator(self.config.precision, checkpoints.folder, device)
        self.device = self.accelerator.device
        if self.config.gradient_checkpointing:
            recompute_activations(model)
        self.unwrapped_model, self.model = model, wrap_model(model, self.accelerator, self.group)
        # Memory counts from here: restored state belongs to the run as much as computed state.
        self.memory = PeakMemory(self.device.type)
        self.memory.start()
        optimizer = _make_optimizer(model, self.config)  # wrapping may have replaced the parameters
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.progress = Progress()
        self.stream = StreamState(model, self.task)
        if begins:
            self.progress = begin_stage(checkpoints, optimizer, stage, number)
        elif is_resumed:
            restore = functools.partial(self.stream.restore, group=self.group)
            self.progress = checkpoints.load(model, optimizer, restore)
        scaler = self.accelerator.scaler
        if scaler is not None and self.progress.scaler is not None:
            scaler.load_state_dict(self.progress.scaler)
        self.window = CurveWindow(self.task, self.progress, self.device)

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Keep the files of the trackers open inside the context."""
        self.accelerator.init_trackers("tensorboard")
        try:
            yield
        finally:
            # Not `end_training`, which ends the process group: it may have more runs to do.
            for tracker in self.accelerator.trackers:
                with contextlib.suppress(FileNotFoundError):  # the folder was removed
                    tracker.finish()

    def train(self) -> None:
        """Train to the last step of the stage, or to the evaluation that ends the training."""
        self.model.train()
        with contextlib.closing(prefetch_batches(self._batches(), self.device)) as batches:
            while self.progress.step < self.last_step and not self._is_over():
                self._step(batches)
                self._evaluate_and_save()

    def _batches(self) -> Iterator[Batch]:
        return self.task.batches(
            "train", batch_size=self.config.batch_size, seed=self.seed, start=self._stage_step
        )

    @property
    def _stage_step(self) -> int:
        """Steps of the stage so far."""
        return self.progress.step - self.first_step

    def _learning_rate(self, step: int) -> float:
        """Return the learning rate of a step of the run, counted from 0."""
        return compute_learning_rate(self.schedule, step - self.schedule_start)

    def _step(self, batches: Iterator[Batch]) -> None:
        started = time.perf_counter()
        batch = next(batches)
        progress, config = self.progress, self.config
        progress.data_wait_seconds += time.perf_counter() - started
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(progress.step)
        loss = self._backpropagate(batch)
        if config.max_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        progress.step += 1
        self._redraw()
        progress.tokens += batch.num_tokens
        progress.seconds += time.perf_counter() - started
        if self.callback is not None:
            # Reading the loss synchronizes the device.
            with self._count_device_time():
                self.callback.on_step(progress.step, loss, progress.tokens, progress.seconds)

    def _backpropagate(self, batch: Batch) -> Tensor:
        """Accumulate the gradient of a batch over its micro-batches; return its mean loss."""
        inputs = model_inputs(self.unwrapped_model, batch.inputs, self.device)
        targets = batch.targets.to(self.device, non_blocking=True)
        loss = torch.zeros((), device=self.device)
        labels, head = self.task.label_arguments(batch.targets), self.task.head
        counts = head.count_targets(labels, len(targets)).tolist()
        statistics = self.window.empty_sums()
        shards = self.group.shard_rows(len(targets), self.config.gradient_accumulation_steps)
        for shard in shards:
            is_last = shard is shards[-1]
            arguments = {name: x[shard.rows] for name, x in inputs.items()}
            arguments |= self.stream.arguments(batch, shard)
            shard_targets = targets[shard.rows]
            arguments |= label_arguments(
                self.unwrapped_model, self.task, self.window.metrics, shard_targets
            )
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.model):
                output = self.model(**arguments)
                # The model's loss is a mean over the targets of the shard.
                share = shard.weight * sum(counts[shard.rows]) / max(1, sum(counts))
                # Gradients are averaged over the processes; shards need their sum.
                self.accelerator.backward(self.group.num_shards * share * output.loss)
            self.stream.store(shard, output)
            loss += share * _task_loss(output)
            logits = head.scores(output).detach()
            self.window.add_rows(statistics, batch, shard, logits, shard_targets)
        loss = self.group.all_reduce_sum(loss)
        self.window.add_step(loss, statistics, self.group)
        return loss

    def _redraw(self) -> None:
        """Redraw random features when they are due, from the run's seed and the step alone."""
        step = self.progress.step
        for module in self.unwrapped_model.modules():
            if not isinstance(module, Attention) or not module.redraw_every:
                continue
            if step % module.redraw_every == 0:
                module.redraw((self.run_seed * 1_000_003 + step) % REDRAW_SEEDS)

    def _evaluate_and_save(self) -> None:
        step, config = self.progress.step, self.config
        evaluating = self._stage_step % config.evaluate_every == 0 or step == self.last_step
        saving = evaluating or step % config.checkpoint_every == 0
        if saving:
            self._synchronize()
            self._check_folder()
        if evaluating:
            self._evaluate()
        if saving:
            self._save()

    def _check_folder(self) -> None:
        """Refuse to write into a folder that was removed since the run began.

        Raises:
            RunError: it was; its lock and its earlier checkpoints are gone with it.
        """
        folder = self.checkpoints.folder
        if not self.group.run_on_main(folder.is_dir):
            raise RunError(
                f"{folder} was removed while the run trained, at step {self.progress.step:,}; its "
                "checkpoints are gone. Run the same command to start the run over"
            )

    def _synchronize(self) -> None:
        """Synchronize the device."""
        if self.device.type in ASYNCHRONOUS:
            with self._count_device_time():
                torch.cuda.synchronize()

    @contextlib.contextmanager
    def _count_device_time(self) -> Iterator[None]:
        """Count the time inside as training time where the device may still compute steps."""
        started = time.perf_counter()
        yield
        if self.device.type in ASYNCHRONOUS:
            self.progress.seconds += time.perf_counter() - started

    def _evaluate(self) -> None:
        self._check_finite()
        score = self._validate()
        rate = self._learning_rate(self.progress.step - 1)
        point = self.window.close(self.progress.step, self.progress.seconds, rate, score)
        self.progress.curve.append(dataclasses.asdict(point))
        self.accelerator.log(scalars_of(point), step=point.step)
        if self.group.broadcast(self.config.selection == "last" or self._is_best(score)):
            if score is not None:
                self.progress.best, self.progress.best_loss = self._main(score), score.loss
            self.progress.best_step = point.step
            self.checkpoints.save_best(self.unwrapped_model, point.step)
        if self.callback is not None:
            self.callback.on_evaluate(point)
        if score is not None:
            self._raise_alarms(score)

    def _raise_alarms(self, score: Score) -> None:
        progress, first_step = self.progress, self.first_step
        curve = [Point(**x) for x in progress.curve if x["step"] > first_step]
        if len(curve) == 1:
            progress.warm_seconds = progress.seconds
            progress.warm_data_wait_seconds = progress.data_wait_seconds
        config = dataclasses.replace(self.config, steps=self.last_step)
        metric = self.task.selection_metrics[0]
        for alarm in raise_alarms(config, metric, curve, score, progress, first_step):
            progress.alarms.append(dataclasses.asdict(alarm))
            if self.callback is not None:
                self.callback.on_alarm(alarm)

    def _is_over(self) -> bool:
        """Return whether the last evaluation ends the training; see `ends_training`."""
        curve = self.progress.curve
        if not curve or curve[-1]["step"] != self.progress.step:
            return False
        metric = self.task.selection_metrics[0]
        points = [Point(**point) for point in curve]
        return self.group.broadcast(ends_training(self.config, metric, points))

    def _main(self, score: Score) -> float:
        return score.metrics[self.task.selection_metrics[0].name]

    def _is_best(self, score: Score | None) -> bool:
        """Return whether a score is better than the best, or as good at a lower loss."""
        best, best_loss = self.progress.best, self.progress.best_loss
        if best is None or best_loss is None or score is None:
            return True
        signed = self.task.selection_metrics[0].signed
        return (signed(self._main(score)), -score.loss) > (signed(best), -best_loss)

    def _check_finite(self) -> None:
        if not math.isfinite(loss := float(self.window.loss)):
            raise self._diverged("training", loss)

    def _diverged(self, name: str, loss: float) -> DivergedError:
        return DivergedError(
            f"the {name} loss is {loss} at step {self.progress.step}; lower the learning rate "
            f"({self.config.learning_rate}) or clip gradients"
        )

    def _save(self) -> None:
        self._check_finite()
        self.window.save(self.progress)
        if self.accelerator.scaler is not None:
            self.progress.scaler = self.accelerator.scaler.state_dict()
        self._update_peak_memory()
        states = self.stream.gather(self.group)
        optimizer = self.optimizer.optimizer
        self.checkpoints.save(self.unwrapped_model, optimizer, self.progress, states)

    def _update_peak_memory(self) -> None:
        """Record the largest peak over all processes and all resumptions."""
        peak = self.group.all_reduce_max(self.memory.peak())
        if peak is not None:
            self.progress.peak_memory = max(self.progress.peak_memory or 0, int(peak))

    def _validate(self, generate: bool = False) -> Score | None:
        """Return the score on validation; None: there is no such split."""
        if not self.task.size("validation"):
            return None
        with self._explain_divergence(), self.options.applied("validation"):
            return evaluate(
                self.model,
                self.task,
                "validation",
                batch_size=self.config.eval_batch_size,
                device=self.device,
                group=self.group,
                generate=generate,
            ).score

    @contextlib.contextmanager
    def _explain_divergence(self) -> Iterator[None]:
        """Name step and remedy where the loss of an evaluation is not finite."""
        try:
            yield
        except NonFiniteLossError as error:
            raise self._diverged(error.split, error.loss) from error

    def outcome(self, test: bool) -> TrainingOutcome:
        """Load the selected model and score it; test and train are scored here alone."""
        self._update_peak_memory()
        folder = self.checkpoints.load_best(self.unwrapped_model)
        validation, final = self._validate(True), None
        if test:
            with self._explain_divergence():
                final = evaluate_final(
                    self.model,
                    self.task,
                    self.config.train_eval_examples,
                    batch_size=self.config.eval_batch_size,
                    device=self.device,
                    group=self.group,
                    options=self.options,
                )
        return TrainingOutcome(
            scores={
                **({"validation": validation} if validation else {}),
                **(final.scores if final else {}),
            },
            final=final,
            curve=[Point(**point) for point in self.progress.curve],
            alarms=[Alarm(**alarm) for alarm in self.progress.alarms],
            steps=self.progress.step,
            best_step=self.progress.best_step,
            seconds=self.progress.seconds,
            data_wait_seconds=self.group.all_reduce_max(self.progress.data_wait_seconds),
            tokens=self.progress.tokens,
            peak_memory=self.progress.peak_memory,
            device=str(self.device),
            world_size=self.group.world_size,
            parallelism=self.group.parallelism,
            model=folder,
            network=self.unwrapped_model,
        )


def _task_loss(output: Any) -> Tensor:
    """Return the loss of the labels, without that of the mechanisms' own parameters."""
    auxiliary = getattr(output, "auxiliary_loss", None)
    return (output.loss if auxiliary is None else output.loss - auxiliary).detach()


def _make_optimizer(model: PreTrainedModel, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return AdamW, without decay of the positions whose first rows are frozen."""
    frozen = {
        id(module.positions.weight)
        for module in model.modules()
        if isinstance(module, Embeddings) and module.positions and module.config.frozen_positions
    }
    groups: list[dict[str, Any]] = [
        {"params": [x for x in model.parameters() if id(x) not in frozen]}
    ]
    if frozen:
        others = [x for x in model.parameters() if id(x) in frozen]
        groups.append({"params": others, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=config.adam_betas,
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        foreach=True,
    )
