"""Attention through feature maps: weights of the form phi(q) . phi(k).

    out_t = sum_s a_ts v_s / sum_s a_ts,   a_ts = (phi(q_t) . phi(k_s)) exp(c_s)

`c` is a logarithmic weight per key, zero for most maps. Features of both are positive or of either
sign; `causal_mix_exponential` is for a phi given by its logarithms, which may be of any size. Sums
and divisions run in float32 or wider. A row is zero if its weights sum to zero, to less than the
smallest safe divisor, or to less than the caller's threshold.
"""

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.documents import Documents
from longspan.attention.ops.open_sizes import fit_block, resize, split_blocks
from longspan.attention.ops.recurrence import CHUNK, chunk_of, scan
from longspan.attention.ops.recurrence import mix as mix_in_chunks


def divide(total: Tensor, weight: Tensor, least: float | None = None) -> Tensor:
    """Divide by the sum of weights; rows whose sum does not exceed `least` are zero.

    Args:
        total: numerators (..., E).
        weight: sums of weights (..., 1).
        least: threshold of their absolute value; None: the smallest safe divisor.
    """
    return total / divisor(weight, least)


def divisor(weight: Tensor, least: float | None) -> Tensor:
    """Return what `divide` divides by: infinity in place of sums that do not exceed the threshold.

    Their rows are zero, and so are their gradients. Rows of NaN stay NaN.
    """
    some = weight.abs() > (_safe_divisor(weight) if least is None else least)
    return weight.where(some, torch.inf)


def _safe_divisor(weight: Tensor) -> float:
    """Return the number above which a sum of weights is a safe divisor.

    Below it the quotient may be finite, but its gradient overflows.
    """
    return torch.finfo(weight.dtype).tiny ** 0.8


class State(NamedTuple):
    """Running summary of the keys seen so far, and the level that it is relative to.

    The level is one number per head (B, H) with log weights, one per feature (B, H, M) with
    exponents, -inf before the first key, and unused otherwise.
    """

    summary: Tensor  # B H M E+1; the last column sums the features (the normalizer)
    level: Tensor


def causal_mix(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    log_weight: Tensor | None = None,
    state: State | None = None,
    least: float | None = None,
) -> tuple[Tensor, State]:
    """Mix values causally and exactly, in chunks: T x CHUNK products, one M x E summary per chunk.

    Args:
        fq: features of the queries (B, H, T, M); the last query sees all keys.
        fk: features of the keys (B, H, S, M), zero at masked keys.
        v: values (B, H, S, E).
        log_weight: c (B, H, S), -inf at masked keys, or None for zeros. No value computed for a
            query depends on the weight of a later key, not even a rescaling.
        state: state after earlier keys, or None.
        least: rows are zero if the absolute sum of their weights, relative to the largest exp(c_s)
            that they see, does not exceed this.

    Returns:
        The mixed values (B, H, T, E), and the state after all keys.
    """
    T, S = fq.shape[-2], fk.shape[-2]
    fq = F.pad(fq, (0, 0, S - T, 0))
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    state = state or _empty_state(fk, v, fk.shape[:2])
    if log_weight is None:
        total, summary = mix_in_chunks(fq, fk, v, state=state.summary)
        state = State(summary, state.level)
    else:
        chunk = fit_block(CHUNK, S)
        fq, fk, v = (_chunked(x, chunk) for x in (fq, fk, v))
        c = _chunked(log_weight[..., None], chunk, -torch.inf)[..., 0]
        total, state = _weighted(fq @ fk.mT, fq, fk, v, c, state)
        total = resize(total.flatten(2, 3), S)
    return divide(total[..., :-1], total[..., -1:], least)[:, :, S - T :], state


