"""Cases of a measurement: mechanism, scope, pass, length, dtype and share of padding."""

import dataclasses
from typing import Any, get_args

from longspan.attention import MECHANISMS, Attention, Traits, backends
from longspan.errors import check_name
from longspan.results.efficiency import Pass, Precision, Scope

SCOPES, PASSES, PRECISIONS = get_args(Scope), get_args(Pass), get_args(Precision)

IDENTITY = "identity"
BACKEND = ":"  # separates a mechanism from its backend


class Identity(Attention):
    """Return the value of each token: the bound of what any mechanism can reach.

    It attends to nothing, so it is no mechanism of the registry. Choromanski et al. 2021
    (https://arxiv.org/abs/2009.14794), figure of speed, "OPT".
    """

    name = IDENTITY
    traits = Traits(family="fixed pattern", cost="T", exact=False, inputs="v")

    def attend(self, x):
        """Return the values."""
        return x.v

    def flops(self, T, head_dim):
        """Count nothing."""
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement.

    Attributes:
        mechanism: name of a mechanism, with the backend that must run as in `local:torch`, or
            `IDENTITY`.
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
    def name(self) -> str:
        """Name of the mechanism."""
        return self.mechanism.partition(BACKEND)[0]

    @property
    def backend(self) -> str:
        """Backend that must run, or "auto"."""
        return self.mechanism.partition(BACKEND)[2] or "auto"

    @property
    def has_gradients(self) -> bool:
        """True if the pass records gradients."""
        return self.work in ("forward", "training")


def refusal(case: Case) -> str | None:
    """Return the reason why a case cannot be measured by any machine, or None."""
    if case.work != "decoding":
        return None
    if case.name == IDENTITY:
        return "decodes nothing"
    return None if MECHANISMS[case.name].traits.causal else "has no causal form"


def check_row(row: str) -> None:
    """Check the name of a mechanism, and of its backend if one is given.

    Raises:
        UnknownNameError: there is no such mechanism or backend.
    """
    name, mark, backend = row.partition(BACKEND)
    check_name(name, (*MECHANISMS, IDENTITY), "mechanism")
    if mark:
        backend_names = ("auto",) if name == IDENTITY else backends(name)
        check_name(backend, backend_names, f"backend of {name!r}")
