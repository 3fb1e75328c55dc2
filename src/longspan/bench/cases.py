"""Cases of a measurement: mechanism, scope, pass, length, dtype and share of padding."""

import dataclasses
from typing import Any, get_args

from longspan.attention import MECHANISMS
from longspan.results.efficiency import Pass, Precision, Scope

SCOPES, PASSES, PRECISIONS = get_args(Scope), get_args(Pass), get_args(Precision)

# The bound in the figure of speed of Choromanski et al. 2021: attention that returns its values.
IDENTITY = "identity"


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
