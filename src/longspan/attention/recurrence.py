"""Recurrence with decays and step sizes of the caller, for mechanisms that do not exist yet."""

from typing import Any

import torch
from torch import Tensor

from longspan.attention.dispatch import without_autocast
from longspan.attention.masking import zero_masked
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.recurrence import mix, mix_both_ways
from longspan.attention.refusals import mask_refusals, tensors_refusals
from longspan.errors import InputError
from longspan.shapes import Bool, Float


def recurrence(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H T D"],
    v: Float[Tensor, "B H T E"],
    log_decay: Float[Tensor, "B H T d"] | None = None,
    beta: Float[Tensor, "B H T"] | None = None,
    *,
    delta: bool = False,
    causal: bool = True,
    mask: Bool[Tensor, "B T"] | None = None,
    state: Float[Tensor, "B H D E"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H D E"] | None]:
    """Run S_t = D_t S_{t-1} + beta_t k_t (v_t - D_t S_{t-1}^T k_t)^T, o_t = S_t^T q_t, in chunks.

    D_t = Diag(exp g_t). Without the delta rule v_t alone is written. Queries are not scaled, rows
    are not normalized. Time grows with T, and products are in at least float32.

    Args:
        q: queries.
        k: keys; with the delta rule of length one, or shorter.
        v: values.
        log_decay: g, at most 0: one for each head (d = 1) or channel (d = D); None: no decay.
        beta: step sizes; None: ones.
        delta: whether a key first removes what the state holds for it.
        causal: whether keys after the query are excluded; False: the sum of both directions, in
            which a token itself counts once without the delta rule.
        mask: True at real tokens; others write, remove and decay nothing, and their rows are zero.
        state: S after earlier tokens, with causal=True; None: zeros.
        chunk: tokens that are compared directly, a power of two; None: 32 or 64, what takes less
            time.

    Returns:
        Outputs in the dtype of v, and the state after the last token; None with causal=False.

    Raises:
        InputError: shapes, dtypes or devices do not fit, a decay is above 0 or NaN, or a size is
            out of range; the message lists every reason.
    """
    gates = {"log_decay": log_decay, "beta": beta, "state": state}
    reasons = tensors_refusals(q, k, v) or _refusals(q, k, v, gates, chunk)
    reasons += mask_refusals("mask", mask, (len(q), q.shape[2]), q.device)
    if state is not None and not causal:
        reasons.append("state requires causal=True: the other direction has no earlier tokens")
    if reasons:
        raise InputError(f"recurrence does not support these inputs: {'; '.join(reasons)}")
    if mask is not None:
        q, k, v = (zero_masked(x, mask) for x in (q, k, v))
        log_decay = None if log_decay is None else zero_masked(log_decay, mask)
        beta = None if beta is None else zero_masked(beta[..., None], mask)[..., 0]
    _check_sign(log_decay)
    q, k, wide = (at_least_float32(x) for x in (q, k, v))
    log_decay, beta, state = (
        None if x is None else at_least_float32(x) for x in (log_decay, beta, state)
    )
    with without_autocast(q.device):
        if not causal:
            out = mix_both_ways(q, k, wide, log_decay, beta, delta=delta, chunk=chunk)
            return out.to(v.dtype), None
        out, state = mix(q, k, wide, log_decay, beta, delta=delta, state=state, chunk=chunk)
        return out.to(v.dtype), state


def _check_sign(log_decay: Tensor | None) -> None:
    """Raise InputError if a decay is above 0 or NaN; traced calls read no numbers."""
    if log_decay is None or torch.compiler.is_compiling() or bool((log_decay <= 0).all()):
        return
    largest = f"{float(log_decay.max()):.4g}"
    raise InputError(f"log_decay must be at most 0, so that nothing grows; got {largest}")


def _refusals(
    q: Tensor, k: Tensor, v: Tensor, gates: dict[str, Tensor | None], chunk: Any
) -> list[str]:
    """Return the reasons why decays, step sizes, state and chunk do not fit the queries."""
    (B, H, T, D), E, reasons = q.shape, v.shape[3], []
    if q.shape != k.shape:
        reasons.append(f"q and k must have one shape, got {tuple(q.shape)} and {tuple(k.shape)}")
    shapes: dict[str, list[tuple[int, ...]]] = {
        "log_decay": [(B, H, T, 1), (B, H, T, D)],
        "beta": [(B, H, T)],
        "state": [(B, H, D, E)],
    }
    for name, x in gates.items():
        if x is None:
            continue
        if tuple(x.shape) not in shapes[name]:
            expected = " or ".join(str(shape) for shape in shapes[name])
            reasons.append(f"{name} must be {expected}, got {tuple(x.shape)}")
        elif not x.is_floating_point() or x.device != q.device:
            place = f"{x.dtype} on {x.device}"
            reasons.append(f"{name} must be floating and on {q.device}, got {place}")
    if chunk is not None and (type(chunk) is not int or chunk < 1 or chunk & (chunk - 1)):
        reasons.append(f"chunk must be a power of two, got {chunk!r:.20}")
    return reasons
