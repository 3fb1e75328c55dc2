"""DeepSeek sparse attention (DSA), DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556), section 2.

    out_t = sum_{s in A(t)} softmax_s(q_t . k_s / sqrt(D)) v_s
    A(t) = the `num_selected_keys` keys with the highest I_ts, which all heads share
    I_ts = sum_j w_tj relu(a_tj . b_s / sqrt(C)) / sqrt(J);  j < J = `index_heads`, C = `index_dim`

The indexer is small: a = x W_a and w = x W_w for each of its heads, b = layer_norm(x W_b), x the
layer's input. The first half of a and b is rotated by the position, so that it sees distances. Of
equal scores, the later key is selected. Causal: no key after t. Without `layer_input`, a and w are
projected from the queries of all heads, b from the keys.

Selection has no gradient. The indexer learns from `auxiliary_loss` alone, and nothing else does:
the mean over queries of KL(p_t || softmax_s(I_ts)), where p_t is the mean of the heads' weights,
over all keys (`trained_on` "all", the paper's warm-up) or over the selected ones ("selected").

Differences from transformers' DeepseekV32Indexer: W_a reads x, no narrower projection of it; the
indexer can be trained; there is a form without causality.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.masking import both_masks, zero_masked
from longspan.attention.ops.gate_input import gate_input
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.linear_maps import apply_map
from longspan.attention.ops.open_sizes import is_open
from longspan.attention.ops.precision import at_least_float32, dot_products
from longspan.attention.ops.relative_positions import sinusoids
from longspan.attention.ops.selected_blocks import ROWS, Selected, select_top
from longspan.attention.ops.softmax import pair_mask, softmax_attention, softmax_reference
from longspan.attention.option_types import PositiveInt
from longspan.errors import InputError

FEW = 16  # keys for each selected one of all queries, from which the selected ones are gathered


@register("indexed", size_option="num_selected_keys")
class IndexedAttention(Attention):
    """Attention to the keys that a small trained indexer selects."""

    traits = Traits(
        paper="DeepSeek-AI 2025, https://arxiv.org/abs/2512.02556",
        family="learned pattern",
        cost="T^2",
        exact=True,
        causal=True,
        scale=True,
        needs_layer_input=True,
        sizes=("heads", "head_dim", "width"),
    )
    small_options = {"num_selected_keys": 6, "index_heads": 2, "index_dim": 8}
    has_unused_parameters = True
    has_auxiliary_loss = True

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        width: int,
        num_selected_keys: PositiveInt = 256,
        index_heads: PositiveInt = 4,
        index_dim: PositiveInt = 32,
        trained_on: Literal["all", "selected"] = "all",
        causal: bool = False,
    ):
        """Create the indexer.

        Args:
            num_selected_keys: keys that a query selects.
            index_heads: heads of the indexer.
            index_dim: head dimension of the indexer.
            trained_on: keys that its loss compares: "all" or "selected".
        """
        super().__init__()
        self.num_selected_keys, self.trained_on, self.causal = num_selected_keys, trained_on, causal
        self.built_for = {"heads": heads, "head_dim": head_dim, "width": width}
        self.indexer = Indexer(width, index_heads, index_dim)

    def _read(self, x) -> tuple[Tensor, Tensor, Tensor]:
        """Return the a, w and b of the new tokens."""
        queries = keys = gate_input(x)
        if x.layer_input is None:
            queries = x.q.transpose(1, 2).flatten(2)
        return self.indexer(*(at_least_float32(y.detach()) for y in (queries, keys)), x.before)

    def _select(self, a, w, b, key_mask) -> Selected:
        """Select keys for the last T rows, (B, 1, T, n)."""
        T, S = a.shape[2], b.shape[1]

        def score(piece):
            seen = self._seen(T, S, key_mask, piece, a.device)
            scores = index_scores(a[:, :, piece], w[:, piece], b)
            return scores.masked_fill(~seen, -torch.inf)[:, None]

        return select_top(score, T, self.num_selected_keys)

    def _seen(self, T, S, key_mask, piece, device) -> Tensor:
        """Return the keys that some of the last T of S tokens may select, (1 or B, t, S)."""
        key = torch.arange(S, device=device)
        position = key[S - T :][piece, None]
        seen = (key <= (position if self.causal else position.clamp(min=S)))[None]
        return seen if key_mask is None else seen & key_mask[:, None]

    def attend(self, x):
        """Score all pairs, and attend to the best keys of each query."""
        with torch.no_grad():
            selected = self._select(*self._read(x), x.key_mask)
        return _softmax_selected(x.q, x.k, x.v, selected, self.causal)

    def reference(self, x):
        """Compute full softmax under the mask of each query, built from sorted keys."""
        q, k, v = x[:3]
        with torch.no_grad():
            a, w, b = self._read(x)
            products = torch.einsum("bjtc,bsc->bjts", a, b).relu() / a.shape[3] ** 0.5
            scores = torch.einsum("btj,bjts->bts", w, products) / a.shape[1] ** 0.5
        seen = pair_mask(q.shape[2], k.shape[2], self.causal, x.key_mask, q.device)[:, 0]
        mask = torch.zeros(scores.shape, dtype=torch.bool)
        pairs = zip(scores.tolist(), seen.expand(mask.shape).tolist(), mask, strict=True)
        for rows in pairs:
            for score, visible, row in zip(*rows, strict=True):
                keys = [s for s, x in enumerate(visible) if x]
                best = sorted(keys, key=lambda s: (score[s], s))[-self.num_selected_keys :]
                row[best] = True
        return softmax_reference(q, k, v, mask.to(q.device)[:, None])

    def advance(self, x):
        """Keep all keys and those of the indexer."""
        with torch.no_grad():
            a, w, b = self._read(x)
        state = self._append(x, b)
        keys = state["index_k"][:, 0]
        with torch.no_grad():
            selected = self._select(a, w, keys, state.get("real"))
        return _softmax_selected(x.q, state["k"], state["v"], selected, self.causal), state

    def _append(self, x, b) -> dict[str, Tensor]:
        """Return the state after new tokens."""
        new = {"k": x.k, "v": x.v, "index_k": b[:, None]}
        return append_tokens(x.cache, new, x.key_mask, grows=True)

    def auxiliary_loss(self, x):
        """Return the mean divergence of the indexer's weights from those of the attention."""
        if reasons := self.refusals(x):
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        q, k, mask = x.q.detach(), x.k.detach(), both_masks(x.mask, x.key_mask)
        x = x._replace(q=zero_masked(q, mask), k=zero_masked(k, mask), key_mask=mask)
        if x.layer_input is not None and mask is not None:
            x = x._replace(layer_input=x.layer_input.masked(mask))
        a, w, b = self._read(x)
        state = self._append(x, b)
        k, b, real = repeat_heads(state["k"], q.shape[1]), state["index_k"][:, 0], state.get("real")
        T, S, selected = q.shape[2], k.shape[2], None
        if self.trained_on == "selected":
            with torch.no_grad():
                selected = self._select(a, w, b, real)

        def divergence(rows, a, w, b):
            seen = self._seen(T, S, real, rows, a.device)
            if selected is not None:
                seen = dense_mask(selected.map(lambda y: y[:, :, rows]), S)[:, 0]
            some = seen.any(-1).expand(len(q), -1)
            some = some if mask is None else some & mask[:, rows]
            guess = index_scores(a, w, b).masked_fill(~seen, -torch.inf).log_softmax(-1)
            with torch.no_grad():
                weights = _mean_weights(q[:, :, rows], k, seen)
            # Pairs without weight, those outside `seen` among them, have no part.
            loss = (torch.xlogy(weights, weights) - weights * guess.where(weights > 0, 0)).sum(-1)
            return loss.where(some, 0).sum(), some.sum()

        if T <= ROWS or torch.compiler.is_compiling() or is_open(T) or has_transforms():
            total, count = divergence(slice(None), a, w, b)
        else:
            total, count = _SumOfRows.apply(divergence, a, w, b)
        return total / count.clamp(min=1)

    def is_dense(self, T):
        """Return whether all keys are selected."""
        return self.num_selected_keys >= T

    def flops(self, T, head_dim):
        """Count the indexer, which is one for all heads, and products with all keys."""
        layer, heads = self.indexer, self.built_for["heads"]
        read = 2 * layer.width * (layer.dim * (layer.heads + 1) + layer.heads)
        index = T * (read + 2 * T * layer.heads * (layer.dim + 1)) // heads
        return index + 4 * T * T * head_dim

    def pairs(self, T):
        """Count the selected keys."""
        most = self.num_selected_keys
        if self.causal:
            full = max(0, T - most)
            return full * most + (T - full) * (T - full + 1) // 2
        return T * min(T, most)