def mix_documents(fq: Tensor, fk: Tensor, v: Tensor, documents: Documents, causal: bool) -> Tensor:
    """Mix values within each document of a row, in chunks that hold tokens of one document.

    Args:
        fq: features of the queries (1, H, N, M).
        fk: features of the keys (1, H, N, M).
        v: values (1, H, N, E).
        documents: bounds of the documents.
        causal: whether keys after the query are excluded.
    """
    # Chunks no longer than the mean document at most double the number of places.
    chunk = max(1, min(CHUNK, fq.shape[2] // len(documents.lengths)))
    slots = documents.slots(chunk, fq.device)
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    fq, fk, v = (_chunked(slots.scatter(x), chunk) for x in (fq, fk, v))
    document = slots.document[::chunk] - 1
    sums = fk.mT @ v
    if causal:
        total = (fq @ fk.mT).tril() @ v + fq @ _sums_before(sums, documents, chunk)
    else:
        shape = (*sums.shape[:2], len(documents.lengths), *sums.shape[3:])
        summary = sums.new_zeros(shape).index_add(2, document, sums)
        total = fq @ summary.index_select(2, document)
    return slots.gather(divide(total[..., :-1], total[..., -1:], None).flatten(2, 3))


def _sums_before(sums: Tensor, documents: Documents, chunk: int) -> Tensor:
    """Return the sum of the earlier chunks of its document for each chunk (1, H, chunks, M, E+1).

    Step j adds chunk j of every document that has one, so that no number of another document is
    involved.
    """
    counts = [-(-length // chunk) for length in documents.lengths]
    first = [0, *itertools.accumulate(counts)]
    order = sorted(range(len(counts)), key=lambda i: -counts[i])
    running = torch.zeros_like(sums[:, :, :1]).expand(-1, -1, len(counts), -1, -1)
    before, places = [], []
    for step in range(max(counts)):
        alive = [i for i in order if counts[i] > step]
        index = torch.tensor([first[i] + step for i in alive], device=sums.device)
        running = running[:, :, : len(alive)]
        before.append(running)
        places.append(index)
        running = running + sums.index_select(2, index)
    return torch.cat(before, 2).index_select(2, torch.cat(places).argsort())


def causal_mix_exponential(
    eq: Tensor, ek: Tensor, v: Tensor, state: State | None = None
) -> tuple[Tensor, State]:
    """Mix values causally, with features given by their logarithms, which may be of any size.

    out_t = sum_s a_ts v_s / sum_s a_ts,   a_ts = sum_m exp(eq_tm + ek_sm),   s <= t

    exp(eq) and exp(ek) alone would underflow: a row is small in the features that it needs if no
    early key has its large ones. Every product is therefore taken relative to the largest visible
    key of each feature: of all earlier chunks, or of one half of a part of the chunk.

    Args:
        eq: exponents of the queries (B, H, T, M); the last query sees all keys.
        ek: exponents of the keys (B, H, S, M), -inf at masked keys.
        v: values (B, H, S, E).
        state: state after earlier keys, or None.

    Returns:
        The mixed values (B, H, T, E), and the state after all keys.
    """
    T, S = eq.shape[-2], ek.shape[-2]
    chunk = chunk_of(CHUNK, S)
    eq = _chunked(F.pad(eq, (0, 0, S - T, 0)), chunk)
    ek, v = _chunked(ek, chunk, -torch.inf), _chunked(v, chunk)
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    state = state or _empty_state(ek, v, (*ek.shape[:2], ek.shape[-1]))
    near, level = _pair_sums(eq, ek)
    highest = ek.detach().amax(-2).cummax(2).values  # at the end of a chunk, B H chunks M
    highest = torch.maximum(highest, state.level[:, :, None])
    entered = torch.cat([state.level[:, :, None], highest[:, :, :-1]], dim=2)
    last = finite_level(highest)
    summary = (ek - last[..., None, :]).exp().mT @ v
    states, running = scan(summary, (entered - last).exp()[..., None], state.summary)
    carried, before = _relative(eq + entered[..., None, :])
    top = finite_level(torch.maximum(level, before))
    total = (near @ v) * (level - top).exp() + (carried @ states) * (before - top).exp()
    out = divide(total[..., :-1], total[..., -1:], None)
    return out.flatten(2, 3)[:, :, S - T : S], State(running, highest[:, :, -1].clone())


def _pair_sums(eq: Tensor, ek: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums over features of exp(eq_t + ek_s) for s <= t, relative to a level per row.

    Two halves are computed alike; queries of the second see keys of the first through one product.

    Args:
        eq: exponents of queries (..., n, M), n a power of two.
        ek: exponents of as many keys.

    Returns:
        sums (..., n, n), zero for s > t, and their levels (..., n, 1), -inf without keys.
    """
    n = eq.shape[-2]
    if n == 1:
        both, level = _relative(eq + ek)
        return both.sum(-1, keepdim=True), level
    eq, ek = (x.unflatten(-2, (2, -1)) for x in (eq, ek))
    sums, levels = (x.unbind(-3) for x in _pair_sums(eq, ek))
    q, k = eq.unbind(-3)[1], ek.unbind(-3)[0]
    highest = k.detach().amax(-2, keepdim=True)
    product, level = _relative(q + highest)
    product = product @ (k - finite_level(highest)).exp().mT
    larger = torch.maximum(level, levels[1])
    top = finite_level(larger)
    below = [product * (level - top).exp(), sums[1] * (levels[1] - top).exp()]
    rows = [F.pad(sums[0], (0, n // 2)), torch.cat(below, -1)]
    return torch.cat(rows, -2), torch.cat([levels[0], larger], -2)


def _relative(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(exponents) relative to the largest of a row, and its logarithm (..., 1)."""
    # Levels cancel in the ratio of sums, so they need no gradient.
    level = exponents.detach().amax(-1, keepdim=True)
    return (exponents - finite_level(level)).exp(), level


def finite_level(highest: Tensor) -> Tensor:
    """Return the offset of logarithms with this maximum: 0 where it is -inf."""
    return torch.where(highest.isfinite(), highest, 0.0)


def _empty_state(fk: Tensor, v: Tensor, levels: tuple[int, ...]) -> State:
    """Return the state before the first key, for chunked features and values."""
    summary = v.new_zeros(*v.shape[:2], fk.shape[-1], v.shape[-1])
    return State(summary, v.new_full(levels, -torch.inf))


def _chunked(x: Tensor, chunk: int, fill: float = 0.0) -> Tensor:
    """Split (B, H, S, D) into (B, H, chunks, chunk, D), padded at the end."""
    return split_blocks(x, chunk, fill=fill)


def _weighted(scores, fq, fk, v, c: Tensor, state: State) -> tuple[Tensor, State]:
    """Compute totals with key weights exp(c), relative to the largest weight visible per row."""
    chunk = c.shape[-1]
    highest = c.detach().flatten(2).cummax(-1).values.view_as(c)  # prefix maximum, B H chunks chunk
    highest = torch.maximum(highest, state.level[..., None, None])
    level = finite_level(highest)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=c.device).triu(1)
    gain = (c[..., None, :] - level[..., None]).masked_fill(later, -torch.inf).exp()
    last = level[..., -1]  # level of the summary at the end of a chunk
    # Level at the start of a chunk: -inf (not 0) before the first key.
    entered = torch.cat([state.level[..., None], highest[..., :-1, -1]], dim=-1)
    summary = (fk * (c - last[..., None]).exp()[..., None]).mT @ v
    states, running = scan(summary, (entered - last).exp()[..., None, None], state.summary)
    carried = (entered[..., None] - level).exp()[..., None]
    total = (scores * gain) @ v + (fq @ states) * carried
    return total, State(running, highest[..., -1, -1].clone())
