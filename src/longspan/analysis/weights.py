"""The weights W of any mechanism, out = W v, whether it forms them or not.

They are read off the real module: mixing the identity as values gives W, a few columns at a time.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from longspan.attention import Attention, LayerInput
from longspan.attention.masking import apply_mask
from longspan.attention.value_norms import skip_value_norms
from longspan.errors import InputError
from longspan.shapes import Bool, Float

COLUMNS = 256  # keys whose weights are read off in one go
FORMED = 1 << 27  # most weights that are held at once
TOLERANCE = 1e-3  # of the output that weights may miss, in float32


@dataclasses.dataclass(frozen=True)
class Call:
    """What a mechanism was called with; `v` may be absent where the weights alone are wanted."""

    attention: Attention
    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B H S D"]
    v: Float[Tensor, "B H S E"] | None = None
    key_mask: Bool[Tensor, "B S"] | None = None
    query_mask: Bool[Tensor, "B T"] | None = None
    global_mask: Bool[Tensor, "B S"] | None = None
    layer_input: LayerInput | None = None

    @property
    def real(self) -> Bool[Tensor, "B T"]:
        """Which queries are no padding."""
        mask = self.query_mask
        if mask is None and self.q.shape[2] == self.k.shape[2]:
            mask = self.key_mask
        if mask is None:
            return torch.ones(self.q.shape[0], self.q.shape[2], dtype=torch.bool).to(self.q.device)
        return mask

    def mixed(self, v: Float[Tensor, "B H S E"]) -> Float[Tensor, "B H T E"]:
        """The output for other values, norms of values left out."""
        masks: dict[str, Any] = {"query_mask": self.query_mask, "global_mask": self.global_mask}
        # not the module itself: it may have hooks that read weights
        with torch.no_grad(), skip_value_norms(self.attention):
            return self.attention.forward(
                self.q, self.k, v, self.key_mask, **masks, layer_input=self.layer_input
            )

    def columns(self) -> Iterator[tuple[slice, Float[Tensor, "B H T c"]]]:
        """The weights of some keys after the other, exactly zero for padding."""
        formed = self._formed()
        if formed is not None:
            yield slice(0, formed.shape[3]), formed
            return
        (B, H, S, _), width = self.k.shape, self._width()
        for first in range(0, S, width):
            some = slice(first, min(first + width, S))
            v = self.k.new_zeros(S, width)
            v[some].fill_diagonal_(1)
            weights = self.mixed(v.expand(B, H, S, width))
            yield some, weights[..., : some.stop - first]

    def missed(self) -> float:
        """The part of the output that the weights do not explain: greatest difference, relative."""
        assert self.v is not None
        out = self.mixed(self.v)
        for some, weights in self.columns():
            v = self.v[:, :, some]
            if self.key_mask is not None:
                v = apply_mask(v, self.key_mask[:, None, some, None])
            out = out - weights @ v
        size = self.mixed(self.v).abs().max().clamp(min=torch.finfo(out.dtype).tiny)
        return float(out.abs().max() / size)

    def _formed(self) -> Tensor | None:
        """The weights as the mechanism itself makes them, if that is cheaper and they fit."""
        (B, H, T, _), S = self.q.shape, self.k.shape[2]
        if B * H * T * S > FORMED:
            return None
        q, k = self.q, self.k
        if self.key_mask is not None:
            k = apply_mask(k, self.key_mask[:, None, :, None])
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            formed = self.attention.attention_weights(q, k, self.key_mask)
        return None if formed is None else apply_mask(formed, self.real[:, None, :, None])

    def _width(self) -> int:
        """How many values at once; mechanisms with parameters for values take their width alone."""
        v = self.v
        wide = self.k[..., :1].expand(*self.k.shape[:3], COLUMNS)
        masks = (self.key_mask, self.query_mask, self.global_mask)
        if v is not None and self.attention.refusals(self.q, self.k, wide, *masks):
            return v.shape[3]
        return min(COLUMNS, self.k.shape[2])


def weights_of(
    attention: Attention,
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    key_mask: Bool[Tensor, "B S"] | None = None,
    *,
    v: Float[Tensor, "B H S E"] | None = None,
    query_mask: Bool[Tensor, "B T"] | None = None,
    global_mask: Bool[Tensor, "B S"] | None = None,
    layer_input: LayerInput | None = None,
) -> Float[Tensor, "B H T S"]:
    """The weights that a mechanism gives the values of each key, implicit or not.

    They may be negative and need not sum to one where the mechanism is no softmax. Norms of the
    values count as the identity.

    Args:
        attention: the mechanism.
        q: queries, as for `Attention.forward`; so are the masks and the source.
        k: keys.
        key_mask: True at real keys.
        v: values; if they are given, it is made sure that the weights explain the output.
        query_mask: True at real queries.
        global_mask: True at global tokens.
        layer_input: what q, k and v were projected from.

    Raises:
        InputError: the output is not a weighted sum of the values, or what the mechanism refuses.
    """
    call = Call(attention, q, k, v, key_mask, query_mask, global_mask, layer_input)
    if v is not None:
        check(call)
    return torch.cat([weights for _, weights in call.columns()], dim=3)


def check(call: Call) -> None:
    """Refuse a mechanism whose output is more than a weighted sum of the values.

    Raises:
        InputError: it is.
    """
    missed = call.missed()
    if not missed <= TOLERANCE:
        raise InputError(
            f"{call.attention.name} has no weights to read: a weighted sum of its values misses "
            f"its output by {100 * missed:.1f} % (values projected anew or mixed with each other); "
            "use options without that"
        )
