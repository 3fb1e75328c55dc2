"""Recurrences of a matrix state: linear attention with decay, gates and the delta rule.

    S_t = D_t S_{t-1} + beta_t k_t (v_t - D_t S_{t-1}^T k_t)^T     with the delta rule
    S_t = D_t S_{t-1} + beta_t k_t v_t^T                           without it
    o_t = S_t^T q_t,    D_t = Diag(exp g_t),  g_t <= 0

One decay for a head or one for each channel of its keys. A chunk of C tokens is computed at once.
With c the sum of g from its first token, and S the state before it:

    A_ts = beta_t sum_d k_td k_sd exp(c_td - c_sd)   for s < t
    U = (I + A)^-1 (beta v),  W = (I + A)^-1 (beta k exp c)      without the delta rule U = beta v
    V = U - W S                                                   and W = 0
    o_t = (q_t exp c_t)^T S + sum_{s <= t} sum_d q_td k_sd exp(c_td - c_sd) V_s
    S <- exp(c_C) S + sum_s k_s exp(c_C - c_s) V_s^T

(Yang et al. 2025, https://arxiv.org/abs/2412.06464, section 3.3; Kimi Team 2025,
https://arxiv.org/abs/2510.26692, for channels.) Exponents are at most 0, and in blocks of channels
at most `RANGE`, so no decay overflows.
Both directions are summed for bidirectional forms: without the delta rule a token is counted once.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from longspan.attention.derivatives import has_transforms
from longspan.attention.ops.open_sizes import fit_block, is_open, resize, split_blocks
from longspan.attention.ops.precision import at_least_float32

CHUNK = 64  # tokens compared directly; a power of two
NARROW = 64  # width of a head up to which a CPU takes less time with half as many
PIECE = 1 << 18  # numbers of the keys that a CPU computes with at once: a megabyte, in its cache
SMALL = 2  # rows of blocks whose products are sums of elementwise ones
RANGE = 32.0  # sum of decays of a block whose tokens are compared in one product


def mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    delta: bool = False,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over a sequence, in chunks.

    Args:
        q: queries (B, H, T, D), at least float32.
        k: keys (B, H, T, D), zero at padding.
        v: values (B, H, T, E).
        log_decay: g (B or 1, H, T, 1 or D), at most 0, and 0 at padding; None: no decay.
        beta: step sizes (B, H, T); None: ones.
        delta: whether a key first removes what the state holds for it.
        state: S after earlier tokens (B, H, D, E); None: zeros.
        chunk: C, a power of two; fewer tokens take a smaller one. None: the fastest.

    Returns:
        Outputs (B, H, T, E), and the state after the last token.
    """
    T, step = k.shape[2], None if beta is None else beta[..., None]
    if state is None:
        state = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
    v = v if step is None else v * step
    if not is_open(T) and T == 1:
        return _single_step(q, k, v, log_decay, step, delta, state)
    if chunk is None:
        chunk = _fastest_chunk(k, v, is_plain=log_decay is None and not delta)
    chunk = chunk_of(chunk, T)
    size = _piece_size(k, v, chunk)
    if size is None:
        return _mix_chunks(q, k, v, log_decay, step, delta=delta, state=state, chunk=chunk)
    queries, keys, values = (x.split(size, 2) for x in (q, k, v))
    absent = [None] * len(keys)
    decays, steps = (absent if x is None else x.split(size, 2) for x in (log_decay, step))
    outs: list[Tensor] = []
    for piece in zip(queries, keys, values, decays, steps, strict=True):
        out, state = _mix_chunks(*piece, delta=delta, state=state, chunk=chunk)
        outs.append(out)
    return torch.cat(outs, 2), state


