"""Bidirectional attention through feature maps, whole or one piece of the sequence at a time.

    out_t = sum_s (phi(q_t) . phi(k_s)) v_s / sum_s phi(q_t) . phi(k_s)

Values and features of all keys are summed once, to M x E and M numbers. `mix` takes the features of
all queries and keys, M numbers for each, and keeps them for the backward pass. `mix_mapped` is for
maps with more features than coordinates: on CPU, features exist for one piece of the tokens at a
time, which stays in the processor's cache, and the backward pass computes them again. That is more
operations in less time, and no memory that grows with M x T (docs/development/performance.md).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.ops.feature_map_sums import divide, divisor, finite_level
from longspan.attention.ops.precision import as_operands, at_least_float32, empty_rows

# Features of a piece: small enough for the cache of two cores, large enough for matrix products.
PIECE_BYTES = 1 << 22
SHORTEST = 64  # tokens of a piece


def mix(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    real_keys: Tensor | None = None,
    least: float | None = None,
) -> Tensor:
    """Mix values; sums and quotients have the dtype of the values, and of the features.

    In bfloat16, products are summed in float32 and rounded once.

    Args:
        fq: features of the queries (B, H, T, M).
        fk: features of the keys (B, H, S, M).
        v: values (B, H, S, E), zero at keys that are not real.
        real_keys: True at real keys (B, S); None: all, or features that are zero elsewhere.
        least: rows are zero if the sum of their weights does not exceed this; None: the smallest
            safe divisor.
    """
    real = None if real_keys is None else real_keys[:, None, :, None].to(fk.dtype)
    if torch.compiler.is_compiling() or has_transforms():
        return _compose(real, least, fq, fk, v)
    return _Mix.apply(fq, fk, v, real, least)


def _compose(real: Tensor | None, least: float | None, fq: Tensor, fk: Tensor, v: Tensor) -> Tensor:
    """Mix values by operations that have derivatives of any order."""
    return divide(fq @ (fk.mT @ v), fq @ _sum(fk, real), least)


def _sum(fk: Tensor, real: Tensor | None) -> Tensor:
    """Return the sum of the features of real keys (B, H, M, 1)."""
    if real is None:
        return fk.sum(-2)[..., None]
    return fk.mT @ real.expand(-1, fk.shape[1], -1, -1)


class _Mix(torch.autograd.Function):
    """`_compose`; features, values, outputs and the sums over the keys are kept."""

    @staticmethod
    def forward(ctx, fq: Tensor, fk: Tensor, v: Tensor, real: Tensor | None, least) -> Tensor:
        values, weights = fk.mT @ v, _sum(fk, real)
        total = divisor(fq @ weights, least)
        out = torch.div(fq @ values, total, out=empty_rows(fq, v.shape[-1], v.dtype))
        ctx.save_for_backward(fq, fk, v, real, out, total, values, weights)
        ctx.least = least
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        fq, fk, v, real, out, total, values, weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            function = partial(_compose, real, ctx.least)
            return *differentiable_gradients(function, (fq, fk, v), grad), None, None
        dtotal = as_operands(grad)[0] / total
        dweight = (out * dtotal).sum(-1, keepdim=True).neg_()
        dfq = (dtotal @ values.mT).addcmul_(dweight, weights.mT)
        dvalues, dweights = fq.mT @ dtotal, dweight.mT @ fq
        dfk = v @ dvalues.mT
        dfk = dfk.add_(dweights) if real is None else dfk.addcmul_(real, dweights)
        return dfq, dfk, fk @ dvalues, None, None


Product = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class FeatureMap(Protocol):
    """Feature map phi of a mechanism, which may be relative to a level of the keys.

    Features of large exponents are computed relative to the largest of all keys. That level grows
    from piece to piece; attention does not depend on it.
    """

    @property
    def num_features(self) -> int:
        """Return the number of features M."""

    @property
    def is_signed(self) -> bool:
        """Return whether features are of either sign, so that rounding does not cancel."""

    def of_keys(
        self, k: Tensor, real: Tensor | None, level: Tensor | None, is_highest: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the features of some keys, and raise the level to them.

        Args:
            k: keys (B, H, P, D), float32 or wider.
            real: True at real keys (B, 1, P, 1), or None.
            level: level of earlier keys (B, H, 1, M or 1), a logarithm, or None.
            is_highest: whether the level is that of all keys.

        Returns:
            Features (B, H, P, M), zero where masked, and the level they are relative to, or None.
        """

    def of_queries(self, q: Tensor, level: Tensor | None) -> Tensor:
        """Compute the features (B, H, P, M) of some queries, for keys relative to a level."""

    def key_gradient(self, k: Tensor, fk: Tensor, dfk: Tensor, multiply: Product) -> Tensor:
        """Compute the gradient of keys from their features and the gradient of these.

        Args:
            k: keys (B, H, P, D), float32 or wider.
            fk: their features (B, H, P, M).
            dfk: gradient of the features (B, H, P, M), which may be overwritten.
            multiply: matrix product in the precision of the inputs, with a result like `k`.
        """

    def query_gradient(self, fq: Tensor, dfq: Tensor, multiply: Product) -> Tensor:
        """Compute the gradient of queries from their features and the gradient of these."""


