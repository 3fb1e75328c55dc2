"""Blockwise local attention without overlap (Xiong et al. 2022, https://arxiv.org/abs/2112.07210).

    out_t = sum_s softmax_s(q_t . k_s / sqrt(D)) v_s,   floor(s / B) = floor(t / B)

A query sees the keys of its own block only. For as many keys as `blockwise` with block b, use
B = 2b, as in the paper. Causal adds s <= t, so the first token of a block sees only itself.
"""

from longspan.attention.base import register
from longspan.attention.ops.pattern_base import PatternAttention, pattern_traits
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.attention.patterns import BlockWindow


@register("disjoint", size_option="block")
class DisjointAttention(PatternAttention):
    """Attention to the own block."""

    traits = pattern_traits("Xiong et al. 2022, https://arxiv.org/abs/2112.07210", anchored=True)
    small_options = {"block": 8}

    def __init__(
        self,
        *,
        heads: int | None = None,
        block: PositiveInt = 256,
        sink_tokens: NonNegativeInt = 0,
        sink_logit: bool = False,
        causal: bool = False,
    ):
        """Build the block pattern.

        Args:
            block: length of a block, B.
        """
        super().__init__(BlockWindow(block), causal, sink_tokens, sink_logit, heads)
