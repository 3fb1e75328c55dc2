"""Relative positions of Transformer-XL, for mechanisms with a memory.

    score_ij = ((q_i + u) . k_j + (q_i + w) . r_(i-j)) / sqrt(D),   r_d = P R_d

R_d is the sinusoid of the distance d, as wide as all heads together, P its projection to a head,
u and w a vector per head. Distances count along the keys in their order: memory, then segment.
"""

import itertools

import torch
from torch import Tensor, nn

from longspan.attention.derivatives import has_transforms
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.relative_pieces import RelativeQueries, is_piecewise, relative_softmax
from longspan.attention.ops.segments import Rows, SegmentAttention, segment_mask
from longspan.attention.relative_bias import shift_to_keys
from longspan.errors import OptionError

QUERY_BLOCK = 256  # queries whose scores are computed at once


def sinusoids(positions: Tensor, width: int, clamp: int | None = None) -> Tensor:
    """Compute sines, then cosines, of positions over wavelengths from 2 pi to 10000 times that.

    Args:
        positions: numbers (...), possibly negative.
        width: number of columns.
        clamp: largest absolute position, which stands for those beyond it; None: no limit.

    Returns:
        (..., width) in float64: large angles lose all digits in narrower types.
    """
    if clamp is not None:
        positions = positions.clamp(-clamp, clamp)
    rate = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    angles = positions[..., None].double() * 10_000.0**-rate
    return torch.cat([angles.sin(), angles.cos()], -1)[..., :width]


