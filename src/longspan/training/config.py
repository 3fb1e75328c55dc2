"""How a model is trained: one frozen record, explained field by field."""

import dataclasses
from typing import Literal, no_type_check

from longspan.errors import OptionError, mistyped_fields
from longspan.fields import setting

Parallel = Literal["ddp", "fsdp", "context"]  # how several processes train one model
POINTER = "last.json"  # in a run's folder: names its last checkpoint and its best


# `mistyped_fields` checks the types of fields, with words for people.
@no_type_check
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The recipe of a run; every number of it is stored with the result."""

    steps: int = setting("optimiser steps")
    batch: int = setting("examples per optimiser step")
    learning_rate: float = setting("peak learning rate (rsqrt: the factor of 1/sqrt(step))")
    warmup: int = setting("steps of linear warmup")
    schedule: Literal["linear", "cosine", "rsqrt", "constant"] = setting("course after warmup")
    evaluate_every: int = setting("steps between evaluations on validation")
    weight_decay: float = setting("decoupled weight decay (AdamW)", 0.0)
    betas: tuple[float, float] = setting("AdamW's averaging of gradients", (0.9, 0.999))
    epsilon: float = setting("AdamW's epsilon", 1e-6)
    clip: float | None = setting("largest norm of the gradient; none: no clipping", None)
    accumulate: int = setting("parts into which a batch is cut to save memory", 1)
    precision: Literal["no", "bf16", "fp16"] = setting("mixed precision", "no")
    gradient_checkpointing: bool = setting("recompute activations in the backward pass", False)
    evaluation_batch: int = setting("examples per batch of an evaluation", 64)
    checkpoint_every: int = setting("steps between checkpoints for resumption", 500)
    selection: Literal["best validation", "last"] = setting(
        "which checkpoint is scored on test", "best validation"
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be trained, naming every reason."""
        if isinstance(self.betas, list):
            # A record read back from JSON brings a list.
            object.__setattr__(self, "betas", tuple(self.betas))
        if reasons := mistyped_fields(self):
            raise OptionError("; ".join(reasons))
        for name in ("steps", "batch", "evaluate_every", "evaluation_batch", "checkpoint_every"):
            if getattr(self, name) < 1:
                reasons.append(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "weight_decay"):
            if getattr(self, name) < 0:
                reasons.append(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 1 <= self.accumulate <= max(self.batch, 1):
            reasons.append(
                f"accumulate must be between 1 and batch={self.batch}, got {self.accumulate}"
            )
        for name in ("learning_rate", "epsilon"):
            if not getattr(self, name) > 0:
                reasons.append(f"{name} must be positive, got {getattr(self, name)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            reasons.append(f"betas must be in [0, 1), got {self.betas}")
        if self.clip is not None and not self.clip > 0:
            reasons.append(f"clip must be positive or none, got {self.clip}")
        if reasons:
            raise OptionError("; ".join(reasons))
