"""Triton kernels of attention through feature maps: forward and backward, in chunks of tokens.

    out_t = sum_s a_ts v_s / sum_s a_ts,   a_ts = phi(q_t) . phi(k_s),   s <= t if causal

B H programs alone would leave most of a GPU idle at the lengths that linear attention is for, and a
state per chunk would be as large as the values. So a row is divided into as many segments as fill
the GPU: programs sum the features of each segment, one kernel turns these sums into the state
before each segment, and programs then walk the chunks of their segment with that state in
registers.

A state is (E + 1, M): sum_s v_s phi(k_s)^T, and sum_s phi(k_s) for the normalizer. Nothing of size
T x T or T x M x E exists, sums have a fixed order, and the backward pass computes features and
states again: only the inputs and the reciprocal weight of each row are saved. With w_t the weight,
g_t = dout_t / w_t and Z_t the sum of the features that t sees, the gradient of phi(q_t) is

    a_t - Z_t (phi(q_t) . a_t) / w_t,   a_t = sum_s (g_t . v_s) phi(k_s)

so the output is not needed. Products run in TF32 with sums in float32, as half precision would
round the states and cannot hold 1 / w_t; TF32 holds half precision inputs exactly.
"""

from typing import NamedTuple, no_type_check

from longspan.attention.kernels.triton.tiles import dot, load, store, tl, triton


class Sizes(NamedTuple):
    """Sizes of a call, and the division of its tokens into segments of `steps` chunks.

    `segments` counts those of the state. The shift leads from a key to its query: T - S if causal.
    """

    heads: int
    queries: int
    keys: int
    feature_width: int
    value_width: int
    segments: int
    steps: int
    shift: int


class Form(NamedTuple):
    """Constants of the compiled kernels: tiles of chunk, features and values, and the function."""

    chunk: tl.constexpr
    feature_tile: tl.constexpr
    value_tile: tl.constexpr
    causal: tl.constexpr
    elu: tl.constexpr  # whether the inputs become features elu(x) + 1, or are features
    precision: tl.constexpr
    dtype: tl.constexpr


@triton.jit
@no_type_check
def _features(x, inside, FORM: tl.constexpr):
    """Apply the feature map to inputs; phi(0) is not zero, so what is not real becomes zero."""
    if FORM.elu:
        # Maximum and minimum would replace NaN.
        x = tl.where(x > 0, x, 0.0) + tl.exp(tl.where(x > 0, 0.0, x))
    return tl.where(inside, x, 0.0)


@triton.jit
@no_type_check
def _input_gradient(change, x, inside, FORM: tl.constexpr):
    """Return the gradient of inputs from that of their features."""
    if FORM.elu:
        change = change * tl.exp(tl.where(x > 0, 0.0, x))
    return tl.where(inside, change, 0.0)