class Summary(NamedTuple):
    """Sums over all keys, relative to a level."""

    values: Tensor  # sum of phi(k) v^T, B H M E
    weights: Tensor  # sum of phi(k), B H M 1
    level: Tensor | None  # B H 1 M or 1


def mix_mapped(
    feature_map: FeatureMap,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    least: float | None = None,
) -> Tensor:
    """Mix values bidirectionally; the result has the dtype of the values.

    Args:
        feature_map: phi.
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        key_mask: True at real keys (B, S), or None.
        least: rows are zero if the sum of their weights does not exceed this; None: the smallest
            safe divisor.
    """
    if q.device.type != "cpu" or torch.compiler.is_compiling() or has_transforms():
        return _mix_whole(feature_map, key_mask, least, q, k, v)
    token_bytes = q.shape[1] * feature_map.num_features * at_least_float32(q[:0]).element_size()
    samples, tokens = piece_size(token_bytes, max(q.shape[2], k.shape[2]))
    recipe = _Recipe(feature_map, least, tokens, v.dtype)
    if samples >= len(q):
        return _Pieces.apply(q, k, v, key_mask, recipe)
    masks = [None] * len(q) if key_mask is None else key_mask.split(samples)
    rows = zip(*(x.split(samples) for x in (q, k, v)), masks, strict=False)
    return torch.cat([_Pieces.apply(*each, recipe) for each in rows])