class _SumOfRows(torch.autograd.Function):
    """Sum of a loss over queries, and their number, with the scores of `ROWS` queries at a time.

    The gradients of some queries are computed with their loss, so that no scores are kept.
    """

    @staticmethod
    def forward(ctx, loss: Callable[..., tuple[Tensor, Tensor]], a, w, b):
        needed, T = any(ctx.needs_input_grad), a.shape[2]
        grads = [torch.zeros_like(x) for x in (a, w, b)] if needed else []
        sums = []
        for rows in (slice(first, first + ROWS) for first in range(0, T, ROWS)):
            inputs = [x.detach().requires_grad_(needed) for x in (a[:, :, rows], w[:, rows], b)]
            # Checkpointing keeps none of their tensors, or each gradient would recompute the layer.
            with torch.set_grad_enabled(needed), saved_tensors_hooks(Tensor.detach, Tensor.detach):
                value, count = loss(rows, *inputs)
            sums.append((value.detach(), count))
            if needed:
                by_a, by_w, by_b = torch.autograd.grad(value, inputs)
                grads[0][:, :, rows], grads[1][:, rows] = by_a, by_w
                grads[2] += by_b
        total, count = (sum(x[1:], x[0]) for x in zip(*sums, strict=True))
        ctx.mark_non_differentiable(count)
        ctx.loss, ctx.count = loss, len(grads)
        ctx.save_for_backward(*grads, a, w, b)
        return total, count

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # checkpointing unpacks once
        grads, inputs = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled():

            def whole(a, w, b):
                return ctx.loss(slice(None), a, w, b)[0]

            return None, *differentiable_gradients(whole, inputs, grad)
        return None, *(grad * x for x in grads)


