"""Dilated sliding window (Longformer, Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, 3.1).

    out_t = sum_{s in W_t} softmax_s(q_t . k_s / sqrt(D)) v_s
    W_t = {s: s = t + g m, |m| <= w}                        (m <= 0 when causal)

The window w is one-sided (the paper counts both sides): 2w + 1 keys, w + 1 when causal, which reach
g times as far as without gaps. Dilation g = 1 means no gaps, as in the authors' code (the paper's
tables write 0 for it). Positions in different residue classes modulo g never attend to each other,
except through global tokens: another head or layer needs another dilation.

In the paper's character models windows grow from 32 to 512, and two of eight heads are dilated, in
upper layers only. The CPU path of the public code does not support dilation: it refuses or drops
it.
"""

from longspan.attention.base import register
from longspan.attention.ops.dilation import LAYERED, make_dilated_window
from longspan.attention.ops.pattern_base import PatternAttention, pattern_traits
from longspan.attention.option_types import NonNegativeInt, PositiveInt


@register("dilated", size_option="window")
class DilatedAttention(PatternAttention):
    """Attention to every g-th key at most `window` steps of g away."""

    traits = pattern_traits(
        "Beltagy et al. 2020, https://arxiv.org/abs/2004.05150", sizes=("heads", "layer")
    )
    small_options = {"window": 3, "dilation": 3}
    layered_options = LAYERED

    def __init__(
        self,
        *,
        heads: int,
        layer: int = 0,
        window: NonNegativeInt | list[NonNegativeInt] = 128,
        dilation: PositiveInt | list[PositiveInt] | list[list[PositiveInt]] = 2,
        sink_tokens: NonNegativeInt = 0,
        sink_logit: bool = False,
        causal: bool = False,
    ):
        """Build the pattern of this layer.

        Args:
            window: keys on each side of a query, w; a list gives one number per layer.
            dilation: step between the keys of a window, g. [1, 1, 2] gives one number for each of
                three heads, [[1, 1, 1], [1, 1, 2]] one for each head of two layers.
        """
        pattern = make_dilated_window("dilated", window, dilation, heads, layer, causal)
        super().__init__(pattern, causal, sink_tokens, sink_logit, heads)