def piece_size(token_bytes: int, length: int) -> tuple[int, int]:
    """Return the samples and the tokens of a piece: whole samples, or tokens of one.

    Args:
        token_bytes: bytes of the features of a token, all heads.
        length: tokens of a sample.
    """
    tokens = max(SHORTEST, PIECE_BYTES // token_bytes)
    return (max(1, tokens // length), length) if tokens >= length else (1, tokens)


def _mix_whole(
    feature_map: FeatureMap,
    key_mask: Tensor | None,
    least: float | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Compute all features at once, from operations with derivatives of any order."""
    fq, fk = compute_features(feature_map, q, k, key_mask)
    return mix(fq, fk, at_least_float32(v), least=least).to(v.dtype)


def compute_features(
    feature_map: FeatureMap, q: Tensor, k: Tensor, key_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute all features at once, float32 or wider.

    Returns:
        Features of queries (B, H, T, M) and of keys (B, H, S, M), zero if masked.
    """
    fk, level = feature_map.of_keys(at_least_float32(k), _real(key_mask, slice(None)), None)
    return feature_map.of_queries(at_least_float32(q), level), fk


class _Recipe(NamedTuple):
    """Feature map, piece and precision of one computation of rows."""

    feature_map: FeatureMap
    least: float | None
    tokens: int  # of a piece
    dtype: torch.dtype  # of inputs and outputs

    def operand(self, x: Tensor) -> Tensor:
        """Convert features, values or sums to the dtype in which they are multiplied.

        Inputs in bfloat16 are rounded already: so are the operands, whose products processors sum
        in float32. Features of either sign cancel, which would enlarge that error, and float16 has
        too small a range.
        """
        is_half = self.dtype == torch.bfloat16 and not self.feature_map.is_signed
        return x.to(self.dtype) if is_half else at_least_float32(x)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply two operands."""
        return self.operand(a) @ self.operand(b)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply two operands; float32 or wider."""
        return at_least_float32(self.product(a, b))


class _Pieces(torch.autograd.Function):
    """`_mix_whole` piece by piece; only inputs, outputs and the sums over the keys are kept."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, key_mask, recipe: _Recipe) -> Tensor:
        summary = _sum_keys(recipe, k, v, key_mask)
        out = empty_rows(q, v.shape[-1], v.dtype)
        for piece in pieces(q.shape[2], recipe.tokens):
            queries = _piece(q, piece)
            fq = recipe.feature_map.of_queries(queries, summary.level)
            out[:, :, piece] = _rows(recipe, fq, summary, fq @ summary.weights)
        ctx.save_for_backward(q, k, v, key_mask, out, *summary)
        ctx.recipe = recipe
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, key_mask, out, *sums = ctx.saved_tensors
        recipe, summary = ctx.recipe, Summary(*sums)
        if torch.is_grad_enabled():
            function = partial(_mix_whole, recipe.feature_map, key_mask, recipe.least)
            return *differentiable_gradients(function, (q, k, v), grad), None, None
        dq, dsummary = _query_gradients(recipe, q, summary, out, grad)
        dk, dv = _key_gradients(recipe, k, v, key_mask, summary.level, dsummary)
        return dq, dk, dv, None, None


def _rows(recipe: _Recipe, fq: Tensor, summary: Summary, weight: Tensor) -> Tensor:
    return divide(recipe.multiply(fq, summary.values), weight, recipe.least)


def _piece(x: Tensor, piece: slice) -> Tensor:
    """Return some tokens of rows (B, H, T, D), contiguous and in float32 or wider.

    Without a copy, all that is computed from them would have their strides, and matrix products
    would copy it.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x[:, :, piece].to(dtype, memory_format=torch.contiguous_format)


def pieces(length: int, tokens: int) -> Iterator[slice]:
    """Return the pieces of a sequence in order."""
    return (slice(start, start + tokens) for start in range(0, length, tokens))


def _real(key_mask: Tensor | None, piece: slice) -> Tensor | None:
    return None if key_mask is None else key_mask[:, None, piece, None]


def _sum_keys(recipe: _Recipe, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Summary:
    """Sum features and values of all keys, relative to the level of all of them."""
    level: Tensor | None = None
    values = weights = at_least_float32(v[:, :, :0]).sum()  # 0.0, in the dtype of the sums
    for piece in pieces(k.shape[2], recipe.tokens):
        keys = _piece(k, piece)
        fk, higher = recipe.feature_map.of_keys(keys, _real(key_mask, piece), level)
        if level is not None and higher is not None:
            fade = (level - finite_level(higher)).exp().mT
            values, weights = values * fade, weights * fade
        values = values + recipe.multiply(fk.mT, v[:, :, piece])
        weights = weights + fk.sum(-2)[..., None]
        level = higher
    return Summary(values, weights, level)


def _query_gradients(
    recipe: _Recipe, q: Tensor, summary: Summary, out: Tensor, grad: Tensor
) -> tuple[Tensor, Summary]:
    """Return the gradients of the queries and of the sums over the keys."""
    dq = empty_rows(q, q.shape[-1], q.dtype)
    values, weights = torch.zeros_like(summary.values), torch.zeros_like(summary.weights)
    dsums = [recipe.operand(x.mT) for x in (summary.values, summary.weights)]
    for piece in pieces(q.shape[2], recipe.tokens):
        fq = recipe.feature_map.of_queries(_piece(q, piece), summary.level)
        rows, weight = _piece(out, piece), fq @ summary.weights
        if recipe.feature_map.is_signed and rows.dtype != out.dtype:
            # Weights that cancel enlarge the rounding of the outputs.
            rows = _rows(recipe, fq, summary, weight)
        dtotal = divide(_piece(grad, piece), weight, recipe.least)
        dweight = (rows * dtotal).sum(-1, keepdim=True).neg_()
        weights += (dweight.mT @ fq).mT
        fq, dtotal, dweight = (recipe.operand(x) for x in (fq, dtotal, dweight))
        values += recipe.multiply(fq.mT, dtotal)
        dfq = (dtotal @ dsums[0]).addcmul_(dweight, dsums[1])
        dq[:, :, piece] = recipe.feature_map.query_gradient(fq, dfq, recipe.multiply)
    return dq, Summary(values, weights, None)


def _key_gradients(
    recipe: _Recipe,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    level: Tensor | None,
    dsummary: Summary,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys and values from those of the sums over them."""
    dk, dv = (empty_rows(x, x.shape[-1], x.dtype) for x in (k, v))
    dvalues, dweights = (recipe.operand(x) for x in (dsummary.values, dsummary.weights))
    for piece in pieces(k.shape[2], recipe.tokens):
        keys = _piece(k, piece)
        fk, _ = recipe.feature_map.of_keys(keys, _real(key_mask, piece), level, is_highest=True)
        fk = recipe.operand(fk)
        dv[:, :, piece] = fk @ dvalues
        dfk = recipe.product(v[:, :, piece], dvalues.mT).add_(dweights.mT)
        dk[:, :, piece] = recipe.feature_map.key_gradient(keys, fk, dfk, recipe.multiply)
    return dk, dv
