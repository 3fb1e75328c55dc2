"""Attention through feature maps, shared by the mechanisms whose weights are phi(q) . phi(k).

    out_t = sum_s a_ts v_s / sum_s a_ts,   a_ts = (phi(q_t) . phi(k_s)) exp(c_s)

`c` is a logarithmic weight per key (zero for most maps): it keeps exponential features in range.
Sums and divisions run in float32 at least, whatever the inputs; a row whose weights sum to zero
(or to less than can be divided by, or than is asked for) gives zero.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # queries that look at each other directly in the causal form


def _divided(total: Tensor, weight: Tensor, least: float | None) -> Tensor:
    if least is None:
        # Below this the quotient may pass, but its gradient leaves the range.
        least = torch.finfo(weight.dtype).tiny ** 0.8
    some = weight.abs() > least
    return (total / weight.where(some, 1.0)).where(some, 0.0)


def mix(fq: Tensor, fk: Tensor, v: Tensor, least: float | None = None) -> Tensor:
    """Bidirectional: one D x E summary of all keys; features (B, H, T, M), values (B, H, S, E)."""
    return _divided(fq @ (fk.mT @ v), fq @ fk.sum(-2)[..., None], least)


class State(NamedTuple):
    """All that the keys so far leave behind: their summary, and the level it is relative to."""

    summary: Tensor  # B H M E+1; the last column is the sum of the features: the normaliser
    level: Tensor  # B H, -inf before the first key; unused without log weights


def causal_mix(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    log_weight: Tensor | None = None,
    state: State | None = None,
    least: float | None = None,
) -> tuple[Tensor, State]:
    """Causal, exact, in chunks: T x CHUNK products and one M x E summary per chunk.

    Args:
        fq: features of the queries (B, H, T, M); the last query sees all keys.
        fk: features of the keys (B, H, S, M), zero at masked keys.
        v: values (B, H, S, E).
        log_weight: c (B, H, S), -inf at masked keys, or None for zeros. Nothing computed for a
            query depends on the weight of a later key, not even a rescaling.
        state: what earlier keys left, or None.
        least: rows whose weights sum to no more than this, either way and relative to the largest
            exp(c_s) that they see, are zero.

    Returns:
        The mixed values (B, H, T, E), and what all keys leave.
    """
    T, S = fq.shape[-2], fk.shape[-2]
    chunk = min(CHUNK, S)
    fq = F.pad(fq, (0, 0, S - T, 0))
    fq, fk, v = (_chunked(x, chunk) for x in (fq, fk, v))
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    if state is None:
        summary = v.new_zeros(*v.shape[:2], fk.shape[-1], v.shape[-1])
        state = State(summary, v.new_full(v.shape[:2], -torch.inf))
    scores = fq @ fk.mT
    if log_weight is None:
        after = (fk.mT @ v).cumsum(2) + state.summary[:, :, None]
        before = torch.cat([state.summary[:, :, None], after[:, :, :-1]], dim=2)
        total, state = scores.tril() @ v + fq @ before, State(after[:, :, -1], state.level)
    else:
        c = _chunked(log_weight[..., None], chunk, -torch.inf)[..., 0]
        total, state = _weighted(scores, fq, fk, v, c, state)
    out = _divided(total[..., :-1], total[..., -1:], least)
    return out.flatten(2, 3)[:, :, S - T : S], state


def _chunked(x: Tensor, chunk: int, fill: float = 0.0) -> Tensor:
    """(B, H, S, D) -> (B, H, chunks, chunk, D), padded at the end."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % chunk), value=fill).unflatten(-2, (-1, chunk))


def _weighted(scores, fq, fk, v, c: Tensor, state: State) -> tuple[Tensor, State]:
    """Totals with key weights exp(c), each row relative to the largest weight it may see."""
    chunk = c.shape[-1]
    highest = c.detach().flatten(2).cummax(-1).values.view_as(c)  # prefix maximum, B H chunks chunk
    highest = torch.maximum(highest, state.level[..., None, None])
    level = torch.where(highest.isfinite(), highest, torch.zeros_like(highest))
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=c.device).triu(1)
    gain = (c[..., None, :] - level[..., None]).masked_fill(later, -torch.inf).exp()
    last = level[..., -1]  # what the summary up to the end of a chunk is relative to
    # Entering a chunk: the level so far, and -inf (not 0) while no key has been seen.
    entered = torch.cat([state.level[..., None], highest[..., :-1, -1]], dim=-1)
    summary = (fk * (c - last[..., None]).exp()[..., None]).mT @ v
    states, running = [], state.summary
    for n in range(c.shape[2]):
        # On its way through chunk n the running summary is brought to that chunk's level.
        states.append(running)
        fade = (entered[:, :, n] - last[:, :, n]).exp()
        running = running * fade[..., None, None] + summary[:, :, n]
    carried = (entered[..., None] - level).exp()[..., None]
    total = (scores * gain) @ v + (fq @ torch.stack(states, dim=2)) * carried
    return total, State(running, highest[..., -1, -1])
