"""Full softmax attention, Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), eq. 1.

    out_t = sum_s softmax_s(q_t . k_s / sqrt(D)) v_s

over all real keys s, or those with s <= t + (S - T) when causal: queries are aligned to the end
of the keys, as in decoding (torch's own `is_causal` aligns them to the start). `attend` calls
`scaled_dot_product_attention`: time grows as T^2, and so does memory if a mask must be built.

With `sink_logit` a learned z_h of each head h joins the denominator, as in OpenAI's gpt-oss:

    out_t = sum_s e^(x_ts) v_s / (e^(z_h) + sum_s e^(x_ts)),   x_ts = q_t . k_s / sqrt(D)
"""

from functools import partial

import torch

from longspan.attention.base import Attention, Traits, register
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.masking import apply_mask
from longspan.attention.ops.fused import torch_attention
from longspan.attention.ops.sinks import sink_attention
from longspan.attention.ops.softmax import pair_mask, softmax_reference, split_bias
from longspan.attention.relative_bias import RelativeBias


@register("full")
class FullAttention(Attention):
    """Attention from every query to every key."""

    traits = Traits(
        paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        family="dense",
        cost="T^2",
        exact=True,
        causal=True,
        cross=True,
        global_tokens=True,
        scale=True,
        bias=True,
        relative=True,
        sink_logits=True,
        weight_dropout=True,
        ignores_gaps=True,
    )
    takes_groups = True

    def __init__(self, *, heads: int | None = None, sink_logit: bool = False, causal: bool = False):
        """Build the mechanism."""
        super().__init__()
        if sink_logit:
            self.create_sink_logits(heads)
        self.causal = causal

    def attend(self, x):
        """Call torch. Global tokens change nothing: every token already attends to all."""
        (q, k, v, key_mask), bias = x[:4], x.bias
        T, S = q.shape[-2], k.shape[-2]
        more = {"dropout_p": self.dropout, "enable_gqa": k.shape[1] < q.shape[1]}
        rows = partial(sink_attention, sink=x.sinks) if x.sinks is not None else torch_attention
        if key_mask is None and bias is None and (T == S or not self.causal):
            return rows(q, k, v, is_causal=self.causal, **more)
        if self.causal or key_mask is None:
            mask = pair_mask(T, S, self.causal, key_mask, q.device)
        else:
            mask = key_mask[:, None, None, :]
        if isinstance(bias, RelativeBias):
            bias = bias.shifted(T, S, self.causal, q.device)
        if bias is not None:
            bias, mask = split_bias(bias, mask)
        some = mask.any(-1, keepdim=True)
        # No backend may see an empty row: it attends to all keys, then becomes zero.
        allowed = mask | ~some
        allowed = allowed if bias is None else bias.masked_fill(~allowed, -torch.inf)
        return apply_mask(rows(q, k, v, allowed, **more), some)

    def reference(self, x):
        """Apply the formula with the (T, S) matrix of weights."""
        (q, k, v, key_mask), bias = x[:4], x.bias
        mask = pair_mask(q.shape[-2], k.shape[-2], self.causal, key_mask, q.device)
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
        if isinstance(bias, RelativeBias):
            bias = bias.all_pairs(q.shape[-2], k.shape[-2], q.device)
        return softmax_reference(q, k, v, mask, bias, self.dropout, x.sinks)

    def flops(self, T, head_dim):
        """Count two products of T x T x D."""
        return 4 * self.pairs(T) * head_dim

    def pairs(self, T):
        """Count all pairs, or the lower triangle."""
        return T * (T + 1) // 2 if self.causal else T * T
