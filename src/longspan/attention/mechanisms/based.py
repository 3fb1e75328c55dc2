"""Taylor linear attention plus an exact window, after Based (Arora et al. 2024), section 4.

    out_t = sum_s a_ts v_s / sum_s a_ts

    a_ts = exp(q_t . k_s / sqrt D)                                  |t - s| <= w
    a_ts = 1 + z + z^2 / 2,   z = (q_t W_q) . (k_s W_k) / sqrt F    further away

The second line is the Taylor series of exp, at least 1/2, and a product of features of q_t and k_s
(`taylor` of `linear`), so that distant keys are summed once for all queries. W_q and W_k project
to `feature_dim` F coordinates, by matrices of each head that are equal at first; None: no
projection, and z is the scaled product itself. The window w is one-sided, as in `local`.

Differences: Based alternates layers of Taylor attention and layers of a window, each normalized by
itself. Here one layer has both, and a row has one sum of weights, as in LoLCATs
(https://arxiv.org/abs/2410.10254), without its learned factor of the window. The public code adds
an epsilon to the sum of the weights.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.cache import keep_tokens
from longspan.attention.ops.blocks import gather_runs
from longspan.attention.ops.feature_map_sums import divide, finite_level
from longspan.attention.ops.feature_maps import (
    Projections,
    count_features,
    taylor_features,
    taylor_weights,
)
from longspan.attention.ops.open_sizes import (
    fit_block,
    is_open,
    pad_to_blocks,
    resize,
    split_blocks,
)
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.recurrence import CHUNK
from longspan.attention.ops.softmax import pair_mask
from longspan.attention.option_types import NonNegativeInt, PositiveInt


@register("based", size_option="window")
class BasedAttention(Attention):
    """Softmax to the keys at most `window` positions away, and its Taylor series to all others."""

    traits = Traits(
        paper="Arora et al. 2024, https://arxiv.org/abs/2402.18668",
        family="hybrid",
        cost="T",
        exact=False,
        causal=True,
        state_size="1",
        sizes=("heads", "head_dim"),
    )
    small_options = {"window": 5, "feature_dim": 3}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        window: NonNegativeInt = 64,
        feature_dim: PositiveInt | None = 16,
        causal: bool = False,
    ):
        """Create the projections.

        Args:
            window: keys on each side of a query with exact weights, w.
            feature_dim: coordinates to which q and k are projected, F, or None.
        """
        super().__init__()
        self.causal, self.window, self.feature_dim = causal, window, feature_dim
        self.projections = None
        if feature_dim is not None:
            self.built_for = {"heads": heads, "head_dim": head_dim}
            self.projections = Projections(heads, head_dim, feature_dim, identity=False)

    def attend(self, x):
        """Compute weights between neighboring blocks, and one summary per block for the others."""
        q, k, v = map(at_least_float32, x[:3])
        return self._rows(q, k, v, x.key_mask, None).to(x.v.dtype)

    def advance(self, x):
        """Add keys that leave the window to the summary, whose size is constant."""
        state = append_tokens(x.cache, {"k": x.k, "v": x.v}, x.key_mask)
        summary = None if x.cache is None else x.cache.state["summary"]
        q, k, v = map(at_least_float32, (x.q, state["k"], state["v"]))
        out, real = self._rows(q, k, v, state.get("real"), summary), state.get("real")
        start = max(0, k.shape[2] - self.window)
        left = slice(0, start)
        fk = taylor_features(self._projected(k, k)[1][:, :, left])
        if real is not None:
            fk = fk * real[:, None, left, None]
        added = fk.mT @ _with_ones(v[:, :, left])
        kept = keep_tokens(state, [], start)
        return out.to(x.v.dtype), kept | {"summary": added if summary is None else summary + added}

    def _projected(self, q, k):
        return (q, k) if self.projections is None else self.projections(q, k)

    def _rows(self, q, k, v, real, summary):
        """Return the rows of queries that end with the keys, after those of the summary.

        A block is at least as long as the window, so that near keys are in neighboring blocks.
        Queries of a step are compared with all keys where these are few.
        """
        T, S = q.shape[2], k.shape[2]
        real = k.new_ones(1, S, dtype=torch.bool) if real is None else real
        (zq, zk), v, real = self._projected(q, k), _with_ones(v), real[:, None, :, None]
        block = fit_block(max(CHUNK, self.window), S)
        if not is_open(S) and T < S <= 2 * block:
            tokens = [y[:, :, None] for y in (q, zq, k, zk, v, real)]
            distant = None if summary is None else summary[:, :, None]
            return self._mix(tokens, distant, S - T)[:, :, 0]
        q, zq = (split_blocks(F.pad(y, (0, 0, S - T, 0)), block) for y in (q, zq))
        fk = taylor_features(split_blocks(zk, block)) * split_blocks(real, block)
        distant = self._distant_sums(fk.mT @ split_blocks(v, block), summary)
        sides = block, block, 0 if self.causal else block
        keys = (gather_runs(pad_to_blocks(y, block), *sides) for y in (k, zk, v, real))
        out = self._mix([q, zq, *keys], distant, block)
        return resize(out.flatten(2, 3), S)[:, :, S - T :]

    def _mix(self, tokens: list[Tensor], distant: Tensor | None, before: int):
        """Return the rows of blocks (B, H, blocks, block, E) from near keys and distant sums.

        Args:
            tokens: q, its projection, k, its projection, v and the mask of each block.
            distant: sums of all other keys (B, H, 1 or blocks, M, E + 1), or None.
            before: keys of a block before its first query.
        """
        q, zq, k, zk, v, real = tokens
        near, level, weights = self._neighbors(q, zq, k, zk, real, before)
        rest = weights @ v
        if distant is not None:
            rest = rest + taylor_features(zq) @ distant
        # The larger of both parts is near one, so that no row underflows. Each Taylor weight is at
        # least 1/2: the level of a row with any is above -1.
        top = torch.maximum(level, rest[..., -1:].detach().clamp(min=0).log())
        top = finite_level(top)
        total = near @ v * (level - top).exp() + rest * (-top).clamp(max=1).exp()
        return divide(total[..., :-1], total[..., -1:])

    def _neighbors(self, q, zq, k, zk, real, before: int):
        """Return weights of near keys (B, H, blocks, block, S).

        Returns:
            Exponential weights within the window, relative to a level of the row, the level, and
            Taylor weights beyond the window.
        """
        i = torch.arange(q.shape[3], device=q.device)[:, None]
        j = torch.arange(k.shape[3], device=q.device) - before
        allowed = real.mT & (j <= i) if self.causal else real.mT
        is_near = (i - j).abs() <= self.window
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~(allowed & is_near), -torch.inf)
        level = scores.detach().amax(-1, keepdim=True)
        near = (scores - finite_level(level)).exp()
        return near, level, taylor_weights(zq, zk) * (allowed & ~is_near)

    def _distant_sums(self, sums: Tensor, summary: Tensor | None) -> Tensor:
        """Return the sums of all blocks that are no neighbors (B, H, blocks, M, E + 1)."""
        count = sums.shape[2]
        distant = resize(F.pad(sums.cumsum(2), (0, 0, 0, 0, 2, 0)), count)
        if not self.causal:
            after = F.pad(sums.flip(2).cumsum(2).flip(2), (0, 0, 0, 0, 0, 2))
            distant = distant + after.narrow(2, 2, count)
        return distant if summary is None else distant + summary[:, :, None]

    def reference(self, x):
        """Compute the logarithms of all weights, and their softmax."""
        q, k, v, key_mask = x[:4]
        zq, zk = q, k
        if self.projections is not None:
            zq = torch.einsum("bhtd,hdf->bhtf", q, self.projections.query)
            zk = torch.einsum("bhtd,hdf->bhtf", k, self.projections.key)
        z = zq @ zk.mT / zq.shape[-1] ** 0.5
        scores = q @ k.mT / q.shape[-1] ** 0.5
        t = torch.arange(q.shape[2], device=q.device)
        is_near = (t[:, None] - t).abs() <= self.window
        logs = torch.where(is_near, scores, (1 + z + z**2 / 2).log())
        allowed = pair_mask(len(t), len(t), self.causal, key_mask, q.device)
        logs = logs.masked_fill(~allowed, -torch.inf)
        weights = (logs - finite_level(logs.detach().amax(-1, keepdim=True))).exp()
        total = weights.sum(-1, keepdim=True)
        return weights @ v / torch.where(total > 0, total, 1.0)

    def is_dense(self, T):
        """Return whether the window holds all tokens."""
        return self.window >= T - 1

    def flops(self, T, head_dim):
        """Count projections, the summary and its reading, and pairs of neighboring blocks."""
        width = self.feature_dim or head_dim
        M = count_features("taylor", width)
        pairs = T * min(max(CHUNK, self.window), T) * (2 if self.causal else 3)
        projections = 0 if self.projections is None else 4 * T * head_dim * width
        return 4 * T * M * head_dim + pairs * (6 * head_dim + 2 * width) + projections


def _with_ones(v: Tensor) -> Tensor:
    """Return values (..., E + 1) whose last column sums the weights."""
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)
