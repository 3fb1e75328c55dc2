"""Triton kernels of the recurrences of `ops/recurrence`: forward and backward, by chunks.

With the symbols of that file, e_t = exp(c_t), f_t = exp(c_C - c_t), and X = (I + A)^-1, or I
without the delta rule,

    P_ts = sum_d q_td k_sd exp(c_td - c_sd)   for s <= t
    V = X beta (v - (e k) S),   o = (e q) S + P V,   S' = exp(c_C) S + (f k)^T V

Only S must pass from chunk to chunk. `solve_chunks` computes X of all chunks at once, `scan_chunks`
walks over the chunks with a tile of columns of S in registers and stores S and V, and `read_chunks`
computes the outputs of all chunks at once. Columns of S are independent of each other, so that a
head has as many programs as tiles of columns.

X and the decays between tokens of a chunk are never stored in larger pieces than C x C, nor are
decays per channel: blocks of 1, 2, 4, ... tokens meet their neighbors, queries with their decay
from the start of their block, keys with that to the end of theirs. The same corners of blocks
invert I + A: with X the inverse of its blocks, that of the blocks of twice the size is X - X A X.

The backward pass computes X, S and V again; only the inputs are saved. dS' flows from the last
chunk to the first:

    dV = P^T do + (f k) dS',   R = X^T dV,   dS = exp(c_C) dS' + (e q)^T do - (beta e k)^T R

with R the gradient of beta (v - (e k) S), so that dA = -R V^T, dP = do V^T, and the gradient of
every log decay is a sum of the gradients of the exponentials that contain it.

Sums of log decays never subtract one sum from another, and no exponent is positive. Products run in
TF32 with sums in float32, or in three products of TF32; sums have a fixed order.
"""

from typing import NamedTuple, no_type_check

from longspan.attention.kernels.triton.tiles import Rows, dot, load, store, tl, triton


class Inputs(NamedTuple):
    """Inputs of the recurrence, and the gradient of its outputs, or its outputs."""

    q: Rows
    k: Rows
    v: Rows
    log_decay: Rows
    beta: Rows
    out: Rows


class Buffers(NamedTuple):
    """Intermediate results.

    Attributes:
        solved: X of each chunk (B, H, chunks C, C).
        written: V (B, H, T, E).
        states: S before each chunk (B, H, chunks D, E).
        removed: P^T do, then R (B, H, T, E).
        changes: dS' of each chunk (B, H, chunks D, E).
        key_share: gradient of keys from the products with queries (B, H, T, D).
        decay_share: gradient of log decays from all that reads queries (B, H, T, 1 or D).
    """

    solved: Rows
    written: Rows
    states: Rows
    removed: Rows
    changes: Rows
    key_share: Rows
    decay_share: Rows


class Sizes(NamedTuple):
    """Sizes of a call; log decays have one channel, or as many as keys."""

    heads: int
    tokens: int
    chunks: int
    key_width: int
    value_width: int
    decay_width: int


class Form(NamedTuple):
    """Constants of the compiled kernels: tiles of chunk, keys, values and decays, and the rule."""

    chunk: tl.constexpr
    key_tile: tl.constexpr
    value_tile: tl.constexpr
    decay_tile: tl.constexpr
    levels: tl.constexpr  # the chunk is two to this power
    delta: tl.constexpr
    precision: tl.constexpr
    dtype: tl.constexpr


@triton.jit
@no_type_check
def _keys(x, row, chunk, sizes, FORM: tl.constexpr):
    """Load queries or keys of a chunk."""
    tokens = chunk * FORM.chunk + tl.arange(0, FORM.chunk)
    real = tokens < sizes.tokens
    return load(x, row, tokens, real, sizes.key_width, sizes, FORM.key_tile, FORM)[0]


@triton.jit
@no_type_check
def _values(x, row, chunk, tile, sizes, FORM: tl.constexpr):
    """Load a tile of columns of values of a chunk."""
    tokens = chunk * FORM.chunk + tl.arange(0, FORM.chunk)
    first = tile * FORM.value_tile
    width = sizes.value_width
    return load(x, row, tokens, tokens < sizes.tokens, width, sizes, FORM.value_tile, FORM, first)[
        0
    ]


