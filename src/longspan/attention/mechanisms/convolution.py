"""Gated convolution of the values along the sequence: a baseline that compares no tokens.

    out_t = g_t sum_j w_j v_{t - j},   0 <= j < K when causal

Otherwise the K taps are centered: j from -((K - 1) div 2) to K div 2. With the kernels of a
"channel", w and g = q_t are those of the channel, one number for each entry of v, as in BaseConv of
Zoology (Arora et al. 2023), which gates a depthwise convolution by a linear map of the layer's
input. With those of a "head", all its channels share K taps and the gate sum_d q_td / sqrt(D), so
that the output is a weighted sum of the values. Keys are not read. Padding counts as zeros.

Differences from BaseConv: what is convolved is a projection of the input, the values, and neither
the convolution nor the gate has a bias beyond those of the projections. Its residual connection is
that of the layer.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Attention, Traits, register
from longspan.attention.ops.open_sizes import resize, split_blocks
from longspan.attention.ops.precision import at_least_float32
from longspan.errors import OptionError

LEAST_BLOCK = 8  # positions of a block, at least


@register("convolution", size_option="taps")
class Convolution(Attention):
    """Depthwise convolution of the values, gated by the queries."""

    traits = Traits(
        paper="Arora et al. 2023, https://arxiv.org/abs/2312.04927",
        family="convolution",
        cost="T",
        exact=False,
        row_sums="any",
        causal=True,
        inputs="qv",
        carries_positions=True,
        state_size="1",
        sizes=("heads", "head_dim"),
    )
    small_options = {"taps": 5, "kernels": "head"}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        taps: int = 3,
        kernels: Literal["channel", "head"] = "channel",
        causal: bool = False,
    ):
        """Create the kernels, initialized like torch's convolutions.

        Args:
            heads: number of heads.
            head_dim: head dimension.
            taps: length of a kernel, K.
            kernels: whether each "channel" has its own kernel and gate, or each "head".
            causal: whether later tokens are excluded.
        """
        super().__init__()
        if taps < 1:
            raise OptionError(f"convolution: option taps must be >= 1, got {taps}")
        if kernels not in ("channel", "head"):
            expected = f"must be channel or head, got {kernels!r}"
            raise OptionError(f"convolution: option kernels {expected}")
        self.causal, self.taps, self.per_channel = causal, taps, kernels == "channel"
        self.built_for = {"heads": heads, "head_dim": head_dim}
        channels = head_dim if self.per_channel else 1
        self.kernels = nn.Parameter(torch.empty(heads, channels, taps).uniform_(-1, 1) / taps**0.5)

    def refusals(self, x):
        """Refuse values of another width if each of their channels has a kernel."""
        reasons, width = super().refusals(x), self.built_for["head_dim"]
        if self.per_channel and x.v.shape[3] != width:
            reasons.append(f"v must be {width} wide with kernels='channel', got {x.v.shape[3]}")
        return reasons

    def attend(self, x):
        """Multiply blocks of positions by band matrices."""
        out = self._convolve(x.v, 0 if self.causal else (self.taps - 1) // 2)
        return (self._gate(x.q) * out).to(x.v.dtype)

    def advance(self, x):
        """Convolve the last values of the past with the new ones."""
        past = 0 if x.cache is None else x.cache.state["tail"].shape[2]
        v = x.v if x.cache is None else torch.cat([x.cache.state["tail"], x.v], 2)
        out = self._convolve(v, 0)[:, :, past:]
        tail = v[:, :, max(0, v.shape[2] - self.taps + 1) :].clone()
        return (self._gate(x.q) * out).to(x.v.dtype), {"tail": tail}

    def _gate(self, q: Tensor) -> Tensor:
        q = at_least_float32(q)
        return q if self.per_channel else q.sum(-1, keepdim=True) * q.shape[-1] ** -0.5

    def _convolve(self, v: Tensor, ahead: int) -> Tensor:
        """Convolve values (B, H, T, E), float32 or wider; `ahead` taps are of later tokens.

        A block is at least as long as the kernel, so that a position reads its own block and the
        one before.
        """
        (B, H, T, E), kernels = v.shape, at_least_float32(self.kernels)
        block = max(LEAST_BLOCK, self.taps - 1)
        v = resize(at_least_float32(v), T + ahead).mT
        blocks = split_blocks(v, block, 3)
        runs = torch.cat([F.pad(blocks, (0, 0, 1, 0))[:, :, :, :-1], blocks], -1)
        # Kernels of a head serve rows of all channels, those of a channel rows of one.
        order = (1, 2, 0, 3, 4)
        runs = runs.permute(order).reshape(*kernels.shape[:2], -1, 2 * block)
        out = runs @ _bands(kernels, block)
        out = out.view(H, E, B, -1, block).permute(2, 0, 1, 3, 4).flatten(3)
        return out[..., ahead : T + ahead].mT

    def reference(self, x):
        """Add one shifted copy of the values after another."""
        T, taps, ahead = x.v.shape[2], self.taps, 0 if self.causal else (self.taps - 1) // 2
        v = F.pad(x.v, (0, 0, taps - 1, ahead))
        out = torch.zeros_like(x.v)
        for j in range(taps):
            first = taps - 1 + ahead - j
            out = out + self.kernels[:, :, j, None].mT * v[:, :, first : first + T]
        return self._gate(x.q) * out

    def pairs(self, T):
        """Return the number of pairs of tokens within a kernel."""
        ahead = 0 if self.causal else min(T, (self.taps - 1) // 2 + 1) - 1
        behind = min(T - 1, self.taps - 1 - (0 if self.causal else (self.taps - 1) // 2))
        return T + sum(T * n - n * (n + 1) // 2 for n in (ahead, behind))

    def flops(self, T, head_dim):
        """Count the products of blocks with bands, and the gate."""
        return T * head_dim * (4 * max(LEAST_BLOCK, self.taps - 1) + 1)


def _bands(kernels: Tensor, block: int) -> Tensor:
    """Return matrices (H, C, 2 block, block) that map a block and the one before it to outputs.

    Entry (i, j) is tap j + block - i.
    """
    taps = kernels.shape[-1]
    # Rows of the transposed matrix are the reversed kernel, one place further each.
    rows = F.pad(kernels.flip(-1), (block + 1 - taps, block)).repeat(1, 1, block)
    return rows[..., : block * 2 * block].unflatten(-1, (block, 2 * block)).mT