@triton.jit
@no_type_check
def _real_keys(mask, row, tokens, sizes):
    """Return which tokens are keys that the mask (B, S) shows."""
    real = (tokens >= 0) & (tokens < sizes.keys)
    if mask is not None:
        places = mask + (row // sizes.heads) * sizes.keys + tokens
        real = real & (tl.load(places, mask=real, other=0) != 0)
    return real


@triton.jit
@no_type_check
def _times(x, factor):
    """Multiply rows by factors; rows of factor zero are zero, also where they are not finite."""
    return tl.where(factor[:, None] != 0, x * factor[:, None], 0.0)


@triton.jit
@no_type_check
def _state_places(state, row, segment, sizes, FORM: tl.constexpr):
    """Return the addresses of a state, as (M, E) and (M), and which of them are inside."""
    m, e = tl.arange(0, FORM.feature_tile), tl.arange(0, FORM.value_tile)
    state += (row * sizes.segments + segment) * (sizes.value_width + 1) * sizes.feature_width
    inside = (m < sizes.feature_width)[:, None] & (e < sizes.value_width)[None, :]
    places = state + e[None, :] * sizes.feature_width + m[:, None]
    return (
        places,
        inside,
        state + sizes.value_width * sizes.feature_width + m,
        m < sizes.feature_width,
    )


@triton.jit
@no_type_check
def _load_state(state, row, segment, sizes, FORM: tl.constexpr):
    places, inside, last, in_last = _state_places(state, row, segment, sizes, FORM)
    return tl.load(places, mask=inside, other=0.0), tl.load(last, mask=in_last, other=0.0)


@triton.jit
@no_type_check
def sum_segment(x, u, mask, factor, weight, count, shift, state, sizes, FORM: tl.constexpr):
    """Sum features times values, and features, over a segment.

    Values are multiplied by `factor` and the features by `weight` (B H, T), or by one if None.
    """
    row, segment = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    total = tl.zeros((FORM.feature_tile, FORM.value_tile), FORM.dtype)
    last = tl.zeros((FORM.feature_tile,), FORM.dtype)
    for step in range(sizes.steps):
        start = (segment * sizes.steps + step) * FORM.chunk + shift
        tokens = start + tl.arange(0, FORM.chunk)
        real = (tokens >= 0) & (tokens < count)
        if mask is not None:
            real = _real_keys(mask, row, tokens, sizes)
        f, inside = load(x, row, tokens, real, sizes.feature_width, sizes, FORM.feature_tile, FORM)
        f = _features(f, inside, FORM)
        value, _ = load(u, row, tokens, real, sizes.value_width, sizes, FORM.value_tile, FORM)
        if factor is not None:
            scale = tl.load(factor + row * count + tokens, mask=real, other=0.0)
            value = _times(value, scale)
        total += dot(tl.trans(f), value, FORM)
        if weight is not None:
            f *= tl.load(weight + row * count + tokens, mask=real, other=0.0)[:, None]
        last += tl.sum(f, 0)
    places, inside, end, in_end = _state_places(state, row, segment, sizes, FORM)
    tl.store(places, total, mask=inside)
    tl.store(end, last, mask=in_end)


@triton.jit
@no_type_check
def scan_segments(state, size, segments, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """Replace the sum of each segment by that of the earlier ones, or of the later ones."""
    columns = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    state += tl.program_id(0).to(tl.int64) * segments * size
    running = tl.zeros((BLOCK,), state.dtype.element_ty)
    for step in range(segments):
        segment = segments - 1 - step if REVERSE else step
        segment_sum = tl.load(state + segment * size + columns, mask=columns < size, other=0.0)
        tl.store(state + segment * size + columns, running, mask=columns < size)
        running += segment_sum


@triton.jit
@no_type_check
def mix_segment(q, k, v, mask, state, out, inverse, least, sizes, FORM: tl.constexpr):
    """Mix values for the queries of a segment; store also the reciprocal weights."""
    row, segment = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    summary, total = _load_state(state, row, segment if FORM.causal else 0, sizes, FORM)
    earlier = tl.arange(0, FORM.chunk)[:, None] >= tl.arange(0, FORM.chunk)[None, :]
    for step in range(sizes.steps):
        keys = (segment * sizes.steps + step) * FORM.chunk + tl.arange(0, FORM.chunk)
        queries = keys + sizes.shift
        real = (queries >= 0) & (queries < sizes.queries)
        fq, inside = load(
            q, row, queries, real, sizes.feature_width, sizes, FORM.feature_tile, FORM
        )
        fq = _features(fq, inside, FORM)
        mixed, weight = dot(fq, summary, FORM), tl.sum(fq * total[None, :], 1)
        if FORM.causal:
            shown = _real_keys(mask, row, keys, sizes)
            fk, inside = load(
                k, row, keys, shown, sizes.feature_width, sizes, FORM.feature_tile, FORM
            )
            fk = _features(fk, inside, FORM)
            value, _ = load(v, row, keys, shown, sizes.value_width, sizes, FORM.value_tile, FORM)
            scores = tl.where(earlier, dot(fq, tl.trans(fk), FORM), 0.0)
            mixed += dot(scores, value, FORM)
            weight += tl.sum(scores, 1)
            summary += dot(tl.trans(fk), value, FORM)
            total += tl.sum(fk, 0)
        some = (tl.abs(weight) > least) | (weight != weight)  # NaN stays visible
        reciprocal = tl.where(some, 1.0 / tl.where(some, weight, 1.0), 0.0)
        mixed = _times(mixed, reciprocal)
        store(out, row, queries, real, sizes.value_width, sizes, mixed, FORM.value_tile)
        tl.store(inverse + row * sizes.queries + queries, reciprocal, mask=real)


@triton.jit
@no_type_check
def query_gradients(q, k, v, mask, state, grad, inverse, dq, dweight, sizes, FORM: tl.constexpr):
    """Compute the gradients of the queries of a segment, and of their weights."""
    row, segment = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    summary, total = _load_state(state, row, segment if FORM.causal else 0, sizes, FORM)
    summary = tl.trans(summary)
    earlier = tl.arange(0, FORM.chunk)[:, None] >= tl.arange(0, FORM.chunk)[None, :]
    for step in range(sizes.steps):
        keys = (segment * sizes.steps + step) * FORM.chunk + tl.arange(0, FORM.chunk)
        queries = keys + sizes.shift
        real = (queries >= 0) & (queries < sizes.queries)
        g, _ = load(grad, row, queries, real, sizes.value_width, sizes, FORM.value_tile, FORM)
        x, inside = load(q, row, queries, real, sizes.feature_width, sizes, FORM.feature_tile, FORM)
        scale = tl.load(inverse + row * sizes.queries + queries, mask=real, other=0.0)
        change, seen = dot(g, summary, FORM), total[None, :]
        if FORM.causal:
            shown = _real_keys(mask, row, keys, sizes)
            fk, in_keys = load(
                k, row, keys, shown, sizes.feature_width, sizes, FORM.feature_tile, FORM
            )
            fk = _features(fk, in_keys, FORM)
            value, _ = load(v, row, keys, shown, sizes.value_width, sizes, FORM.value_tile, FORM)
            scores = tl.where(earlier, dot(g, tl.trans(value), FORM), 0.0)
            change += dot(scores, fk, FORM)
            seen = seen + tl.cumsum(fk, 0)
            summary += dot(tl.trans(value), fk, FORM)
            total += tl.sum(fk, 0)
        change = _times(change, scale)
        by_weight = -tl.sum(_features(x, inside, FORM) * change, 1) * scale
        change = _input_gradient(change + by_weight[:, None] * seen, x, inside, FORM)
        store(dq, row, queries, real, sizes.feature_width, sizes, change, FORM.feature_tile)
        tl.store(dweight + row * sizes.queries + queries, by_weight, mask=real)


@triton.jit
@no_type_check
def key_gradients(q, k, v, mask, state, grad, inverse, dweight, dk, dv, sizes, FORM: tl.constexpr):
    """Compute the gradients of the keys and values of a segment, from its end to its start."""
    row, segment = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    summary, total = _load_state(state, row, segment if FORM.causal else 0, sizes, FORM)
    later = tl.arange(0, FORM.chunk)[:, None] <= tl.arange(0, FORM.chunk)[None, :]
    for step in range(sizes.steps):
        start = ((segment + 1) * sizes.steps - 1 - step) * FORM.chunk
        keys = start + tl.arange(0, FORM.chunk)
        shown = _real_keys(mask, row, keys, sizes)
        x, inside = load(k, row, keys, shown, sizes.feature_width, sizes, FORM.feature_tile, FORM)
        value, _ = load(v, row, keys, shown, sizes.value_width, sizes, FORM.value_tile, FORM)
        fk = _features(x, inside, FORM)
        by_value = dot(fk, summary, FORM)
        change = dot(value, tl.trans(summary), FORM) + total[None, :]
        if FORM.causal:
            queries = keys + sizes.shift
            real = (queries >= 0) & (queries < sizes.queries)
            fq, in_rows = load(
                q, row, queries, real, sizes.feature_width, sizes, FORM.feature_tile, FORM
            )
            fq = _features(fq, in_rows, FORM)
            g, _ = load(grad, row, queries, real, sizes.value_width, sizes, FORM.value_tile, FORM)
            places = row * sizes.queries + queries
            g = _times(g, tl.load(inverse + places, mask=real, other=0.0))
            by_weight = tl.load(dweight + places, mask=real, other=0.0)
            scores = tl.where(later, dot(fk, tl.trans(fq), FORM), 0.0)
            by_value += dot(scores, g, FORM)
            scores = dot(value, tl.trans(g), FORM) + by_weight[None, :]
            change += dot(tl.where(later, scores, 0.0), fq, FORM)
            summary += dot(tl.trans(fq), g, FORM)
            total += tl.sum(fq * by_weight[:, None], 0)
        change = _input_gradient(change, x, inside, FORM)
        every = (keys >= 0) & (keys < sizes.keys)
        store(dk, row, keys, every, sizes.feature_width, sizes, change, FORM.feature_tile)
        store(dv, row, keys, every, sizes.value_width, sizes, by_value, FORM.value_tile)
