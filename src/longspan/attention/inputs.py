"""Inputs of a call of a mechanism, by name."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.cache import Cache
from longspan.attention.documents import Documents
from longspan.attention.masking import apply_mask
from longspan.attention.relative_bias import RelativeBias
from longspan.shapes import Float


@dataclasses.dataclass(frozen=True)
class LayerInput:
    """Input of the attention layer, for mechanisms with projections of their own.

    Attributes:
        states: input of the layer (B, S, W), zero at padded positions.
        query: linear part (no bias) of the query projection: (P, W) of any floating dtype to heads
            (H, P, D) in the dtype of the weights.
        key: linear part of the key projection.
    """

    states: Float[Tensor, "B S W"]
    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]

    def masked(self, mask: Tensor) -> "LayerInput":
        """Return the input with zeros at padding, where a mask (B, S) is False."""
        return dataclasses.replace(self, states=apply_mask(self.states, mask[..., None]))


class Inputs(NamedTuple):
    """All inputs of a call, a step or a row of documents.

    `Attention.forward` describes them. A mechanism receives them checked, with zeros at padded
    positions, `scale` multiplied into the queries, and `relative` in the place of `bias`.

    Attributes:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D), with G heads if the mechanism `takes_groups`.
        v: values (B, H, S, E), likewise.
        key_mask: True at real keys (B, S), or None for all.
        query_mask: True at real queries (B, T), or None for all.
        global_mask: True at global tokens (B, S), or None.
        layer_input: tensor that q, k and v were projected from, or None.
        shared: parameter that all layers share, or None.
        scale: factor of the products, or None.
        bias: numbers added to the scores, for all pairs or by distance, or None.
        relative: bias by distance, before the checks.
        mask: both masks at once, before the checks.
        cache: what the previous step left, or None.
        documents: bounds of documents laid one after another, or None.
        is_step: whether the tokens continue those of `cache`.
        sink_logits: logit of each head in the denominator of the softmax (H,), or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None = None
    query_mask: Tensor | None = None
    global_mask: Tensor | None = None
    layer_input: LayerInput | None = None
    shared: Tensor | None = None
    scale: float | None = None
    bias: Tensor | RelativeBias | None = None
    relative: RelativeBias | None = None
    mask: Tensor | None = None
    cache: Cache | None = None
    documents: Documents | None = None
    is_step: bool = False
    sink_logits: Tensor | None = None

    @property
    def before(self) -> int:
        """Number of tokens before these."""
        return 0 if self.cache is None else self.cache.length

    @property
    def sinks(self) -> Tensor | None:
        """Sink logits beside the scores (1, H, 1, 1), or None."""
        return None if self.sink_logits is None else self.sink_logits.view(1, -1, 1, 1)

    @property
    def real(self) -> Tensor:
        """Mask of the real keys (1 or B, S), also if all are."""
        if self.key_mask is not None:
            return self.key_mask
        return self.k.new_ones(1, self.k.shape[2], dtype=torch.bool)

    def take_heads(self, heads: list[int]) -> "Inputs":
        """Return the inputs of some heads; all of H heads have keys of their own."""
        bias, sinks = self.bias, self.sink_logits
        if isinstance(bias, RelativeBias):
            bias = bias.take_heads(heads)
        elif bias is not None and bias.shape[1] > 1:
            bias = take_heads(bias, heads)
        q, k, v = (take_heads(x, heads) for x in self[:3])
        sinks = None if sinks is None else take_heads(sinks, heads, 0)
        return self._replace(q=q, k=k, v=v, bias=bias, sink_logits=sinks)

    def take_rows(self, rows: Tensor) -> "Inputs":
        """Return q, k, v, masks of both and layer input of some rows of the batch."""
        source = self.layer_input
        if source is not None:
            source = dataclasses.replace(source, states=source.states.index_select(0, rows))
        q, k, v = (x.index_select(0, rows) for x in self[:3])
        masks = self.mask, self.global_mask
        mask, global_mask = (None if x is None else x.index_select(0, rows) for x in masks)
        return Inputs(q, k, v, global_mask=global_mask, layer_input=source, mask=mask)

    def take_tokens(self, piece: slice) -> "Inputs":
        """Return the inputs of some tokens of self-attention, without documents.

        A bias of the tokens so far ends with the last of them.
        """
        masks = self.key_mask, self.query_mask, self.global_mask
        key_mask, query_mask, global_mask = (None if x is None else x[:, piece] for x in masks)
        source, bias, relative = self.layer_input, self.bias, self.relative
        if source is not None:
            source = dataclasses.replace(source, states=source.states[:, piece])
        if isinstance(bias, RelativeBias):
            bias = bias.take_queries(piece)
        elif bias is not None:
            later = max(0, self.q.shape[2] - piece.stop)  # the last tokens of all so far
            bias = bias[:, :, piece, : bias.shape[3] - later]
        return self._replace(
            q=self.q[:, :, piece],
            k=self.k[:, :, piece],
            v=self.v[:, :, piece],
            key_mask=key_mask,
            query_mask=query_mask,
            global_mask=global_mask,
            layer_input=source,
            bias=bias,
            relative=None if relative is None else relative.take_queries(piece),
            mask=None if self.mask is None else self.mask[:, piece],
            documents=None,
        )


def take_heads(x: Tensor, heads: list[int], dim: int = 1) -> Tensor:
    """Return some heads of a tensor, a view if they are adjacent."""
    if heads == list(range(heads[0], heads[0] + len(heads))):
        return x.narrow(dim, heads[0], len(heads))
    each = x.unbind(dim)
    return torch.stack([each[head] for head in heads], dim)
