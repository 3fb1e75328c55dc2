"""Blockwise local attention, overlapping (Xiong et al. 2022, https://arxiv.org/abs/2112.07210).

    out_t = sum_s softmax_s(q_t . k_s / sqrt(D)) v_s,   c b - e <= s < (c + 1) b + e

with block c = floor(t / b) of the query and e = floor(b / 2): every query of a block sees the
same 2b keys, its own block and half a block on either side (fewer at the ends). Causal adds
s <= t. The grid starts at position 0: padding on the right never changes it, padding on the
left does.
"""

from longspan.attention.base import Traits, register
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.patterns import BlockWindow


@register("blockwise", size_option="block")
class BlockwiseAttention(PatternAttention):
    """Attention to the own block and half a block on either side."""

    traits = Traits(
        paper="Xiong et al. 2022, https://arxiv.org/abs/2112.07210",
        family="fixed pattern",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
        scale=True,
        bias=True,
        relative=True,
        weight_dropout=True,
        packed=True,
        anchored=True,
    )
    small_options = {"block": 8}

    def __init__(self, *, block: int = 128, causal: bool = False):
        """Build the block window pattern.

        Args:
            block: queries per block, b; they see twice as many keys.
            causal: whether keys after the query are excluded.
        """
        super().__init__(BlockWindow(block, block // 2), causal)
