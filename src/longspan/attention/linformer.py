"""Linformer, Wang et al. 2020 (https://arxiv.org/abs/2006.04768), eq. 7.

    out = softmax(q (E k)^T / sqrt(D)) (F v),   E, F: rank x max_length

Keys and values are projected along the sequence to `rank` slots. A shorter input uses the leading
columns of E and F, and padded keys are zero before they are projected, so padding changes nothing.
Entries start at N(0, 1 / max_length): a projected key then has the scale of a key. There is no
causal form, every slot mixes the future.

`sharing` as in section 4 of the paper: "none" (E and F for each head), "headwise" (E and F for
all heads of the layer), "key_value" (one E = F for all heads of the layer).
"""

from typing import Literal

import torch
from torch import nn

from longspan.attention._softmax import softmax_attention
from longspan.attention.base import Attention, Traits, register
from longspan.errors import OptionError

SHARING = ("none", "headwise", "key_value")


def _project(matrix, x):
    """E x for each head (B, H, rank, D), as one product over samples (and heads, if shared)."""
    matrix = matrix[..., : x.shape[-2]].to(x.dtype)
    if matrix.shape[0] == 1:
        return torch.einsum("rs,bhsd->bhrd", matrix[0], x)
    return torch.einsum("hrs,bhsd->bhrd", matrix, x)


@register("linformer")
class LinformerAttention(Attention):
    """Softmax attention over `rank` learned mixtures of the keys."""

    traits = Traits(
        paper="Wang et al. 2020, https://arxiv.org/abs/2006.04768",
        cost="T",
        exact=False,
        cross=True,
        sizes=("heads", "max_length"),
    )
    small = {"rank": 8}

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        rank: int = 256,
        sharing: Literal["none", "headwise", "key_value"] = "headwise",
    ):
        """Make the projections along the sequence."""
        super().__init__()
        if rank < 1:
            raise OptionError(f"linformer needs rank >= 1, got {rank}")
        if sharing not in SHARING:
            raise OptionError(f"linformer sharing is one of {', '.join(SHARING)}, got {sharing!r}")
        self.max_length, self.rank = max_length, rank
        rows = heads if sharing == "none" else 1
        both = 1 if sharing == "key_value" else 2
        self.projection = nn.Parameter(torch.empty(both, rows, rank, max_length))
        nn.init.normal_(self.projection, std=max_length**-0.5)

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: no more keys than columns of E, and its heads."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        if k.shape[-2] > self.max_length:
            reasons.append(
                f"S={k.shape[-2]} is beyond max_length={self.max_length}; build it longer"
            )
        if self.projection.shape[1] not in (1, q.shape[1]):
            reasons.append(f"it was built for {self.projection.shape[1]} heads, got {q.shape[1]}")
        return reasons

    def attend(self, q, k, v, key_mask):
        """Project k and v (zero where padded), then attend to the slots."""
        E, F = self.projection[0], self.projection[-1]
        return softmax_attention(q, _project(E, k), _project(F, v), None)

    def reference(self, q, k, v, key_mask):
        """Mask, project, softmax, mix: one sum after another."""
        if key_mask is not None:
            k, v = (x * key_mask[:, None, :, None] for x in (k, v))
        E, F = (self.projection[i, ..., : k.shape[-2]].expand(k.shape[1], -1, -1) for i in (0, -1))
        slots, mixed = (torch.einsum("hrs,bhsd->bhrd", e, x) for e, x in ((E, k), (F, v)))
        scores = torch.einsum("bhtd,bhrd->bhtr", q, slots) / q.shape[-1] ** 0.5
        return torch.einsum("bhtr,bhrd->bhtd", scores.softmax(-1), mixed)

    def flops(self, T, head_dim):
        """Two projections along the sequence, two products with the slots."""
        return 8 * T * self.rank * head_dim
