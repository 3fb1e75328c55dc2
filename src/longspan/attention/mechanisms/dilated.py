"""Dilated sliding window (Longformer, Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, 3.1).

    out_t = sum_{s in W_t} softmax_s(q_t . k_s / sqrt(D)) v_s
    W_t = {s: s = t + g m, |m| <= w}                        (m <= 0 when causal)

`window` w is one-sided, as everywhere here (the paper counts both sides): 2w + 1 keys, w + 1 when
causal, that reach g times as far as without gaps. `dilation` g = 1 means no gaps, as in the
authors' code (the paper's tables write 0 for it). Positions of another residue modulo g never
meet, but for global tokens: a head, or a layer, of another dilation has to join them.

Both may differ from layer to layer (a list), and dilation from head to head: [1, 1, 2] is one of
each of three heads, [[1, 1, 1], [1, 1, 2]] the same for each of two layers. In the paper's
character models windows grow from 32 to 512 and two of eight heads are dilated, in upper layers
only. The public code's CPU path has no dilation at all: it is refused there, or dropped.
"""

from longspan.attention.base import Traits, register
from longspan.attention.ops.dilation import make_dilated_window
from longspan.attention.ops.pattern_base import PatternAttention


@register("dilated", size_option="window")
class DilatedAttention(PatternAttention):
    """Each query attends to every g-th key at most `window` steps of g away."""

    traits = Traits(
        paper="Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
        sizes=("heads", "layer"),
    )
    small_options = {"window": 3, "dilation": 3}

    def __init__(
        self,
        *,
        heads: int,
        layer: int = 0,
        window: int | list[int] = 128,
        dilation: int | list[int] | list[list[int]] = 2,
        causal: bool = False,
    ):
        """Take the one-sided window and the steps between its keys."""
        pattern = make_dilated_window("dilated", window, dilation, heads, layer, causal)
        super().__init__(pattern, causal)
