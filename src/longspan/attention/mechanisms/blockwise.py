"""Blockwise local attention, overlapping (Xiong et al. 2022, https://arxiv.org/abs/2112.07210).

    out_t = sum_s softmax_s(q_t . k_s / sqrt(D)) v_s,   c b - e <= s < (c + 1) b + e

with block c = floor(t / b) of the query and e = floor(b / 2): every query of a block sees the
same 2b keys, its own block and half a block on either side (fewer at the ends). Causal adds
s <= t. The grid starts at position 0: padding on the right never changes it, padding on the
left does.

Option `neighbors` chooses whole blocks instead. Without `causal` they are on a circle, as in the
local attention of transformers' Reformer: the last block of the padded row precedes the first.
With `circle=False` the blocks at the ends have fewer neighbors, as in the package local-attention.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import register
from longspan.attention.ops.blocks import pattern_attention
from longspan.attention.ops.pattern_base import PatternAttention, pattern_traits
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.attention.patterns import BlockWindow, Pattern
from longspan.errors import OptionError


@register("blockwise", size_option="block")
class BlockwiseAttention(PatternAttention):
    """Attention to the own block and half a block on either side."""

    traits = pattern_traits("Xiong et al. 2022, https://arxiv.org/abs/2112.07210", anchored=True)
    small_options = {"block": 8}

    def __init__(
        self,
        *,
        heads: int | None = None,
        block: PositiveInt = 128,
        neighbors: list[NonNegativeInt] | None = None,
        grid: PositiveInt | None = None,
        circle: bool = True,
        sink_tokens: NonNegativeInt = 0,
        sink_logit: bool = False,
        causal: bool = False,
    ):
        """Build the block window pattern.

        Args:
            block: queries per block, b; they see twice as many keys.
            neighbors: numbers of whole blocks before and after its own that a query sees; None:
                half a block on either side.
            grid: multiple of `block` to which the row of a circle is padded; None: `block`. A block
                that is a neighbor on both sides counts twice.
            circle: whether the first and the last of the `neighbors` blocks are neighbors, unless
                causal.
        """
        if reason := _neighbor_refusal(block, neighbors, grid, circle):
            raise OptionError(f"blockwise: option {reason}")
        pattern: Pattern = BlockWindow(block, block // 2)
        if neighbors is not None:
            pattern = BlockWindow(block, *(block * count for count in neighbors))
        super().__init__(pattern, causal, sink_tokens, sink_logit, heads)
        self.block = block
        self.circle = tuple(neighbors) if neighbors and circle and not causal else None
        self.grid = grid or block
        if self.circle:
            self.traits = dataclasses.replace(
                self.traits, bias=False, relative=False, packed=False, global_tokens=False
            )
            if sink_tokens:
                raise OptionError(
                    "blockwise: option sink_tokens requires causal=True, "
                    f"circle=False or no neighbors, got sink_tokens={sink_tokens}"
                )

    def attend_pattern(self, x):
        """Attend over the pattern; on a circle, over the row with copies of its ends."""
        q, k, v = x[:3]
        T = q.shape[2]
        size = self._padded_length(T)
        if self.circle is None or size == self.block:
            return super().attend_pattern(x)
        before = self.circle[0] * self.block
        index = torch.arange(-before, size + self.circle[1] * self.block, device=q.device) % size
        q, k, v = (F.pad(y, (0, 0, 0, size - T)).index_select(2, index) for y in (q, k, v))
        real = F.pad(x.real, (0, size - T)).index_select(1, index)
        row = x._replace(q=q, k=k, v=v, key_mask=real)
        out = pattern_attention(row, self.pattern, dropout=self.dropout)
        return out[:, :, before : before + T]

    def reference(self, x):
        """Compute full softmax under the dense mask; on a circle, of scores + log counts."""
        q, k, v, key_mask = x[:4]
        T = q.shape[2]
        if self.circle is None or self._padded_length(T) == self.block:
            return super().reference(x)
        counts = self._counts(T).to(q.device)
        mask = (counts > 0)[None, None]
        mask = mask if key_mask is None else mask & key_mask[:, None, None, :]
        bias = counts.clamp(min=1).to(q.dtype).log()[None, None]
        return softmax_reference(q, k, v, mask, bias, self.dropout, x.sinks)

    def _padded_length(self, T: int) -> int:
        return -(-T // self.grid) * self.grid

    def _counts(self, T: int) -> Tensor:
        """Return how often each query sees each key on the circle, (T, T)."""
        before, after = self.circle or (0, 0)
        blocks = self._padded_length(T) // self.block
        block_index = torch.arange(T) // self.block
        offsets = torch.arange(-before, after + 1)
        seen = (block_index[:, None] + offsets) % blocks
        return (seen[:, None] == block_index[None, :, None]).sum(-1)

    def pairs(self, T):
        """Count the pairs of the pattern, or of the circle."""
        if self.circle is None or self._padded_length(T) == self.block:
            return super().pairs(T)
        sizes = torch.tensor([self.block] * (T // self.block) + [T % self.block])
        sizes = F.pad(sizes, (0, self._padded_length(T) // self.block + 1 - len(sizes)))[:-1]
        before, after = self.circle
        seen = sum(sizes.roll(-offset) for offset in range(-before, after + 1))
        return int((sizes * seen).sum())


def _neighbor_refusal(
    block: int, neighbors: list[int] | None, grid: int | None, circle: bool
) -> str:
    """Return the reason why these are no neighbors of a block, or an empty text."""
    if grid is not None and (neighbors is None or grid % block):
        return f"grid must be a multiple of block={block}, and requires neighbors, got {grid}"
    if neighbors is not None and len(neighbors) != 2:
        return f"neighbors must be two numbers, before and after, got {neighbors}"
    if not circle and neighbors is None:
        return "circle=False requires neighbors: windows of half a block have no circle"
    return ""
