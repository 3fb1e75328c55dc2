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
from longspan.attention.ops.blocks import gather_runs
from longspan.attention.ops.open_sizes import fit_block, is_open, pad_to_blocks, resize
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.option_types import PositiveInt

BLOCK = 8, 64  # smallest and largest number of positions of a block


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
        taps: PositiveInt = 3,
        kernels: Literal["channel", "head"] = "channel",
        causal: bool = False,
    ):
        """Create the kernels, initialized like torch's convolutions.

        Args:
            taps: length of a kernel, K.
            kernels: whether each "channel" has its own kernel and gate, or each "head".
        """
        super().__init__()
        self.causal, self.taps, self.per_channel = causal, taps, kernels == "channel"
        self.built_for = {"heads": heads, "head_dim": head_dim}
        if self.per_channel:
            self.built_for["value_dim"] = head_dim
        channels = head_dim if self.per_channel else 1
        self.kernels = nn.Parameter(torch.empty(heads, channels, taps).uniform_(-1, 1) / taps**0.5)

    def attend(self, x):
        """Multiply blocks of positions by band matrices."""
        out = self._convolve(x.v, *self._reach())
        return (self._gate(x.q) * out).to(x.v.dtype)

    def advance(self, x):
        """Convolve the last values of the past with the new ones."""
        past = 0 if x.cache is None else x.cache.state["tail"].shape[2]
        v = x.v if x.cache is None else torch.cat([x.cache.state["tail"], x.v], 2)
        out = self._convolve(v, self.taps - 1, 0)[:, :, past:]
        tail = v[:, :, max(0, v.shape[2] - self.taps + 1) :].clone()
        return (self._gate(x.q) * out).to(x.v.dtype), {"tail": tail}

    def _reach(self) -> tuple[int, int]:
        """Return the numbers of earlier and of later tokens that a token reads."""
        ahead = 0 if self.causal else (self.taps - 1) // 2
        return self.taps - 1 - ahead, ahead

    def _gate(self, q: Tensor) -> Tensor:
        q = at_least_float32(q)
        return q if self.per_channel else q.sum(-1, keepdim=True) * q.shape[-1] ** -0.5

    def _convolve(self, v: Tensor, behind: int, ahead: int) -> Tensor:
        """Convolve values (B, H, T, E), float32 or wider, by tokens so far behind and ahead."""
        (B, H, T, E), v = v.shape, at_least_float32(v)
        behind, ahead = (fit_block(x, T - 1) for x in (behind, ahead))  # there is nothing further
        block, left, right = _sizes(T, behind, ahead)
        runs = gather_runs(pad_to_blocks(v, block), block, left, right)
        kernels = self.kernels.narrow(-1, self._reach()[1] - ahead, behind + ahead + 1)
        # Kernels of a head serve rows of all channels, those of a channel rows of one.
        runs = runs.permute(1, 4, 0, 2, 3).reshape(H, kernels.shape[1], -1, runs.shape[3])
        bands = _bands(kernels.to(v.dtype), block)
        out = runs @ bands.narrow(2, behind - left, left + block + right)
        out = out.view(H, E, B, -1, block).permute(2, 0, 3, 4, 1).flatten(2, 3)
        return resize(out, T)

    def reference(self, x):
        """Add one shifted copy of the values after another."""
        T, (behind, ahead) = x.v.shape[2], self._reach()
        v = F.pad(x.v, (0, 0, behind, ahead))
        out = torch.zeros_like(x.v)
        for j in range(self.taps):
            first = behind + ahead - j
            out = out + self.kernels[:, :, j, None].mT * v[:, :, first : first + T]
        return self._gate(x.q) * out

    def pairs(self, T):
        """Return the number of pairs of tokens within a kernel."""
        return T + sum(T * n - n * (n + 1) // 2 for n in (min(x, T - 1) for x in self._reach()))

    def flops(self, T, head_dim):
        """Count the products of runs with bands."""
        return 2 * T * sum(_sizes(T, *(min(x, T - 1) for x in self._reach()))) * head_dim


def _sizes(length: int, behind: int, ahead: int) -> tuple[int, int, int]:
    """Return the positions of a block, and of its run before and behind it."""
    least, most = BLOCK
    block = fit_block(max(least, min(behind, most)), length)
    if not is_open(length) and length <= min(most, block + behind + ahead):
        return length, 0, 0  # all tokens are fewer than a run
    return block, behind, ahead


def _bands(kernels: Tensor, block: int) -> Tensor:
    """Return matrices (H, C, block + K - 1, block) that map the run of a block to the block.

    Entry (i, j) is tap j + K - 1 - i.
    """
    taps = kernels.shape[-1]
    # Rows of the transposed matrix are the reversed kernel, one place further each.
    rows = F.pad(kernels.flip(-1), (0, block)).repeat(1, 1, block)
    return rows[..., : block * (block + taps - 1)].unflatten(-1, (block, -1)).mT
