"""Attention through feature maps: weights of the form phi(q) . phi(k).

    out_t = sum_s a_ts v_s / sum_s a_ts,   a_ts = (phi(q_t) . phi(k_s)) exp(c_s)

`c` is a logarithmic weight per key (zero for most maps) that keeps exponential features in range.
Sums and divisions run in float32 or wider. A row is zero if its weights sum to zero, to less than
the smallest safe divisor, or to less than the caller's threshold.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # queries and keys compared directly in the causal form


def _divided(total: Tensor, weight: Tensor, least: float | None) -> Tensor:
    if least is None:
        # Below this the quotient may be finite, but its gradient overflows.
        least = torch.finfo(weight.dtype).tiny ** 0.8
    some = weight.abs() > least
    return (total / weight.where(some, 1.0)).where(some, 0.0)


def mix(fq: Tensor, fk: Tensor, v: Tensor, least: float | None = None) -> Tensor:
    """Mix values bidirectionally, through one M x E summary of all keys.

    Features are (B, H, T, M) and (B, H, S, M), values (B, H, S, E).
    """
    return _divided(fq @ (fk.mT @ v), fq @ fk.sum(-2)[..., None], least)


class State(NamedTuple):
    """Running summary of the keys seen so far, and the level that it is relative to."""

    summary: Tensor  # B H M E+1; the last column sums the features (the normalizer)
    level: Tensor  # B H, -inf before the first key; unused without log weights


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
    """Split (B, H, S, D) into (B, H, chunks, chunk, D), padded at the end."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % chunk), value=fill).unflatten(-2, (-1, chunk))


def _weighted(scores, fq, fk, v, c: Tensor, state: State) -> tuple[Tensor, State]:
    """Compute totals with key weights exp(c), relative to the largest weight visible per row."""
    chunk = c.shape[-1]
    highest = c.detach().flatten(2).cummax(-1).values.view_as(c)  # prefix maximum, B H chunks chunk
    highest = torch.maximum(highest, state.level[..., None, None])
    level = torch.where(highest.isfinite(), highest, torch.zeros_like(highest))
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=c.device).triu(1)
    gain = (c[..., None, :] - level[..., None]).masked_fill(later, -torch.inf).exp()
    last = level[..., -1]  # level of the summary at the end of a chunk
    # Level at the start of a chunk: -inf (not 0) before the first key.
    entered = torch.cat([state.level[..., None], highest[..., :-1, -1]], dim=-1)
    summary = (fk * (c - last[..., None]).exp()[..., None]).mT @ v
    states, running = [], state.summary
    for n in range(c.shape[2]):
        # The running summary is rescaled to the level of chunk n.
        states.append(running)
        fade = (entered[:, :, n] - last[:, :, n]).exp()
        running = running * fade[..., None, None] + summary[:, :, n]
    carried = (entered[..., None] - level).exp()[..., None]
    total = (scores * gain) @ v + (fq @ torch.stack(states, dim=2)) * carried
    return total, State(running, highest[..., -1, -1])