class Indexer(nn.Module):
    """Projections of the indexer, from tokens (B, T, W)."""

    def __init__(self, width: int, heads: int, dim: int):
        super().__init__()
        self.width, self.heads, self.dim = width, heads, dim
        self.query = nn.Linear(width, heads * dim, bias=False)
        self.key = nn.Linear(width, dim, bias=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head_weights = nn.Linear(width, heads, bias=False)

    def forward(self, x: Tensor, y: Tensor, before: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a (B, J, T, C) and w (B, T, J) of x, b (B, T, C) of y, after `before` tokens."""
        pairs = (x, self.query), (x, self.head_weights), (y, self.key)
        a, w, b = (apply_map(layer, z) for z, layer in pairs)
        scale, shift = (z.to(b.dtype) for z in (self.norm.weight, self.norm.bias))
        b = F.layer_norm(b, (self.dim,), scale, shift, self.norm.eps)
        a = a.unflatten(2, (self.heads, self.dim)).transpose(1, 2)
        positions = torch.arange(before, before + x.shape[1], device=x.device)
        return rotate(a, positions), w, rotate(b, positions)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate the first half of the columns (..., T, C) by the positions, pairs (i, i + C / 4)."""
    pairs = x.shape[-1] // 4
    sin, cos = sinusoids(positions, 2 * pairs).to(x.dtype).chunk(2, -1)
    first, second, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _softmax_selected(q: Tensor, k: Tensor, v: Tensor, selected: Selected, causal: bool) -> Tensor:
    """Compute softmax attention of each query to the selected keys; rows without any are zero.

    A few queries of a long row gather their keys. Others multiply by all keys: on CPU that takes
    less time than copying the selected ones for each query.

    Args:
        q: queries (B, H, T, D); the last one is at the position of the last key.
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        selected: keys of each query, each at most once (B, 1, T, n).
        causal: whether no selected key is after its query.
    """
    T, S = q.shape[2], k.shape[2]
    if torch.compiler.is_compiling() or is_open(S):
        return softmax_attention(q, k, v, dense_mask(selected, S))
    if FEW * T * selected.numbers.shape[3] < S:
        return gathered_softmax(q, k, v, *selected, real=None)
    outs = []
    for first in range(0, T, ROWS):
        rows = slice(first, min(first + ROWS, T))
        end = S - T + rows.stop if causal else S
        mask = dense_mask(Selected(*(x[:, :, rows] for x in selected)), end)
        outs.append(softmax_attention(q[:, :, rows], k[:, :, :end], v[:, :, :end], mask))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def dense_mask(selected: Selected, keys: int) -> Tensor:
    """Return True at the selected keys of each query, (B, 1, T, keys)."""
    index, real = selected
    mask = real.new_zeros(*index.shape[:3], keys + 1)
    # Places that hold none write behind the last key.
    return mask.scatter(3, torch.where(real, index, keys), True)[..., :keys]


def index_scores(a: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return the scores of all keys, (B, T, S), for a (B, J, T, C), w (B, T, J) and b (B, S, C)."""
    products = dot_products(a, b[:, None], a.shape[3] ** -0.5).relu_()
    return (products * (w.mT[..., None] * a.shape[1] ** -0.5)).sum(1)


def _mean_weights(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Return the mean over heads of the softmax weights of the visible keys, (B, T, S)."""
    total = q.new_zeros(())
    for head in range(q.shape[1]):
        scores = dot_products(q[:, head], k[:, head], q.shape[3] ** -0.5)
        total = total + scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    return total / q.shape[1]
