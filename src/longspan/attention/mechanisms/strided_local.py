"""Strided groups: what Long Range Arena's released code computes as "local attention".

Tay et al. 2021 (https://arxiv.org/abs/2011.04006), file local_attention.py of their repository.

    out_t = sum_{s: s = t (mod m)} softmax_s(q_t . k_s / sqrt(D)) v_s,   m = floor(n / b) + 1

The release pads n tokens to m blocks of b (always by at least one token, so that a multiple of b
gets an extra block), reshapes to (b, m) and attends along the first axis, where the second would be
local: with b = 50 and n = 2000 token 0 sees 41, 82, ... 1968. A group has at most b tokens. Here t
and s number the real tokens of a row, so padding has no influence. The release masks padding with
blocks of neighbors, which are not its groups: it hides real tokens and shows padding; this is not
reproduced. There is no causal form: m is a global quantity, and the release has an encoder only.
"""

from typing import Literal

import torch
from torch import Tensor

from longspan.attention.base import Attention, Traits, register
from longspan.attention.derivatives import LinearFunction, apply_function
from longspan.attention.masking import apply_mask
from longspan.attention.ops.open_sizes import count_blocks, fit_block
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.option_types import PositiveInt


@register("strided_local", size_option="block")
class StridedLocalAttention(Attention):
    """Attention to tokens at multiples of m positions away."""

    traits = Traits(
        paper="Tay et al. 2021, https://arxiv.org/abs/2011.04006",
        family="fixed pattern",
        cost="T",
        exact=True,
        scale=True,
        sink_logits=True,
        sizes=("max_length",),
        ignores_gaps=True,
    )
    small_options = {"block": 6}

    def __init__(
        self,
        *,
        heads: int | None = None,
        max_length: int,
        block: PositiveInt = 50,
        length: Literal["max", "real"] = "max",
        extra_block: bool = True,
        sink_logit: bool = False,
    ):
        """Build the mechanism.

        Args:
            block: maximum size of a group, b.
            length: "max": n is max_length (the release pads every text to it); "real": n is the
                number of tokens of the row, so that short rows also have groups of b.
            extra_block: whether a multiple of b gets an extra block; if not, m = ceil(n / b).
        """
        super().__init__()
        self.built_for = {"max_length": max_length}
        if sink_logit:
            self.create_sink_logits(heads)
        self.max_length, self.block = max_length, block
        self.length, self.extra_block = length, extra_block

    def stride(self, n):
        """Return m, the distance between tokens of a group, of a length or a tensor of lengths."""
        n = n if self.length == "real" else 0 * n + self.max_length
        return n // self.block + 1 if self.extra_block else (n - 1) // self.block + 1

    def _slots(self, real: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the mappings between groups and tokens.

        Returns:
            index: token of each slot (B, groups * size).
            taken: True at slots that have a token.
            slot: slot of each token (B, T).
            size: slots per group.
        """
        T, count = real.shape[1], real.sum(1, keepdim=True)
        m = self.stride(count).clamp(min=1)
        groups = fit_block(self.stride(T), T)
        size = (
            fit_block(self.block, T) if self.length == "real" else count_blocks(T, self.stride(T))
        )
        group = torch.arange(groups, device=real.device)[:, None]
        rank = torch.arange(size, device=real.device) * m[..., None] + group
        taken = ((group < m[..., None]) & (rank < count[..., None])).flatten(1)
        order = torch.argsort(real.byte(), dim=1, descending=True, stable=True)
        index = order.gather(1, rank.flatten(1).clamp(max=T - 1))
        rank = real.cumsum(1) - 1
        slot = (rank % m * size + rank // m).where(real, 0)
        return index, taken, slot, size

    def attend(self, x):
        """Gather the groups, attend inside, scatter the rows."""
        q, k, v = x[:3]
        real = x.real.expand(len(q), -1)
        index, taken, slot, size = self._slots(real)
        groups = (apply_function(_Moved, y, index, taken, slot, real) for y in (q, k, v))
        count = index.shape[1] // size
        q, k, v = (y.unflatten(2, (count, size)) for y in groups)
        mask = taken.unflatten(1, (count, 1, size))[:, None]
        out = softmax_attention(q, k, v, mask, sink=x.sinks)
        return apply_function(_Moved, out.flatten(2, 3), slot, real, index, taken)

    def reference(self, x):
        """Process each row, reduced to its real tokens, group by group."""
        q, k, v, key_mask = x[:4]
        out, sink = torch.zeros_like(v), None if x.sinks is None else x.sinks[0]
        for b in range(q.shape[0]):
            tokens = torch.arange(q.shape[2], device=q.device)
            tokens = tokens if key_mask is None else tokens[key_mask[b]]
            m = self.stride(len(tokens))
            for members in (tokens[start::m] for start in range(min(m, len(tokens)))):
                every = q.new_ones(len(members), len(members), dtype=torch.bool)
                a, c, d = (y[b][:, members] for y in (q, k, v))
                out[b, :, members] = softmax_reference(a, c, d, every, sink=sink)
        return out

    def flops(self, T, head_dim):
        """Count two products in each group."""
        m = self.stride(T)
        return 4 * T * -(-T // m) * head_dim

    def pairs(self, T):
        """Sum the squares of the group sizes."""
        m = self.stride(T)
        size, longer = divmod(T, m)
        return longer * (size + 1) ** 2 + (m - longer) * size**2


class _Moved(LinearFunction):
    """Gather rows of x (B, H, T, D) at index (B, S), zero where `some` (B, S) is False; invertible.

    `index` and `back` are inverse where both are True, so the gradient is a gather as well; torch's
    own adds element by element.
    """

    @staticmethod
    def forward(x: Tensor, index: Tensor, some: Tensor, back: Tensor, back_valid: Tensor):
        B, H, T, D = x.shape
        flat = (index + torch.arange(B, device=x.device)[:, None] * T).flatten()
        # One contiguous row of H x D numbers per token, the layout in which a model creates them.
        rows = x.transpose(1, 2).reshape(B * T, H * D).index_select(0, flat)
        rows = rows.view(B, -1, H, D).transpose(1, 2)
        return apply_mask(rows, some[:, None, :, None])

    @staticmethod
    def backward(ctx, grad: Tensor):
        index, some, back, back_valid = ctx.saved_tensors
        return apply_function(_Moved, grad, back, back_valid, index, some), None, None, None, None
