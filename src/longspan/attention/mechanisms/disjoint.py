"""Blockwise local attention without overlap (Xiong et al. 2022, https://arxiv.org/abs/2112.07210).

    out_t = sum_s softmax_s(q_t . k_s / sqrt(D)) v_s,   floor(s / B) = floor(t / B)

A query sees the keys of its own block only. To keep the number of keys of `blockwise` with
block b take B = 2b, as the paper does. Causal adds s <= t, so the first token of a block sees
itself alone.
"""

from longspan.attention.base import Traits, register
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.patterns import BlockWindow


@register("disjoint", size_option="block")
class DisjointAttention(PatternAttention):
    """Each query attends to its own block."""

    traits = Traits(
        paper="Xiong et al. 2022, https://arxiv.org/abs/2112.07210",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
    )
    small_options = {"block": 8}

    def __init__(self, *, block: int = 256, causal: bool = False):
        """Take the length of a block."""
        super().__init__(BlockWindow(block), causal)