@triton.jit
@no_type_check
def _store_values(x, row, chunk, tile, sizes, value, FORM: tl.constexpr):
    tokens = chunk * FORM.chunk + tl.arange(0, FORM.chunk)
    first = tile * FORM.value_tile
    real, width = tokens < sizes.tokens, sizes.value_width
    store(x, row, tokens, real, width, sizes, value, FORM.value_tile, first)


@triton.jit
@no_type_check
def _state(x, row, chunk, tile, sizes, FORM: tl.constexpr):
    """Load a tile of columns of the state of a chunk, (D, E)."""
    d = tl.arange(0, FORM.key_tile)
    rows, real, first = chunk * sizes.key_width + d, d < sizes.key_width, tile * FORM.value_tile
    return load(x, row, rows, real, sizes.value_width, sizes, FORM.value_tile, FORM, first)[0]


@triton.jit
@no_type_check
def _store_state(x, row, chunk, tile, sizes, value, FORM: tl.constexpr):
    d = tl.arange(0, FORM.key_tile)
    rows, real, first = chunk * sizes.key_width + d, d < sizes.key_width, tile * FORM.value_tile
    store(x, row, rows, real, sizes.value_width, sizes, value, FORM.value_tile, first)


@triton.jit
@no_type_check
def _inverse(x, row, chunk, sizes, FORM: tl.constexpr):
    """Load X of a chunk."""
    places = tl.arange(0, FORM.chunk)
    rows = chunk * FORM.chunk + places
    return load(x, row, rows, places >= 0, FORM.chunk, sizes, FORM.chunk, FORM)[0]


@triton.jit
@no_type_check
def _gates(x, row, chunk, sizes, FORM: tl.constexpr):
    """Load the log decay of each token of a chunk, that of the next one in it, and beta."""
    places = tl.arange(0, FORM.chunk)
    tokens = chunk * FORM.chunk + places
    width, last = sizes.decay_width, sizes.tokens
    now = load(x.log_decay, row, tokens, tokens < last, width, sizes, FORM.decay_tile, FORM)[0]
    real = (tokens + 1 < last) & (places + 1 < FORM.chunk)
    after = load(x.log_decay, row, tokens + 1, real, width, sizes, FORM.decay_tile, FORM)[0]
    return now, after, load(x.beta, row, tokens, tokens < last, 1, sizes, 1, FORM)[0]


