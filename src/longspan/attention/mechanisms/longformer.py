"""Longformer, Beltagy et al. 2020 (https://arxiv.org/abs/2004.05150), section 3; LED's encoder.

    out_i = softmax_{j in W_i | G}(q_i . k_j / sqrt(D)) v_j          of a local token i
    out_i = softmax_j(qg_i . kg_j / sqrt(D)) vg_j                    of a global token i, all real j

W_i is the window of i, at most w keys on each side, with gaps in dilated heads; G are the global
tokens of the row (`global_mask`, whose number may differ between rows, and the first tokens with
`first_global`). A key in both counts once. When causal, j <= i everywhere. The window w is
one-sided; the paper and published checkpoints count both sides: their 512 is 256 here.

All queries attend to the first `sink_tokens`, which attend to their window, see `local`. Causal,
`first_global=4` is the same as `sink_tokens=4`.

The published system for classification has a global first token and `global_projections`: qg, kg,
vg are separate projections of the layer's input, which the model passes as `layer_input`, and start
as copies of the local ones (`copy_projections`, which the models call). Without the option, global
tokens use q, k and v (Xiong et al. 2022). Decoding steps have no `global_mask`, because a later
global token would attend to keys that the cache has dropped.

Differences from the public code: it requires even windows that divide each other, drops dilation
on CPU, ignores its causal option, and limits masked scores to -10000. The function is otherwise the
published one.
"""

import dataclasses

import torch
from torch import Tensor, nn

from longspan.attention.base import register
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.blocks import pattern_rows, tokens_with_full_rows
from longspan.attention.ops.dilation import LAYERED, make_dilated_window
from longspan.attention.ops.global_tokens import (
    GlobalTokens,
    combine_global_masks,
    gather_global_tokens,
)
from longspan.attention.ops.linear_maps import apply_map, is_plain
from longspan.attention.ops.pattern_base import PatternAttention, pattern_traits
from longspan.attention.ops.precision import at_least_float32, dot_products
from longspan.attention.ops.softmax import pair_mask, softmax_attention, softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.attention.patterns import Global
from longspan.errors import OptionError


@register("longformer", size_option="window")
class LongformerAttention(PatternAttention):
    """Window attention for local tokens, full attention for global tokens."""

    traits = pattern_traits(
        "Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
        needs_layer_input=True,
        sizes=("heads", "head_dim", "layer"),
    )
    small_options = {"window": 5}
    picture_options = {"first_global": 3}
    layered_options = LAYERED

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        layer: int = 0,
        window: NonNegativeInt | list[NonNegativeInt] = 256,
        dilation: PositiveInt | list[PositiveInt] | list[list[PositiveInt]] = 1,
        first_global: bool | NonNegativeInt = False,
        global_projections: bool = False,
        sink_tokens: NonNegativeInt = 0,
        sink_logit: bool = False,
        causal: bool = False,
    ):
        """Build the pattern of this layer, and the global projections.

        Args:
            window: keys on each side of a query, w; a list gives one number per layer.
            dilation: step between the keys of a window (1: no gaps); a list gives one number per
                head, or one list per layer.
            first_global: number of first tokens that are global; True: one.
            global_projections: whether global tokens have their own projections.
        """
        pattern = make_dilated_window("longformer", window, dilation, heads, layer, causal)
        first = tuple(range(int(first_global)))
        pattern = pattern | Global(first) if first else pattern
        super().__init__(pattern, causal, sink_tokens, sink_logit, heads)
        self.projections = GlobalProjections(heads, head_dim) if global_projections else None
        self.has_unused_parameters = global_projections and not first
        # The first tokens are those at the first positions, of each document.
        if first:
            self.traits = dataclasses.replace(self.traits, packed=False, anchored=True)
        if global_projections:
            sizes = {"heads": heads, "head_dim": head_dim, "value_dim": head_dim}
            self.built_for = {**self.built_for, **sizes, "width": heads * head_dim}
            self.traits = dataclasses.replace(
                self.traits,
                scale=False,
                bias=False,
                relative=False,
                sink_logits=False,
                weight_dropout=False,
            )
            if sink_logit:
                raise OptionError(
                    "longformer: option sink_logit=True requires global_projections=False"
                )

    def copy_projections(self, query, key, value):
        """Initialize the global projections, if there are any, with those of the layer."""
        if self.projections is not None:
            self.projections.copy(query, key, value)

    def refusals(self, x):
        """Add reasons: projections read the layer's input."""
        reasons = super().refusals(x)
        if self.projections is None:
            return reasons
        count = len(self.pattern.layout.full_rows)
        if x.layer_input is None and not x.is_step:
            reasons.append("global_projections=True requires layer_input")
        elif x.layer_input is None and x.cache is None and count:
            reasons.append("the first step, of the global first tokens, requires layer_input")
        if x.is_step and x.cache is None and x.q.shape[2] < count:
            reason = f"the first step must have all {count} global tokens"
            reasons.append(f"{reason}, which own projections compute at once; got T={x.q.shape[2]}")
        return reasons

    def attend_pattern(self, x):
        """Run gathered-block attention, then compute the rows of global tokens."""
        if self.projections is None:
            return super().attend_pattern(x)
        (_, _, v, key_mask), tokens = x[:4], (x, self.max_global_tokens)
        global_tokens = gather_global_tokens(self.pattern.layout.globals, *tokens)
        out = pattern_rows(x, self.pattern, global_tokens)
        global_tokens = tokens_with_full_rows(self.pattern, global_tokens, *tokens)
        if global_tokens is None:
            return out
        states = x.layer_input.states.to(v.dtype)
        rows = self.projections.rows(states, global_tokens, key_mask, self.causal)
        return global_tokens.scatter_rows(rows, out)

    def reference(self, x):
        """Compute both formulas for all tokens over dense masks; select by token."""
        out, (q, _, v, key_mask) = super().reference(x), x[:4]
        is_global = combine_global_masks(self.pattern.layout.full_rows, x)
        if self.projections is None or is_global is None:
            return out
        qg, kg, vg = self.projections.projected(x.layer_input.states.to(v.dtype))
        every = pair_mask(q.shape[2], q.shape[2], self.causal, key_mask, q.device)
        rows = softmax_reference(qg, kg, vg, every)
        return torch.where(is_global[:, None, :, None], rows, out)

    def flops(self, T, head_dim):
        """Count the pattern; a fixed global row has products with the layer's input instead."""
        count = len([p for p in self.pattern.layout.full_rows if p < T])
        if self.projections is None or not count:
            return super().flops(T, head_dim)
        width = self.projections.query.in_features
        global_rows = 4 * T * count * head_dim
        if self.projections.projects_all(count):
            return super().flops(T, head_dim) + (4 * T + 2 * count) * width * head_dim
        return super().flops(T, head_dim) - global_rows + (4 * T + 6 * head_dim) * count * width