def _piece_size(k: Tensor, v: Tensor, chunk: int) -> int | None:
    """Return how many tokens a CPU computes at once, those whose keys its cache holds.

    None: all of them, as on other devices and where a graph of operators is recorded.
    """
    if k.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    numbers = k.shape[0] * k.shape[1] * max(k.shape[3], v.shape[3])
    size = max(PIECE // max(numbers, 1) // chunk, 1) * chunk
    return size if size < k.shape[2] else None


def _mix_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    step: Tensor | None,
    *,
    delta: bool,
    state: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Return what `mix` does for all chunks at once; v has its step size (..., T, 1)."""
    T = k.shape[2]
    q, k, v = (split_blocks(x, chunk) for x in (q, k, v))
    g = None if log_decay is None else split_blocks(log_decay, chunk)[:, :, :, None]
    step = None if step is None else split_blocks(step, chunk)
    rows = torch.stack([q, k], 3) if delta else q[:, :, :, None]
    products, *decays = _decayed(rows, k[:, :, :, None], g)
    reads, reads_k, writes, fade = q, k, k.mT, None
    if decays:
        start, end = (x[:, :, :, 0] for x in decays)
        reads, writes, fade = q * start, (k * end).mT, start[..., -1:, :].mT
        reads_k = k * start if delta else k
    if delta:
        v, states, state = _delta_scan(products[:, :, :, 1], v, reads_k, writes, step, fade, state)
    else:
        states, state = scan(writes @ v, fade, state)
    out = products[:, :, :, 0] @ v + reads @ states
    return resize(out.flatten(2, 3), T), state


def mix_both_ways(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    delta: bool = False,
    chunk: int | None = None,
    run: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Return the sum of the recurrence in both directions, (B, H, T, E); arguments as of `mix`.

    The token itself is in both; without the delta rule one of them is taken off. A kernel `run`
    computes the outputs of one direction in place of `mix`.
    """
    if log_decay is not None:
        log_decay = log_decay.expand(k.shape[0], -1, -1, -1)
    inputs = q, k, v, log_decay, beta
    flipped = [x if x is None else x.flip(2) for x in inputs]
    if run is None:  # one after the other, which takes less time on a CPU
        onward, backward = (mix(*x, delta=delta, chunk=chunk)[0] for x in (inputs, flipped))
    else:
        pairs = zip(inputs, flipped, strict=True)
        both = [None if x is None or y is None else torch.cat([x, y]) for x, y in pairs]
        onward, backward = run(*both, delta=delta).chunk(2)
    out = at_least_float32(onward) + backward.flip(2)
    if delta:
        return out
    weight = (at_least_float32(q) * k).sum(-1, keepdim=True)
    return out - (weight if beta is None else weight * beta[..., None]) * v


def _fastest_chunk(k: Tensor, v: Tensor, *, is_plain: bool) -> int:
    """Return how many tokens to compare directly; plain: without decay and delta rule."""
    is_narrow = max(k.shape[3], v.shape[3]) <= NARROW
    return CHUNK // 2 if k.device.type == "cpu" and is_narrow and not is_plain else CHUNK


def chunk_of(chunk: int, length: int) -> int:
    """Return the smallest power of two that holds the tokens, or the chunk if it is smaller."""
    size = 1
    while size < fit_block(chunk, length):
        size *= 2
    return size


def _single_step(q, k, v, log_decay, step, delta: bool, state: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the formula to one token; v has its step size."""
    if log_decay is not None:
        state = state * log_decay.exp().mT
    if delta:
        old = k @ state
        v = v - (old if step is None else old * step)
    state = state + k.mT @ v
    return q @ state, state


def _decayed(q: Tensor, k: Tensor, g: Tensor | None) -> tuple[Tensor, ...]:
    """Return the products of queries and keys within chunks, and decays to and from their ends.

    Args:
        q: rows (..., R, C, D): R sets of rows that meet the keys.
        k: keys (..., 1, C, D).
        g: log decays (..., 1, C, 1 or D), or None.

    Returns:
        Sums over d of q_td k_sd exp(c_td - c_sd), zero for s > t (..., C, C). If there are decays,
        also that from before the chunk to each token (..., C, 1 or D), and that from each token to
        the end of the chunk.
    """
    if g is None:
        return ((q @ k.mT).tril(),)
    if g.shape[-1] > 1:
        return _channel_decays(q, k, g)
    # Sums of g over the tokens s + 1 .. t, (..., t, s): differences of sums would lose small ones.
    between = g.expand(*g.shape[:-1], g.shape[-2]).tril(-1).cumsum(-2)
    later = torch.ones(between.shape[-2:], dtype=torch.bool, device=g.device).triu(1)
    gain = between.masked_fill(later, -torch.inf).exp()
    return (q @ k.mT) * gain, g.cumsum(-2).exp(), between[..., -1:, :].mT.exp()


def _channel_decays(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Compute `_decayed` with one decay per channel, from blocks of tokens to halves of the chunk.

    Queries of a second half meet keys of the first in one product: keys decay to the end of their
    half, queries from there on.
    """
    q, k, g = (x.unflatten(-2, (-1, _block_size(g))) for x in (q, k, g))
    products, start, end = _within_blocks(q, k, g)
    while start.shape[-3] > 1:
        (_, q2), (k1, _), corners = _halves(q), _halves(k), _halves(products)
        (start1, start2), (end1, end2) = _halves(start), _halves(end)
        cross = _products(q2 * start2.exp(), k1 * end1.exp())
        rows = F.pad(corners[0], (0, corners[0].shape[-1])), torch.cat([cross, corners[1]], -1)
        products = torch.cat(rows, -2)
        end = torch.cat([end1 + start2[..., -1:, :], end2], -2)
        start = torch.cat([start1, start2 + start1[..., -1:, :]], -2)
        q, k = (x.unflatten(-3, (-1, 2)).flatten(-3, -2) for x in (q, k))
    return products.squeeze(-3), start.squeeze(-3).exp(), end.squeeze(-3).exp()


def _block_size(g: Tensor) -> int:
    """Return how many tokens `_within_blocks` compares, by the strongest decay of the blocks.

    One token where values are not to be read: on other devices and where operators are recorded.
    """
    size, recorded = g.shape[-2], torch.compiler.is_compiling() or has_transforms()
    if g.device.type != "cpu" or recorded or isinstance(g, FakeTensor):
        return 1
    g = g.detach()
    while size > 1 and not bool((g.unflatten(-2, (-1, size)).sum(-2) >= -RANGE).all()):
        size //= 2
    return size


def _within_blocks(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return products within blocks (..., m, D), and log decays from their start and to their end.

    Decays are counted from the middle of a block, to queries and from keys: sums of at most `RANGE`
    overflow in neither, and are exact to the rounding of such a sum.
    """
    if q.shape[-2] == 1:
        return (q * k).sum(-1, keepdim=True), g, torch.zeros_like(g)
    start, middle = g.cumsum(-2), g.shape[-2] // 2
    shift = start - start[..., middle : middle + 1, :].detach()
    products = _products(q * shift.exp(), k * (-shift).exp()).tril()
    return products, start, start[..., -1:, :] - start


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the blocks (..., n, m, D) at even and at odd places."""
    first, second = x.unflatten(-3, (-1, 2)).unbind(-3)
    return first, second


def _products(q: Tensor, k: Tensor) -> Tensor:
    """Return q k^T of blocks (..., m, D), for few rows without the overhead of a product each."""
    if q.shape[-2] > SMALL:
        return q @ k.mT
    return (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1)


def scan(sums: Tensor, fade: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk (B, H, chunks, D, E), and after the last one.

    Args:
        sums: what each chunk adds (B, H, chunks, D, E).
        fade: factor of the state over each chunk (B, H, chunks, D or 1, 1); None: one.
        state: state before the first chunk (B, H, D, E).
    """
    if fade is None:
        after = sums.cumsum(2) + state[:, :, None]
        before = resize(torch.cat([state[:, :, None], after], 2), after.shape[2])
        return before, after[:, :, -1].clone()
    states = []
    # The gradient of an index into the chunks is as large as all of them; that of `unbind` is not.
    for chunk_sum, factor in zip(sums.unbind(2), fade.unbind(2), strict=True):
        states.append(state)
        state = state * factor + chunk_sum
    return torch.stack(states, 2), state


def _delta_scan(
    products: Tensor,
    v: Tensor,
    k: Tensor,
    writes: Tensor,
    step: Tensor | None,
    fade: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the tokens write, and the state before each chunk and after the last.

    Args:
        products: products of keys with earlier ones, with their decay (..., C, C); the diagonal
            counts as one.
        v: values, with their step size.
        k: keys, with the decay from before the chunk.
        writes: keys with the decay to the end of the chunk, transposed.
        step: step sizes (..., C, 1), or None.
        fade: decay of the whole chunk (..., 1 or D, 1), or None.
        state: state before the first chunk.
    """
    if step is not None:
        products, k = products * step, k * step
    right = torch.cat([v, k], -1)
    solved = torch.linalg.solve_triangular(products, right, upper=False, unitriangular=True)
    values, reads = solved.split([v.shape[-1], k.shape[-1]], -1)
    written, states = [], []
    for i, (value, read, write) in enumerate(
        zip(values.unbind(2), reads.unbind(2), writes.unbind(2), strict=True)
    ):
        states.append(state)
        written.append(value - read @ state)
        state = (state if fade is None else state * fade[:, :, i]) + write @ written[-1]
    return torch.stack(written, 2), torch.stack(states, 2), state