@triton.jit
@no_type_check
def _sums(x, SIZE: tl.constexpr, REVERSE: tl.constexpr):
    """Sum the rows of blocks of SIZE rows, up to each row or from it on."""
    blocks = tl.reshape(x, (x.shape[0] // SIZE, SIZE, x.shape[1]))
    return tl.reshape(tl.cumsum(blocks, 1, reverse=REVERSE), (x.shape[0], x.shape[1]))


@triton.jit
@no_type_check
def _earlier_sums(x, SIZE: tl.constexpr):
    """Sum the rows of a block before each row."""
    return _sums(x, SIZE, False) - x


@triton.jit
@no_type_check
def _fades(now, after, SIZE: tl.constexpr):
    """Return the decay from before a block of SIZE tokens to each token, and to its end."""
    places = tl.arange(0, now.shape[0])[:, None]
    after = tl.where(places % SIZE == SIZE - 1, 0.0, after)
    return tl.exp(_sums(now, SIZE, False)), tl.exp(_sums(after, SIZE, True))


@triton.jit
@no_type_check
def _corner(SIZE: tl.constexpr, FORM: tl.constexpr):
    """Return which pairs of tokens are in neighboring blocks of one block of twice the size."""
    block = tl.arange(0, FORM.chunk) // SIZE
    rows, columns = block[:, None], block[None, :]
    return (rows // 2 == columns // 2) & (rows > columns)


@triton.jit
@no_type_check
def _pairs(FORM: tl.constexpr):
    """Return the difference of the places of query and key."""
    places = tl.arange(0, FORM.chunk)
    return places[:, None] - places[None, :]


@triton.jit
@no_type_check
def _gain(now, FORM: tl.constexpr):
    """Return the decay between all pairs of tokens (C, C), zero for keys after the query."""
    distance = _pairs(FORM)
    between = tl.cumsum(tl.where(distance > 0, now, 0.0), 0)
    return tl.where(distance >= 0, tl.exp(between), 0.0)


@triton.jit
@no_type_check
def _products(q, k, now, after, FORM: tl.constexpr):
    """Return the products of queries and keys with the decay between them."""
    if FORM.decay_tile == 1:
        products = dot(q, tl.trans(k), FORM) * _gain(now, FORM)
    else:
        products = tl.where(_pairs(FORM) == 0, tl.sum(q * k, 1)[:, None], 0.0)
        for level in tl.static_range(FORM.levels):
            start, end = _fades(now, after, 1 << level)
            cross = dot(q * start, tl.trans(k * end), FORM)
            products += tl.where(_corner(1 << level, FORM), cross, 0.0)
    return products


@triton.jit
@no_type_check
def _product_gradients(change, q, k, now, after, FORM: tl.constexpr):
    """Return the gradients of queries, keys and log decays from that of their products."""
    distance = _pairs(FORM)
    if FORM.decay_tile == 1:
        change *= _gain(now, FORM)
        dq, dk = dot(change, k, FORM), dot(tl.trans(change), q, FORM)
        weight = tl.where(distance > 0, change * dot(q, tl.trans(k), FORM), 0.0)
        # A log decay is part of all pairs whose key is before it, and whose query is not.
        later = tl.cumsum(weight, 0, reverse=True)
        dg = tl.sum(tl.where(distance > 0, later, 0.0), 1, keep_dims=True)
    else:
        same = tl.sum(tl.where(distance == 0, change, 0.0), 1)[:, None]
        dq, dk, dg = same * k, same * q, tl.zeros_like(q)
        for level in tl.static_range(FORM.levels):
            start, end = _fades(now, after, 1 << level)
            part = tl.where(_corner(1 << level, FORM), change, 0.0)
            by_q = dot(part, k * end, FORM) * start
            by_k = dot(tl.trans(part), q * start, FORM) * end
            dq += by_q
            dk += by_k
            dg += _sums(by_q * q, 1 << level, True) + _earlier_sums(by_k * k, 1 << level)
    return dq, dk, dg


@triton.jit
@no_type_check
def _of_decays(x, FORM: tl.constexpr):
    """Sum over channels if they share a decay."""
    return tl.sum(x, 1, keep_dims=True) if FORM.decay_tile == 1 else x


@triton.jit
@no_type_check
def solve_chunks(x, buffers, sizes, FORM: tl.constexpr):
    """Invert I + A of a chunk."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    key = _keys(x.k, row, chunk, sizes, FORM)
    now, after, beta = _gates(x, row, chunk, sizes, FORM)
    products = _products(key * beta, key, now, after, FORM)
    inverse = tl.where(_pairs(FORM) == 0, 1.0, 0.0).to(FORM.dtype)
    inverse -= tl.where(_corner(1, FORM), products, 0.0)
    for level in tl.static_range(1, FORM.levels):
        corner = tl.where(_corner(1 << level, FORM), products, 0.0)
        inverse -= dot(inverse, dot(corner, inverse, FORM), FORM)
    places = tl.arange(0, FORM.chunk)
    rows = chunk * FORM.chunk + places
    store(buffers.solved, row, rows, places >= 0, FORM.chunk, sizes, inverse, FORM.chunk)


@triton.jit
@no_type_check
def scan_chunks(x, buffers, sizes, FORM: tl.constexpr):
    """Store V of the chunks, and the state before each: a tile of their columns."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = tl.zeros((FORM.key_tile, FORM.value_tile), FORM.dtype)
    for chunk in range(sizes.chunks):
        key = _keys(x.k, row, chunk, sizes, FORM)
        now, after, beta = _gates(x, row, chunk, sizes, FORM)
        start, end = _fades(now, after, FORM.chunk)
        value = _values(x.v, row, chunk, tile, sizes, FORM)
        _store_state(buffers.states, row, chunk, tile, sizes, state, FORM)
        if FORM.delta:
            value = beta * (value - dot(key * start, state, FORM))
            value = dot(_inverse(buffers.solved, row, chunk, sizes, FORM), value, FORM)
        else:
            value *= beta
        _store_values(buffers.written, row, chunk, tile, sizes, value, FORM)
        state *= tl.exp(tl.sum(now, 0))[:, None]
        state += dot(tl.trans(key * end), value, FORM)


@triton.jit
@no_type_check
def read_chunks(x, buffers, sizes, FORM: tl.constexpr):
    """Compute the outputs of a chunk."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query, key = _keys(x.q, row, chunk, sizes, FORM), _keys(x.k, row, chunk, sizes, FORM)
    now, after, _ = _gates(x, row, chunk, sizes, FORM)
    products = _products(query, key, now, after, FORM)
    query *= _fades(now, after, FORM.chunk)[0]
    for tile in range(tl.cdiv(sizes.value_width, FORM.value_tile)):
        out = dot(query, _state(buffers.states, row, chunk, tile, sizes, FORM), FORM)
        out += dot(products, _values(buffers.written, row, chunk, tile, sizes, FORM), FORM)
        _store_values(x.out, row, chunk, tile, sizes, out, FORM)


@triton.jit
@no_type_check
def sum_gradients(x, buffers, sizes, FORM: tl.constexpr):
    """Compute P^T do, the gradient of V from the outputs of its chunk."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query, key = _keys(x.q, row, chunk, sizes, FORM), _keys(x.k, row, chunk, sizes, FORM)
    now, after, _ = _gates(x, row, chunk, sizes, FORM)
    products = tl.trans(_products(query, key, now, after, FORM))
    for tile in range(tl.cdiv(sizes.value_width, FORM.value_tile)):
        change = dot(products, _values(x.out, row, chunk, tile, sizes, FORM), FORM)
        _store_values(buffers.removed, row, chunk, tile, sizes, change, FORM)


@triton.jit
@no_type_check
def query_gradients(x, buffers, grads, sizes, FORM: tl.constexpr):
    """Compute the gradients of the queries of a chunk, and shares of those of keys and decays."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dq = tl.zeros((FORM.chunk, FORM.key_tile), FORM.dtype)
    change = tl.zeros((FORM.chunk, FORM.chunk), FORM.dtype)
    for tile in range(tl.cdiv(sizes.value_width, FORM.value_tile)):
        grad = _values(x.out, row, chunk, tile, sizes, FORM)
        dq += dot(grad, tl.trans(_state(buffers.states, row, chunk, tile, sizes, FORM)), FORM)
        written = _values(buffers.written, row, chunk, tile, sizes, FORM)
        change += dot(grad, tl.trans(written), FORM)
    query, key = _keys(x.q, row, chunk, sizes, FORM), _keys(x.k, row, chunk, sizes, FORM)
    now, after, _ = _gates(x, row, chunk, sizes, FORM)
    dq *= _fades(now, after, FORM.chunk)[0]
    dg = _sums(_of_decays(dq * query, FORM), FORM.chunk, True)
    change = tl.where(_pairs(FORM) >= 0, change, 0.0)
    by_q, dk, by_g = _product_gradients(change, query, key, now, after, FORM)
    tokens = chunk * FORM.chunk + tl.arange(0, FORM.chunk)
    real, D, W = tokens < sizes.tokens, sizes.key_width, sizes.decay_width
    store(grads.q, row, tokens, real, D, sizes, dq + by_q, FORM.key_tile)
    store(buffers.key_share, row, tokens, real, D, sizes, dk, FORM.key_tile)
    store(buffers.decay_share, row, tokens, real, W, sizes, dg + by_g, FORM.decay_tile)


@triton.jit
@no_type_check
def scan_gradients(x, buffers, sizes, FORM: tl.constexpr):
    """Store R of the chunks, and the gradient of the state after each, from the last one on."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    change = tl.zeros((FORM.key_tile, FORM.value_tile), FORM.dtype)
    for step in range(sizes.chunks):
        chunk = sizes.chunks - 1 - step
        query, key = _keys(x.q, row, chunk, sizes, FORM), _keys(x.k, row, chunk, sizes, FORM)
        now, after, beta = _gates(x, row, chunk, sizes, FORM)
        start, end = _fades(now, after, FORM.chunk)
        grad = _values(x.out, row, chunk, tile, sizes, FORM)
        _store_state(buffers.changes, row, chunk, tile, sizes, change, FORM)
        removed = _values(buffers.removed, row, chunk, tile, sizes, FORM)
        removed += dot(key * end, change, FORM)
        change *= tl.exp(tl.sum(now, 0))[:, None]
        change += dot(tl.trans(query * start), grad, FORM)
        if FORM.delta:
            inverse = tl.trans(_inverse(buffers.solved, row, chunk, sizes, FORM))
            removed = dot(inverse, removed, FORM)
            change -= dot(tl.trans(key * start * beta), removed, FORM)
        _store_values(buffers.removed, row, chunk, tile, sizes, removed, FORM)


@triton.jit
@no_type_check
def _sum_columns(x, buffers, grads, beta, row, chunk, sizes, FORM: tl.constexpr):
    """Store the gradient of values, and sum products over their columns."""
    by_write = tl.zeros((FORM.chunk, FORM.key_tile), FORM.dtype)
    by_read = tl.zeros((FORM.chunk, FORM.key_tile), FORM.dtype)
    change = tl.zeros((FORM.chunk, FORM.chunk), FORM.dtype)
    fade, step = tl.zeros((FORM.key_tile,), FORM.dtype), tl.zeros((FORM.chunk,), FORM.dtype)
    for tile in range(tl.cdiv(sizes.value_width, FORM.value_tile)):
        state = _state(buffers.states, row, chunk, tile, sizes, FORM)
        after = _state(buffers.changes, row, chunk, tile, sizes, FORM)
        written = _values(buffers.written, row, chunk, tile, sizes, FORM)
        removed = _values(buffers.removed, row, chunk, tile, sizes, FORM)
        _store_values(grads.v, row, chunk, tile, sizes, removed * beta, FORM)
        fade += tl.sum(state * after, 1)
        step += tl.sum(removed * _values(x.v, row, chunk, tile, sizes, FORM), 1)
        by_write += dot(written, tl.trans(after), FORM)
        if FORM.delta:
            by_read -= dot(removed, tl.trans(state), FORM)
            change -= dot(removed, tl.trans(written), FORM)
    return by_write, by_read, change, fade[None, :], step[:, None]


@triton.jit
@no_type_check
def key_gradients(x, buffers, grads, sizes, FORM: tl.constexpr):
    """Compute the gradients of the keys, values and gates of a chunk."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    now, after, beta = _gates(x, row, chunk, sizes, FORM)
    start, end = _fades(now, after, FORM.chunk)
    dk, by_read, change, fade, dbeta = _sum_columns(
        x, buffers, grads, beta, row, chunk, sizes, FORM
    )
    key, dk, by_read = _keys(x.k, row, chunk, sizes, FORM), dk * end, by_read * start
    dg = _earlier_sums(_of_decays(dk * key, FORM), FORM.chunk)
    dg += tl.exp(tl.sum(now, 0))[None, :] * _of_decays(fade, FORM)
    dk += _keys(buffers.key_share, row, chunk, sizes, FORM)
    if FORM.delta:
        dbeta += tl.sum(by_read * key, 1, keep_dims=True)
        by_read *= beta
        dk += by_read
        dg += _sums(_of_decays(by_read * key, FORM), FORM.chunk, True)
        change = tl.where(_pairs(FORM) > 0, change, 0.0)
        by_q, by_k, by_g = _product_gradients(change, key * beta, key, now, after, FORM)
        dbeta += tl.sum(by_q * key, 1, keep_dims=True)
        dk, dg = dk + by_q * beta + by_k, dg + by_g
    tokens = chunk * FORM.chunk + tl.arange(0, FORM.chunk)
    real, D, W = tokens < sizes.tokens, sizes.key_width, sizes.decay_width
    dg += load(buffers.decay_share, row, tokens, real, W, sizes, FORM.decay_tile, FORM)[0]
    store(grads.k, row, tokens, real, D, sizes, dk, FORM.key_tile)
    store(grads.log_decay, row, tokens, real, W, sizes, dg, FORM.decay_tile)
    store(grads.beta, row, tokens, real, 1, sizes, dbeta, 1)