class GlobalProjections(nn.Module):
    """Projections for the rows of global tokens (section 3.1), from x (B, T, W) to heads.

        row_i = softmax_j(qg_i . kg_j / sqrt(D)) vg_j over all keys j,   qg, kg, vg linear in x

    W = H x D. A few global tokens do not need kg and vg of every token, because both are linear in
    x. With the key's matrix K, the value's V and biases b and c, exactly and with D / G of the
    products:

        qg_i . (K x_j + b) = (K^T qg_i) . x_j + a constant of row i, which the softmax drops
        sum_j p_ij (V x_j + c) = V (sum_j p_ij x_j) + c
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.query, self.key, self.value = (
            nn.Linear(heads * head_dim, heads * head_dim) for _ in range(3)
        )

    @torch.no_grad()
    def copy(self, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> None:
        """Copy the values of other projections.

        Raises:
            OptionError: the widths differ.
        """
        pairs = ((self.query, query), (self.key, key), (self.value, value))
        for target, other in pairs:
            expected, got = tuple(target.weight.shape), tuple(other.weight.shape)
            if got != expected:
                raise OptionError(f"the projection must have shape {expected}, got {got}")
        for target, other in pairs:
            target.weight.copy_(other.weight)
            target.bias.zero_() if other.bias is None else target.bias.copy_(other.bias)

    def projects_all(self, count: int) -> bool:
        """Return whether `count` rows are cheaper with kg and vg of every token."""
        width = self.query.in_features
        return count * (width - self.head_dim) >= self.head_dim * width

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute qg, kg and vg of all tokens."""
        q, k, v = (self._project(y, x) for y in (self.query, self.key, self.value))
        return q, k, v

    def rows(self, x: Tensor, global_tokens: GlobalTokens, key_mask: Tensor | None, causal: bool):
        """Compute the rows of the global tokens (B, H, G, D)."""
        mask = global_tokens.row_mask(key_mask, causal)
        q = self._project(self.query, global_tokens.gather(x[:, None])[:, 0])
        (_, H, G, D), W = q.shape, x.shape[-1]
        maps = self.key, self.value
        if self.projects_all(G) or not all(map(is_plain, maps)):
            k, v = (self._project(y, x) for y in maps)
            return softmax_attention(q, k, v, mask)
        (key, key_bias), (value, value_bias) = (
            (y.weight.to(x.dtype).view(H, D, W), y.bias.to(x.dtype).view(H, 1, D)) for y in maps
        )
        q, key, key_bias = (at_least_float32(y) for y in (q, key, key_bias))
        seen = torch.einsum("bhgd,hdw->bhgw", q * D**-0.5, key)
        scores = dot_products(seen.flatten(1, 2), x).unflatten(1, (H, G))
        # The bias cancels in the softmax; it is added so that every parameter has a gradient.
        scores = scores + (q * D**-0.5 * key_bias).sum(-1, keepdim=True)
        weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask)
        mixed = (weights.to(x.dtype).flatten(1, 2) @ x).unflatten(1, (H, G))
        out = torch.einsum("bhgw,hdw->bhgd", mixed, value) + value_bias
        return out if mask is None else apply_mask(out, mask.any(-1, keepdim=True))

    def _project(self, projection: nn.Module, x: Tensor) -> Tensor:
        """Project (B, P, W) to heads (B, H, P, D), in the dtype of x."""
        return apply_map(projection, x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
