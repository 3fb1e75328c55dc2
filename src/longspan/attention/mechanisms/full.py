"""Full softmax attention, Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), eq. 1.

    out_t = sum_s softmax_s(q_t . k_s / sqrt(D)) v_s

over all real keys s, or those with s <= t + (S - T) when causal: queries are aligned to the end
of the keys, as in decoding (torch's own `is_causal` aligns them to the start). The fast body is
`scaled_dot_product_attention`: time grows as T^2, and so does memory where a mask must be built.
"""

import torch.nn.functional as F

from longspan.attention.base import Attention, Traits, register
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.softmax import pair_mask, softmax_reference


@register("full")
class FullAttention(Attention):
    """Every query attends to every key."""

    traits = Traits(
        paper="Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        cost="T^2",
        exact=True,
        causal=True,
        cross=True,
        global_tokens=True,
    )

    def __init__(self, *, causal: bool = False):
        """Take the causal form or not; there are no options."""
        super().__init__()
        self.causal = causal

    def attend(self, q, k, v, key_mask, global_mask):
        """Let torch choose its best kernel; global tokens are all there is, so the mask is moot."""
        T, S = q.shape[-2], k.shape[-2]
        if key_mask is None and (T == S or not self.causal):
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        if self.causal:
            mask = pair_mask(T, S, True, key_mask, q.device)
        else:
            mask = key_mask[:, None, None, :]
        some = mask.any(-1, keepdim=True)
        # A row without keys gets all of them, then zeros: no backend sees an empty row.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~some)
        return apply_mask(out, some)

    def reference(self, q, k, v, key_mask, global_mask):
        """The formula over the (T, S) matrix of weights."""
        mask = pair_mask(q.shape[-2], k.shape[-2], self.causal, key_mask, q.device)
        return softmax_reference(q, k, v, mask)

    def attention_weights(self, q, k, key_mask):
        """Softmax over the scores."""
        mask = pair_mask(q.shape[-2], k.shape[-2], self.causal, key_mask, q.device)
        weights = masked_softmax((q * q.shape[-1] ** -0.5) @ k.mT, mask)
        return apply_mask(weights, mask.any(-1, keepdim=True))

    def flops(self, T, head_dim):
        """Two products of T x T x D."""
        return 4 * self.pairs(T) * head_dim

    def pairs(self, T):
        """All of them, or the lower triangle."""
        return T * (T + 1) // 2 if self.causal else T * T
