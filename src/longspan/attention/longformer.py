"""Longformer, Beltagy et al. 2020 (https://arxiv.org/abs/2004.05150), section 3; LED's encoder.

    out_i = softmax_{j in W_i | G}(q_i . k_j / sqrt(D)) v_j          of a local token i
    out_i = softmax_j(qg_i . kg_j / sqrt(D)) vg_j                    of a global token i, all real j

W_i is the window of i, at most w keys on each side, with gaps in dilated heads; G are the global
tokens of the row (`global_mask`, another number in each). A key of both counts once. When causal,
j <= i everywhere. `window` is one-sided; the paper, and published checkpoints, count both sides:
their 512 is 256 here. `dilation` 1 means no gaps. Lists give windows per layer and dilations per
head (or per layer and head).

With `global_projections`, as in all published checkpoints, qg, kg, vg are projections of the
layer's input of their own; the model passes that input as `source`. They start at random:
`copy_projections` gives them the values of the local ones, as in the paper. Without, global
tokens use q, k and v (Xiong et al. 2022). A step of decoding has no global tokens.

The mapping is the published one. The public code wants windows that are even and divide each
other, drops dilation on CPU, never reads its causal option, and bounds masked scores by -10000.
"""

import torch
from torch import nn

from longspan.attention._blocks import pattern_rows
from longspan.attention._dilation import dilated_window
from longspan.attention._global_projections import GlobalProjections
from longspan.attention._globals import global_tokens
from longspan.attention._pattern import PatternAttention
from longspan.attention._softmax import pair_mask, softmax_reference
from longspan.attention.base import Traits, register
from longspan.errors import OptionError


@register("longformer", knob="window")
class LongformerAttention(PatternAttention):
    """A window for most tokens, and for the global ones all, with projections of their own."""

    traits = Traits(
        paper="Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
        source=True,
        sizes=("heads", "head_dim", "layer"),
    )
    small = {"window": [5, 3]}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        layer: int = 0,
        window: int | list[int] = 256,
        dilation: int | list[int] | list[list[int]] = 1,
        global_projections: bool = False,
        causal: bool = False,
    ):
        """Take the one-sided window, the steps between its keys, and whether to own projections."""
        pattern = dilated_window("longformer", window, dilation, heads, layer, causal)
        super().__init__(pattern, causal)
        self.projections = GlobalProjections(heads, head_dim) if global_projections else None
        self.idle = global_projections

    def copy_projections(self, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> None:
        """Start the global projections as copies of the layer's own.

        Raises:
            OptionError: it has none, or those given are of another width.
        """
        if self.projections is None:
            raise OptionError("longformer has projections of its own with global_projections=True")
        self.projections.copy(query, key, value)

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: projections are of one number of heads and one width."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        if self.projections is not None:
            D = self.projections.head_dim
            expected, got = (self.projections.heads, D, D), (q.shape[1], q.shape[3], v.shape[3])
            if got != expected:
                reasons.append(f"it was built for (heads, D, E) = {expected}, got {got}")
        return reasons

    def _source_refusals(self, k, source):
        reasons = super()._source_refusals(k, source)
        if self.projections is None:
            return reasons
        width = self.projections.query.in_features
        if source is None:
            reasons.append("global_projections=True needs `source`, the input of the layer")
        elif source.states.shape[-1] != width:
            reasons.append(f"source.states must be {width} wide, got {source.states.shape[-1]}")
        return reasons

    def attend(self, q, k, v, key_mask, global_mask, source=None):
        """The gathered-block kernel; then the rows of the global tokens, if there are any."""
        if self.projections is None:
            return super().attend(q, k, v, key_mask, global_mask)
        chosen = global_tokens((), k, v, key_mask, global_mask)
        out = pattern_rows(q, k, v, self.pattern, key_mask, chosen)
        if chosen is None:
            return out
        rows = self.projections.rows(source.states.to(v.dtype), chosen, key_mask, self.causal)
        return chosen.placed(rows, out)

    def reference(self, q, k, v, key_mask, global_mask, source=None):
        """Both branches for all tokens over dense masks; a global token takes the second."""
        out = super().reference(q, k, v, key_mask, global_mask)
        if self.projections is None or global_mask is None:
            return out
        qg, kg, vg = self.projections.projected(source.states.to(v.dtype))
        every = pair_mask(q.shape[2], q.shape[2], self.causal, key_mask, q.device)
        is_global = global_mask if key_mask is None else global_mask & key_mask
        rows = softmax_reference(qg, kg, vg, every)
        return torch.where(is_global[:, None, :, None], rows, out)
