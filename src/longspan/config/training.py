"""Configuration of training: optimizer, learning rate schedule, evaluation, checkpoints."""

from typing import Annotated, Literal

from pydantic import Strict

from longspan.bounds import HIGHEST_SCORE, LARGEST_BATCH, LARGEST_RATE, MOST_EXAMPLES, MOST_STEPS
from longspan.config.base import list_out_of_bounds, setting, settings
from longspan.config.stages import Stages, stage_ends
from longspan.errors import OptionError

# Fields that decide the learning rate.
_SCHEDULE = ("training.learning_rate", "training.warmup_steps", "training.schedule")
Parallelism = Literal["ddp", "fsdp", "context"]  # of several processes that train one model


@settings
class TrainingConfig:
    """The training recipe of a run."""

    steps: int = setting("optimizer steps", bounds=(1, MOST_STEPS))
    batch_size: int = setting("examples per optimizer step", bounds=(1, LARGEST_BATCH))
    learning_rate: float = setting(
        "peak learning rate (rsqrt: the factor of 1/sqrt(step))", bounds=(0, LARGEST_RATE)
    )
    warmup_steps: int = setting("steps of linear warmup", bounds=(0, MOST_STEPS))
    schedule: Literal["linear", "cosine", "cubic", "rsqrt", "constant", "one_cycle"] = setting(
        "learning rate schedule after warmup"
    )
    schedule_over: Literal["stage", "run"] = setting(
        "what warmup and schedule span: each stage has its own, or one spans all steps of the run",
        "stage",
    )
    evaluate_every: int = setting("steps between evaluations on validation", bounds=(1, MOST_STEPS))
    weight_decay: float = setting("decoupled weight decay (AdamW)", 0.0, bounds=(0, LARGEST_RATE))
    # JSON has lists in place of tuples.
    adam_betas: Annotated[tuple[float, float], Strict(False)] = setting(
        "AdamW's decay rates of the moments", (0.9, 0.999)
    )
    adam_epsilon: float = setting("AdamW's epsilon", 1e-6, bounds=(0, LARGEST_RATE))
    max_grad_norm: float | None = setting("largest gradient norm; none: no clipping", None)
    gradient_accumulation_steps: int = setting("micro-batches per optimizer step", 1)
    precision: Literal["no", "bf16", "fp16"] = setting("mixed precision", "no")
    gradient_checkpointing: bool = setting("recompute activations in the backward pass", False)
    eval_batch_size: int = setting("examples per evaluation batch", 64, bounds=(1, LARGEST_BATCH))
    train_eval_examples: int | None = setting(
        "training examples scored at the end, without dropout; none: as many as validation has",
        None,
        bounds=(0, MOST_EXAMPLES),
    )
    checkpoint_every: int = setting(
        "steps between checkpoints for resumption", 500, bounds=(1, MOST_STEPS)
    )
    selection: Literal["best validation", "last"] = setting(
        "checkpoint that is scored on test", "best validation"
    )
    stop_at: float | None = setting(
        "score on validation that ends the training, of the metric that selects the checkpoint; "
        "none: the last step does",
        None,
        bounds=(0, HIGHEST_SCORE),
    )
    patience: int | None = setting(
        "evaluations in a row without a better score on validation that end the training; none: "
        "the last step does",
        None,
        bounds=(1, MOST_STEPS),
    )
    word_vectors: Literal["random", "lsa"] = setting(
        "initial embeddings of tokens: random, or latent semantic analysis of the training texts",
        "random",
    )
    stages: Stages = setting("stages of the training; none: there is one", ())

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            OptionError: a value is out of range; the message lists every reason.
        """
        reasons = list_out_of_bounds(self) + [
            f"{name} must be positive, got {getattr(self, name)}"
            for name in ("learning_rate", "adam_epsilon")
            if getattr(self, name) == 0
        ]
        if not 1 <= self.gradient_accumulation_steps <= max(self.batch_size, 1):
            reasons.append(
                f"gradient_accumulation_steps must be between 1 and batch_size={self.batch_size}, "
                f"got {self.gradient_accumulation_steps}"
            )
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            reasons.append(f"adam_betas must be in [0, 1), got {self.adam_betas}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            reasons.append(f"max_grad_norm must be positive or none, got {self.max_grad_norm}")
        reasons += [
            f"{name} ends a training of one stage; omit it, or the stages"
            for name in ("stop_at", "patience")
            if getattr(self, name) is not None and self.stages
        ]
        if reasons:
            raise OptionError("; ".join(reasons))
        if self.stages:
            stage_ends(self.stages, self.steps)
            self._check_schedule()

    def _check_schedule(self) -> None:
        """Refuse stages that change a schedule of the run.

        Raises:
            OptionError: the message names the fields.
        """
        changed = {name for stage in self.stages for name in stage.changes}
        names = [name for name in _SCHEDULE if name in changed]
        if names and self.schedule_over == "run":
            raise OptionError(
                f"schedule_over='run' has one schedule for all stages, got {', '.join(names)} of a "
                "stage; set them for the whole run, or set schedule_over='stage'"
            )
