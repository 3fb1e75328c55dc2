"""Cases of a measurement: mechanism, scope, pass, length, dtype and share of padding."""

import dataclasses
from typing import Any, Literal, get_args

from longspan.attention import MECHANISMS
from longspan.config import settings
from longspan.errors import OptionError

Scope = Literal["operator", "layer", "model"]
Pass = Literal["forward", "training", "inference", "decoding"]
Precision = Literal["float32", "bfloat16", "float16"]
SCOPES, PASSES, PRECISIONS = get_args(Scope), get_args(Pass), get_args(Precision)

# The bound of Choromanski et al. 2021, figure 3: attention that returns its values.
IDENTITY = "identity"


@settings
class Sizes:
    """Sizes of the measured attention, and of the model around it.

    Attributes:
        hidden_size: width of layers and models.
        heads: heads.
        intermediate_size: width of the feed-forward layers.
        layers: layers of a model.
        vocab_size: tokens of a model.
        num_labels: classes of a model.
    """

    hidden_size: int = 512
    heads: int = 8
    intermediate_size: int = 2_048
    layers: int = 4
    vocab_size: int = 256
    num_labels: int = 2

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            OptionError: one is below 1, or the heads do not divide the width.
        """
        if small := [name for name, x in dataclasses.asdict(self).items() if x < 1]:
            raise OptionError(f"{', '.join(small)} must be >= 1")
        if self.hidden_size % self.heads:
            raise OptionError(
                f"heads must divide hidden_size, got {self.heads} heads and {self.hidden_size}"
            )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement.

    Attributes:
        mechanism: name of a mechanism, or `IDENTITY`.
        options: its options.
        scope: operator: the mechanism on queries, keys and values; layer: with its projections;
            model: a classifier, or a causal language model in decoding.
        work: forward: a forward pass that keeps what gradients need; training: with the backward
            pass, and in a model the loss and a step of AdamW; inference: a forward pass without
            gradients; decoding: one token after `length` tokens.
        length: tokens of a row.
        batch_size: rows.
        precision: dtype of tensors and weights; models compute in it under autocast.
        padding: share of the tokens that are padding.
    """

    mechanism: str
    options: dict[str, Any]
    scope: Scope
    work: Pass
    length: int
    batch_size: int
    precision: Precision
    padding: float

    @property
    def has_gradients(self) -> bool:
        """True if the pass records gradients."""
        return self.work in ("forward", "training")


def refusal(case: Case) -> str | None:
    """Return the reason why a case cannot be measured by any machine, or None."""
    if case.work != "decoding":
        return None
    if case.mechanism == IDENTITY:
        return "decodes nothing"
    return None if MECHANISMS[case.mechanism].traits.causal else "has no causal form"
