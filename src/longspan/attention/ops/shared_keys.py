"""Keys outside a pattern that all queries share, in the same softmax."""

from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.masking import apply_mask, join_masks, masked_softmax
from longspan.attention.ops.precision import dot_products
from longspan.attention.ops.residue_classes import split_residue_classes


class SharedKeys(NamedTuple):
    """Keys outside the pattern, such as summaries, that all blocks of queries share."""

    k: Tensor  # B H R D
    v: Tensor  # B H R E
    mask: Tensor  # True where a query may attend, (1 or B, 1, 1 or T, R)

    def to_residue_classes(self, g: int, length: int) -> "SharedKeys":
        """Return the same keys for the rows and queries of `split_residue_classes`."""
        k, v, mask = self
        if mask.shape[2] > 1:
            mask = split_residue_classes(mask, g, length)
        elif g > 1:
            mask = mask.repeat_interleave(g, 0)
        if g > 1:
            k, v = k.repeat_interleave(g, 0), v.repeat_interleave(g, 0)
        return SharedKeys(k, v, mask)

    def join(self, extra: list[Tensor], allowed: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Return other extra keys and values, if there are any, then these; and both masks.

        Args:
            extra: keys and values of the others (B, H, G, D), or nothing.
            allowed: True where a query may attend to the others, (1 or B, 1, 1 or T, G), or None.
        """
        if allowed is None:
            return [self.k, self.v], self.mask
        both = [torch.cat([x, y], 2) for x, y in zip(extra, (self.k, self.v), strict=True)]
        return both, join_masks(allowed, self.mask)


def softmax_shared(q, k, v, mask, shared: SharedKeys) -> Tensor:
    """Compute `softmax_attention` with shared keys, which are not copied to each block."""
    blocks, scale = q.shape[2:4], q.shape[-1] ** -0.5
    scores = dot_products(q.flatten(2, 3), shared.k, scale).unflatten(2, blocks)
    every = shared.mask.expand(-1, -1, blocks[0] * blocks[1], -1).unflatten(2, blocks)
    rows = max(mask.shape[0], every.shape[0])
    mask = torch.cat([x.expand(rows, 1, *blocks, -1) for x in (mask, every)], -1)
    weights = masked_softmax(torch.cat([dot_products(q, k, scale), scores], -1), mask).to(v.dtype)
    near, other = weights.split([k.shape[-2], scores.shape[-1]], -1)
    if torch.compiler.is_compiling():
        # Inductor of torch 2.13 overwrites the weights before backward has read views of them.
        near, other = near.clone(), other.clone()
    out = (near @ v).flatten(2, 3) + other.flatten(2, 3) @ shared.v
    return apply_mask(out, mask.any(-1, keepdim=True).flatten(2, 3))
