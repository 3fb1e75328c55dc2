"""Longformer, Beltagy et al. 2020 (https://arxiv.org/abs/2004.05150), section 3; LED's encoder.

    out_i = softmax_{j in W_i | G}(q_i . k_j / sqrt(D)) v_j          of a local token i
    out_i = softmax_j(qg_i . kg_j / sqrt(D)) vg_j                    of a global token i, all real j

W_i is the window of i, at most w keys on each side, with gaps in dilated heads; G are the global
tokens of the row (`global_mask`, another number in each). A key of both counts once. When causal,
j <= i everywhere. `window` is one-sided; the paper, and published checkpoints, count both sides:
their 512 is 256 here. `dilation` 1 means no gaps. Lists give windows per layer and dilations per
head (or per layer and head).

With `global_projections`, as in all published checkpoints, qg, kg, vg are projections of the
layer's input of their own; the model passes that input as `layer_input`. They start at random:
`copy_projections` gives them the values of the local ones, as in the paper. Without, global
tokens use q, k and v (Xiong et al. 2022). A step of decoding has no global tokens.

The mapping is the published one. The public code wants windows that are even and divide each
other, drops dilation on CPU, never reads its causal option, and bounds masked scores by -10000.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Traits, register
from longspan.attention.masking import masked_softmax
from longspan.attention.ops.blocks import pattern_rows
from longspan.attention.ops.dilation import make_dilated_window
from longspan.attention.ops.global_tokens import GlobalTokens, gather_global_tokens
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.softmax import pair_mask, softmax_attention, softmax_reference
from longspan.errors import OptionError


@register("longformer", size_option="window")
class LongformerAttention(PatternAttention):
    """A window for most tokens, and for the global ones all, with projections of their own."""

    traits = Traits(
        paper="Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
        needs_layer_input=True,
        sizes=("heads", "head_dim", "layer"),
    )
    small_options = {"window": [5, 3]}

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
        pattern = make_dilated_window("longformer", window, dilation, heads, layer, causal)
        super().__init__(pattern, causal)
        self.projections = GlobalProjections(heads, head_dim) if global_projections else None
        self.has_unused_parameters = global_projections

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

    def _layer_input_refusals(self, k, layer_input):
        reasons = super()._layer_input_refusals(k, layer_input)
        if self.projections is None:
            return reasons
        width = self.projections.query.in_features
        if layer_input is None:
            reasons.append("global_projections=True needs `layer_input`, the input of the layer")
        elif layer_input.states.shape[-1] != width:
            reasons.append(
                f"layer_input.states must be {width} wide, got {layer_input.states.shape[-1]}"
            )
        return reasons

    def attend(self, q, k, v, key_mask, global_mask, layer_input=None):
        """The gathered-block kernel; then the rows of the global tokens, if there are any."""
        if self.projections is None:
            return super().attend(q, k, v, key_mask, global_mask)
        chosen = gather_global_tokens((), k, v, key_mask, global_mask)
        out = pattern_rows(q, k, v, self.pattern, key_mask, chosen)
        if chosen is None:
            return out
        rows = self.projections.rows(layer_input.states.to(v.dtype), chosen, key_mask, self.causal)
        return chosen.scatter_rows(rows, out)

    def reference(self, q, k, v, key_mask, global_mask, layer_input=None):
        """Both branches for all tokens over dense masks; a global token takes the second."""
        out = super().reference(q, k, v, key_mask, global_mask)
        if self.projections is None or global_mask is None:
            return out
        qg, kg, vg = self.projections.projected(layer_input.states.to(v.dtype))
        every = pair_mask(q.shape[2], q.shape[2], self.causal, key_mask, q.device)
        is_global = global_mask if key_mask is None else global_mask & key_mask
        rows = softmax_reference(qg, kg, vg, every)
        return torch.where(is_global[:, None, :, None], rows, out)


# Projections of their own for the rows of global tokens (Longformer, section 3.1).
#
#     row_i = softmax_j(qg_i . kg_j / sqrt(D)) vg_j over all keys j,   qg, kg, vg linear in x
#
# Few global tokens need no kg and vg of every token, because both are linear in x. With the key's
# matrix K and the value's V, with biases b and c, exactly and for D / G of the products:
#
#     qg_i . (K x_j + b) = (K^T qg_i) . x_j + a constant of row i, which the softmax drops
#     sum_j p_ij (V x_j + c) = V (sum_j p_ij x_j) + c


class GlobalProjections(nn.Module):
    """Linear maps from the input x (B, T, W) of a layer to heads (B, H, T, D), W = H x D."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.query, self.key, self.value = (
            nn.Linear(heads * head_dim, heads * head_dim) for _ in range(3)
        )

    @torch.no_grad()
    def copy(self, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> None:
        """Take the values of other projections.

        Raises:
            OptionError: they are of another width.
        """
        pairs = ((self.query, query), (self.key, key), (self.value, value))
        for own, other in pairs:
            expected, got = tuple(own.weight.shape), tuple(other.weight.shape)
            if got != expected:
                raise OptionError(f"a projection to copy must be {expected}, got {got}")
        for own, other in pairs:
            own.weight.copy_(other.weight)
            own.bias.zero_() if other.bias is None else own.bias.copy_(other.bias)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """qg, kg and vg of all tokens."""
        return self._of(self.query, x), self._of(self.key, x), self._of(self.value, x)

    def rows(self, x: Tensor, chosen: GlobalTokens, key_mask: Tensor | None, causal: bool):
        """Rows of the global tokens (B, H, G, D)."""
        mask = chosen.row_mask(key_mask, causal)
        q = self._of(self.query, chosen.gather(x[:, None])[:, 0])
        (_, H, G, D), W = q.shape, x.shape[-1]
        if G * (W - D) >= D * W:
            return softmax_attention(q, self._of(self.key, x), self._of(self.value, x), mask)
        (key, key_bias), (value, value_bias) = (
            (y.weight.to(x.dtype).view(H, D, W), y.bias.to(x.dtype).view(H, 1, D))
            for y in (self.key, self.value)
        )
        q = q * D**-0.5
        seen = torch.einsum("bhgd,hdw->bhgw", q, key)
        scores = (seen.flatten(1, 2) @ x.mT).unflatten(1, (H, G))
        # The bias changes nothing; it is there so that every parameter has a gradient.
        scores = scores + (q * key_bias).sum(-1, keepdim=True)
        weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask)
        mixed = (weights.flatten(1, 2) @ x).unflatten(1, (H, G))
        return torch.einsum("bhgw,hdw->bhgd", mixed, value) + value_bias

    def _of(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """(B, P, W) to heads (B, H, P, D), in the dtype of x."""
        y = F.linear(x, projection.weight.to(x.dtype), projection.bias.to(x.dtype))
        return y.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
