"""Sliding-window attention (Longformer, Beltagy et al. 2020, https://arxiv.org/abs/2004.05150).

    out_t = sum_{s: |s - t| <= w} softmax_s(q_t . k_s / sqrt(D)) v_s

The window w is one-sided: a query sees w keys on each side and itself, 2w + 1 keys (w + 1 when
causal); rows near the ends have fewer keys. Longformer's paper counts both sides together
(its 512 is 256 here). w = 0 returns the values; w >= T is full attention.

Two kinds of sinks keep weight that no key of the window deserves. With `sink_tokens` = n every
query also attends to the keys s < n, as StreamingLLM keeps them (Xiao et al. 2024,
https://arxiv.org/abs/2309.17453): causal, a cache holds w + n keys, however long the text. There
positions are those within the cache; here they are those of the text. With `sink_logit` a learned
z_h of each head h joins the denominator, as in OpenAI's gpt-oss: the weights of a row sum to less
than one.

    out_t = sum_s e^(x_ts) v_s / (e^(z_h) + sum_s e^(x_ts)),   x_ts = q_t . k_s / sqrt(D)
"""

from longspan.attention.base import register
from longspan.attention.ops.pattern_base import PatternAttention, pattern_traits
from longspan.attention.option_types import NonNegativeInt
from longspan.attention.patterns import Window


@register("local", size_option="window")
class LocalAttention(PatternAttention):
    """Attention to the keys at most `window` positions away."""

    traits = pattern_traits("Beltagy et al. 2020, https://arxiv.org/abs/2004.05150")
    small_options = {"window": 5}

    def __init__(
        self,
        *,
        heads: int | None = None,
        window: NonNegativeInt = 128,
        sink_tokens: NonNegativeInt = 0,
        sink_logit: bool = False,
        causal: bool = False,
    ):
        """Build the window pattern.

        Args:
            window: keys on each side of a query, w.
        """
        pattern = Window(window, 0 if causal else window)
        super().__init__(pattern, causal, sink_tokens, sink_logit, heads)
