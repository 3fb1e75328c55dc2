"""Relative positions of Transformer-XL, for mechanisms with a memory.

    score_ij = ((q_i + u) . k_j + (q_i + w) . r_(i-j)) / sqrt(D),   r_d = P R_d

R_d is the sinusoid of the distance d, as wide as all heads together, P its projection to a head,
u and w a vector per head. Distances count along the keys in their order: memory, then segment.

On CPU the scores and weights of some queries of some heads exist at a time, in buffers that all
pieces use. The backward pass computes them again: eleven products in place of nine, in the time of
keeping the weights of all queries (docs/development/performance.md).
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.masking import apply_mask, is_true, masked_softmax
from longspan.attention.ops.fused import has_fused_kernel
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.segments import Rows, SegmentAttention, segment_mask
from longspan.attention.relative_bias import shift_to_keys

HEADS, BLOCK = 8, 128  # heads and queries of a piece
QUERY_BLOCK = 256  # queries whose scores are computed at once


class _Inputs(NamedTuple):
    """Inputs of all heads of a batch, or their gradients.

    Attributes:
        a: queries for the keys (N, T, D).
        b: queries for the distances (N, T, D).
        k: keys (N, S, D).
        v: values (N, S, E).
        r: vectors of the distances from S down to 0 (N, S + 1, D), or to 1 - T (N, S + T, D) if
            later keys may be attended.
    """

    a: Tensor
    b: Tensor
    k: Tensor
    v: Tensor
    r: Tensor

    @property
    def causal(self) -> bool:
        """True if a query attends to no later key."""
        return self.r.shape[1] == self.k.shape[1] + 1


class _Piece(NamedTuple):
    """Some queries of some heads, and what they attend to.

    Attributes:
        heads: heads, counted over all samples.
        queries: queries.
        keys: keys, if causal those up to that of the last query.
        distances: rows of r, from the distance of the last query to a key before all.
    """

    heads: slice
    queries: slice
    keys: slice
    distances: slice

    def views(self, x: _Inputs) -> _Inputs:
        """Return the part of the inputs, or of their gradients."""
        a, b = (part[self.heads, self.queries] for part in (x.a, x.b))
        k, v = (part[self.heads, self.keys] for part in (x.k, x.v))
        return _Inputs(a, b, k, v, x.r[self.heads, self.distances])


class _Buffer:
    """Memory for the scores of one piece by key, or by distance."""

    def __init__(self, inputs: _Inputs):
        (N, T, _), distances = inputs.a.shape, inputs.r.shape[1]
        self.numbers = inputs.a.new_empty(min(HEADS, N) * min(BLOCK, T) * distances)

    def take(self, *shape: int) -> Tensor:
        """Return the buffer as a contiguous tensor."""
        return self.numbers[: torch.Size(shape).numel()].view(shape)


class _RelativePieces(torch.autograd.Function):
    """Softmax rows (N, T, E) of the inputs."""

    @staticmethod
    def forward(ctx, a, b, k, v, r, mask: Tensor | None, whole):
        inputs, out = _Inputs(a, b, k, v, r), v.new_empty(*a.shape[:2], v.shape[2])
        buffers = [_Buffer(inputs) for _ in range(2)]
        for piece in _pieces(inputs):
            views = piece.views(inputs)
            weights = _weights(views, _bias(mask, piece, inputs), buffers)
            out[piece.heads, piece.queries] = torch.bmm(weights, views.v)
        ctx.save_for_backward(*inputs, mask)
        ctx.whole = whole
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        *inputs, mask = ctx.saved_tensors
        inputs = _Inputs(*inputs)
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx.whole, inputs, grad), None, None
        gradients = _Inputs(*map(torch.zeros_like, inputs))
        buffers = [_Buffer(inputs) for _ in range(3)]
        for piece in _pieces(inputs):
            views, rows = piece.views(inputs), grad[piece.heads, piece.queries]
            weights = _weights(views, _bias(mask, piece, inputs), buffers)
            _add_gradients(piece.views(gradients), views, rows, weights, (buffers[0], buffers[2]))
        return *gradients, None, None


def relative_softmax(
    queries: tuple[Tensor, Tensor],
    k: Tensor,
    v: Tensor,
    r: Tensor,
    mask: Tensor | None,
    whole: Callable[..., Tensor],
) -> Tensor:
    """Compute softmax rows (B, H, T, E) of queries whose own keys are the newest.

    Args:
        queries: scaled queries with the biases added, for the keys and for the distances, each
            (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        r: vectors of the distances from S down to 0 (H, S + 1, D), or to 1 - T (H, S + T, D) if
            later keys may be attended.
        mask: pairs that may be attended (1 or B, 1, 1 or T, S), in the first case none of a later
            key; None: all, or all but those of later keys.
        whole: the same function of (a, b, k, v, r), which can be differentiated twice.
    """
    shape = queries[0].shape[:2]

    def of_rows(*inputs: Tensor) -> Tensor:
        return whole(*(x.unflatten(0, shape) for x in inputs)).flatten(0, 1)

    rows = (x.flatten(0, 1) for x in (*queries, k, v, r.expand(len(k), -1, -1, -1)))
    return _RelativePieces.apply(*rows, mask, of_rows).unflatten(0, shape)


def is_piecewise(q: Tensor, k: Tensor, v: Tensor, source_dtype: torch.dtype) -> bool:
    """Return whether `relative_softmax` applies: the fused kernel's place, and no compiler.

    It is slower with few queries, and for gradients in half precision.

    Args:
        q: queries (B, H, T, D), in float32 or wider, as keys and values.
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        source_dtype: dtype of the values before they were converted.
    """
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if torch.compiler.is_compiling() or (needs_grad and source_dtype.itemsize < 4):
        return False
    return has_fused_kernel(q, k, v) and q.shape[2] >= 2 * BLOCK


def _pieces(inputs: _Inputs) -> Iterator[_Piece]:
    """Divide the queries of all heads."""
    (N, T, _), S = inputs.a.shape, inputs.k.shape[1]
    for head, start in itertools.product(range(0, N, HEADS), range(0, T, BLOCK)):
        heads, stop = slice(head, min(head + HEADS, N)), min(start + BLOCK, T)
        seen = S - T + stop if inputs.causal else S
        first, later = T - stop, 1 if inputs.causal else stop - start
        distances = slice(first, first + seen + later)
        yield _Piece(heads, slice(start, stop), slice(seen), distances)


def _bias(
    mask: Tensor | None, piece: _Piece, inputs: _Inputs
) -> tuple[Tensor | None, Tensor | None]:
    """Return the bias of pairs with the newest keys, and which queries attend to any key.

    Args:
        mask: pairs that may be attended (1 or B, 1, 1 or T, S), or None.
        piece: queries.
        inputs: inputs of all heads.

    Returns:
        0 or -inf (1 or heads, queries, keys or fewer), or None for all pairs; and a mask (1 or
        heads, queries, 1), or None for all queries.
    """
    n, N, like = piece.queries.stop - piece.queries.start, len(inputs.a), inputs.a
    if mask is None:
        later = like.new_full((1, n, n), -torch.inf).triu_(1) if inputs.causal else None
        return later, None
    samples = [head * len(mask) // N for head in range(piece.heads.start, piece.heads.stop)]
    samples = samples if samples[0] < samples[-1] else samples[:1]
    allowed = mask.expand(-1, -1, like.shape[1], -1)[samples, 0, piece.queries, piece.keys]
    some = allowed.any(-1, keepdim=True)
    hidden = like.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
    return hidden, None if is_true(some) else some


def _weights(
    views: _Inputs, bias: tuple[Tensor | None, Tensor | None], buffers: list[_Buffer]
) -> Tensor:
    """Return the weights of a piece (heads, n, S) in the second buffer, zero for hidden pairs."""
    (hidden, some), (heads, n, _), S = bias, views.a.shape, views.k.shape[1]
    by_distance = torch.bmm(views.b, views.r.mT, out=buffers[0].take(heads, n, views.r.shape[1]))
    scores, by_position = buffers[1].take(heads, n, S), shift_to_keys(by_distance, S)
    torch.baddbmm(by_position, views.a, views.k.mT, out=scores)
    if hidden is not None:
        scores[..., S - hidden.shape[-1] :] += hidden
    torch.softmax(scores, -1, out=scores)
    return scores if some is None else scores.masked_fill_(~some, 0)


def _add_gradients(
    sums: _Inputs, views: _Inputs, grad: Tensor, weights: Tensor, buffers: tuple[_Buffer, _Buffer]
) -> None:
    """Add the gradients of a piece."""
    heads, n, S = weights.shape
    sums.v.add_(torch.bmm(weights.mT, grad))
    by_score = torch.bmm(grad, views.v.mT, out=buffers[1].take(heads, n, S))
    torch._softmax_backward_data(by_score, weights, -1, grad.dtype, grad_input=by_score)
    sums.a.copy_(torch.bmm(by_score, views.k))
    sums.k.add_(torch.bmm(by_score.mT, views.a))
    by_distance = buffers[0].take(heads, n, views.r.shape[1])
    unread = by_distance.flatten(1)[:, :n] if views.causal else by_distance  # by keys
    unread.zero_()
    shift_to_keys(by_distance, S).copy_(by_score)
    sums.b.copy_(torch.bmm(by_distance, views.r))
    sums.r.add_(torch.bmm(by_distance.mT, views.b))


def sinusoids(positions: Tensor, width: int, clamp: int | None = None) -> Tensor:
    """Compute sines, then cosines, of positions over wavelengths from 2 pi to 10000 times that.

    Args:
        positions: numbers (...), possibly negative.
        width: number of columns.
        clamp: largest absolute position, which stands for those beyond it; None: no limit.

    Returns:
        (..., width) in float64: large angles lose all digits in narrower types.
    """
    if clamp is not None:
        positions = positions.clamp(-clamp, clamp)
    rate = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    angles = positions[..., None].double() * 10_000.0**-rate
    return torch.cat([angles.sin(), angles.cos()], -1)[..., :width]


class RelativeAttention(SegmentAttention):
    """Segment attention with relative positions.

    Attributes:
        reach: number of keys that a token sees back, or None for all.
    """

    reach: int | None = None

    def __init__(
        self,
        heads: int,
        head_dim: int,
        segment: int,
        memory: int,
        clamp: int | None,
        backprop_through_memory: bool,
        causal: bool,
    ):
        """Create P, u and w (normal with standard deviation 0.02, as in the authors' code)."""
        super().__init__(segment, memory, backprop_through_memory, causal)
        self.clamp, self.built_for = clamp, {"heads": heads, "head_dim": head_dim}
        self.position = nn.Parameter(torch.empty(heads, head_dim, heads * head_dim))
        self.content_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.position_bias = nn.Parameter(torch.empty(heads, head_dim))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def position_terms(self, x, longest):
        """Return R of the distances from `longest` down to 0, or to those of later keys, and P.

        With few queries, they are projected to the width of R instead: (q P) R. With many, P R is
        computed once.
        """
        q = x.q
        nearest = 0 if self.causal else 1 - min(q.shape[2], self.segment)
        distances = torch.arange(longest, nearest - 1, -1, device=q.device)
        r = at_least_float32(sinusoids(distances, self.position.shape[-1], self.clamp).to(q.dtype))
        project = at_least_float32(self.position.to(q.dtype))
        few = q.shape[0] * q.shape[2] < q.shape[3]
        return (r, longest, project) if few else (r @ project.mT, longest, None)

    def attend_segment(self, q, keys, places):
        """Attend block by block if causal: a block computes no scores of keys after it."""
        (r, longest, project), T, narrow = places, q.shape[2], keys.v
        q, keys = at_least_float32(q), keys._replace(k=at_least_float32(keys.k))
        wide = keys._replace(v=at_least_float32(narrow))
        if project is None and is_piecewise(q, wide.k, wide.v, narrow.dtype):
            return self._attend_pieces(q, wide, r, longest).to(narrow.dtype)
        if not self.causal or T <= QUERY_BLOCK:
            return self._attend_block(q, keys, places)
        blocks, before = q.split(QUERY_BLOCK, 2), keys.size - T
        ends = itertools.accumulate((block.shape[2] for block in blocks), initial=before)
        pairs = zip(blocks, list(ends)[1:], strict=True)
        return torch.cat([self._attend_block(x, keys.first(end), places) for x, end in pairs], 2)

    def _attend_pieces(self, q: Tensor, keys: Rows, r: Tensor, longest: int) -> Tensor:
        """Compute the scores of a few queries at a time, and again in the backward pass."""
        T, S = q.shape[2], keys.size
        is_plain = keys.real is None and self.reach is None
        mask = None if is_plain else segment_mask(T, keys, self.causal, self.reach)

        def whole(a: Tensor, b: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
            return self._mix(a @ k.mT, b @ r.mT, keys._replace(k=k, v=v))

        r = r[:, longest - S : longest + (1 if self.causal else T)]
        return relative_softmax(self._relative_queries(q), keys.k, keys.v, r, mask, whole)

    def _relative_queries(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled queries, with u for the keys and with w for the distances."""
        scale = q.shape[-1] ** -0.5
        u, w = ((x * scale).to(q.dtype)[:, None] for x in (self.content_bias, self.position_bias))
        return q * scale + u, q * scale + w

    def _attend_block(self, q, keys, places):
        """Compute content and position scores as one product each, then softmax."""
        (r, longest, project), T, S = places, q.shape[2], keys.size
        r = r[..., longest - S : longest + (1 if self.causal else T), :]
        a, b = self._relative_queries(q)
        b = b if project is None else b @ project
        return self._mix(a @ keys.k.mT, b @ r.mT, keys)

    def _mix(self, by_content: Tensor, by_distance: Tensor, keys: Rows) -> Tensor:
        """Mix the values by the softmax of the sum of the scores; a row without keys is zero."""
        by_position = shift_to_keys(by_distance, keys.size)
        overwrite = not has_transforms()  # vmap cannot write a batch into what has none
        scores = by_content.add_(by_position) if overwrite else by_content + by_position
        mask = segment_mask(scores.shape[-2], keys, self.causal, self.reach)
        if mask is None:
            return scores.softmax(-1).to(keys.v.dtype) @ keys.v
        out = masked_softmax(scores, mask, overwrite=overwrite).to(keys.v.dtype) @ keys.v
        return out if keys.real is None else apply_mask(out, mask.any(-1, keepdim=True))

    def reference_weights(self, q: Tensor, k: Tensor, distance: Tensor, mask: Tensor) -> Tensor:
        """Compute the weights as in the formula, with r of every pair.

        Args:
            q: queries (B, H, T, D).
            k: keys (B, H, S, D), or (B, H, T, S, D) if they differ between queries.
            distance: distance from each query to each key (T, S).
            mask: allowed pairs, broadcastable to (B, H, T, S); a row may be empty.
        """
        r = sinusoids(distance, self.position.shape[-1], self.clamp).to(q.dtype)
        r = torch.einsum("tsw,hdw->htsd", r, self.position)
        k = k[:, :, None].expand(-1, -1, q.shape[2], -1, -1) if k.dim() == 4 else k
        scores = torch.einsum("bhtd,bhtsd->bhts", q + self.content_bias[:, None], k)
        scores = scores + torch.einsum("bhtd,htsd->bhts", q + self.position_bias[:, None], r)
        scores = (scores / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        highest = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
        weights = (scores - highest).exp()
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total > 0, total, 1.0)

    def flops(self, T, head_dim):
        """Count content scores, position scores, mixing, and one projection of r."""
        widths = self.segment_widths(T)
        total = sum(size * (size + past) for size, past in widths)
        behind = total if self.causal else total + sum(size * size for size, _ in widths)
        distances = max(size + past for size, past in widths)
        distances += (not self.causal) * max(size for size, _ in widths)
        project = 2 * distances * head_dim * self.position.shape[-1]
        return 4 * total * head_dim + 2 * behind * head_dim + project