class RelativeAttention(SegmentAttention):
    """Segment attention with relative positions.

    Attributes:
        reach: number of keys that a token sees back, or None for all.
    """

    reach: int | None = None

    def __init__(
        self,
        heads: int,
        head_dim: int,
        segment: int,
        memory: int,
        clamp: int | None,
        backprop_through_memory: bool,
        causal: bool,
    ):
        """Create P, u and w (normal with standard deviation 0.02, as in the authors' code)."""
        super().__init__(segment, memory, backprop_through_memory, causal)
        if clamp is not None and clamp < 0:
            raise OptionError(f"{self.name}: option clamp must be >= 0 or None, got {clamp}")
        self.clamp, self.built_for = clamp, {"heads": heads, "head_dim": head_dim}
        self.position = nn.Parameter(torch.empty(heads, head_dim, heads * head_dim))
        self.content_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.position_bias = nn.Parameter(torch.empty(heads, head_dim))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def position_terms(self, x, longest):
        """Return R of the distances from `longest` down to 0, or to those of later keys, and P.

        With few queries, they are projected to the width of R instead: (q P) R. With many, P R is
        computed once.
        """
        q = x.q
        nearest = 0 if self.causal else 1 - min(q.shape[2], self.segment)
        distances = torch.arange(longest, nearest - 1, -1, device=q.device)
        r = at_least_float32(sinusoids(distances, self.position.shape[-1], self.clamp).to(q.dtype))
        project = at_least_float32(self.position.to(q.dtype))
        few = q.shape[0] * q.shape[2] < q.shape[3]
        return (r, longest, project) if few else (r @ project.mT, longest, None)

    def attend_segment(self, q, keys, places):
        """Attend block by block if causal: a block computes no scores of keys after it."""
        (r, longest, project), T, narrow = places, q.shape[2], keys.v
        q, keys = at_least_float32(q), keys._replace(k=at_least_float32(keys.k))
        wide = keys._replace(v=at_least_float32(narrow))
        if project is None and is_piecewise(q, wide.k, wide.v, narrow.dtype):
            return self._attend_pieces(q, wide, r, longest).to(narrow.dtype)
        if not self.causal or T <= QUERY_BLOCK:
            return self._attend_block(q, keys, places)
        blocks, before = q.split(QUERY_BLOCK, 2), keys.size - T
        ends = itertools.accumulate((block.shape[2] for block in blocks), initial=before)
        pairs = zip(blocks, list(ends)[1:], strict=True)
        return torch.cat([self._attend_block(x, keys.first(end), places) for x, end in pairs], 2)

    def _attend_pieces(self, q: Tensor, keys: Rows, r: Tensor, longest: int) -> Tensor:
        """Compute the scores of a few queries at a time, and again in the backward pass."""
        T, S = q.shape[2], keys.size
        is_plain = keys.real is None and self.reach is None
        mask = None if is_plain else segment_mask(T, keys, self.causal, self.reach)

        def whole(a: Tensor, b: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
            return self._mix(a @ k.mT, b @ r.mT, keys._replace(k=k, v=v))

        r = r[:, longest - S : longest + (1 if self.causal else T)]
        return relative_softmax(self._relative_queries(q), keys.k, keys.v, r, mask, whole)

    def _relative_queries(self, q: Tensor) -> RelativeQueries:
        """Return the scaled queries, with u and with w."""
        scale = q.shape[-1] ** -0.5
        u, w = ((x * scale).to(q.dtype)[:, None] for x in (self.content_bias, self.position_bias))
        return RelativeQueries(q * scale + u, q * scale + w)

    def _attend_block(self, q, keys, places):
        """Compute content and position scores as one product each, then softmax."""
        (r, longest, project), T, S = places, q.shape[2], keys.size
        r = r[..., longest - S : longest + (1 if self.causal else T), :]
        a, b = self._relative_queries(q)
        b = b if project is None else b @ project
        return self._mix(a @ keys.k.mT, b @ r.mT, keys)

    def _mix(self, by_content: Tensor, by_distance: Tensor, keys: Rows) -> Tensor:
        """Mix the values by the softmax of the sum of the scores; a row without keys is zero."""
        by_position = shift_to_keys(by_distance, keys.size)
        overwrite = not has_transforms()  # vmap cannot write a batch into what has none
        scores = by_content.add_(by_position) if overwrite else by_content + by_position
        mask = segment_mask(scores.shape[-2], keys, self.causal, self.reach)
        if mask is None:
            return scores.softmax(-1).to(keys.v.dtype) @ keys.v
        out = masked_softmax(scores, mask, overwrite=overwrite).to(keys.v.dtype) @ keys.v
        return out if keys.real is None else apply_mask(out, mask.any(-1, keepdim=True))

    def reference_weights(self, q: Tensor, k: Tensor, distance: Tensor, mask: Tensor) -> Tensor:
        """Compute the weights as in the formula, with r of every pair.

        Args:
            q: queries (B, H, T, D).
            k: keys (B, H, S, D), or (B, H, T, S, D) if they differ between queries.
            distance: distance from each query to each key (T, S).
            mask: allowed pairs, broadcastable to (B, H, T, S); a row may be empty.
        """
        r = sinusoids(distance, self.position.shape[-1], self.clamp).to(q.dtype)
        r = torch.einsum("tsw,hdw->htsd", r, self.position)
        k = k[:, :, None].expand(-1, -1, q.shape[2], -1, -1) if k.dim() == 4 else k
        scores = torch.einsum("bhtd,bhtsd->bhts", q + self.content_bias[:, None], k)
        scores = scores + torch.einsum("bhtd,htsd->bhts", q + self.position_bias[:, None], r)
        scores = (scores / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        highest = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
        weights = (scores - highest).exp()
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total > 0, total, 1.0)

    def flops(self, T, head_dim):
        """Count content scores, position scores, mixing, and one projection of r."""
        widths = self.segment_widths(T)
        total = sum(size * (size + past) for size, past in widths)
        behind = total if self.causal else total + sum(size * size for size, _ in widths)
        distances = max(size + past for size, past in widths) + (not self.causal) * self.segment
        project = 2 * distances * head_dim * self.position.shape[-1]
        return 4 * total * head_dim + 2 * behind * head_dim + project
