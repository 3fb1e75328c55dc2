"""Linear attention: chunks equal the recurrence over a state; sums stay in range."""

import pytest
import torch
import torch.nn.functional as F
from contract import assert_near, full_and_causal, gradients, qkv

from longspan import build


def recurrence(q, k, v, key_mask=None):
    """Compute causal linear attention token by token; the state is two sums."""
    state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=v.dtype)
    total = torch.zeros(*k.shape[:2], k.shape[-1], dtype=v.dtype)
    rows = []
    for t in range(q.shape[2]):
        fk, fq = F.elu(k[:, :, t]) + 1, F.elu(q[:, :, t]) + 1
        if key_mask is not None:
            fk = fk * key_mask[:, t, None, None]
        state = state + fk[..., :, None] * v[:, :, t, None, :]
        total = total + fk
        weight = (fq * total).sum(-1, keepdim=True)
        rows.append((fq[..., None] * state).sum(-2) / weight.clamp(min=1e-30))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("T", [1, 63, 64, 65, 128, 200])
def test_causal_chunks_equal_recurrence(T):
    inputs = [x.requires_grad_() for x in qkv(T)]
    attention = build("linear", causal=True)
    out, expected = attention(*inputs), recurrence(*inputs)
    assert_near(out, expected, "output")
    grads = (gradients(x, inputs, attention) for x in (out, expected))
    assert_near(*grads, "gradient")


@full_and_causal
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_weights_of_a_row_sum_to_one(causal, dtype):
    q, k, v = (x.to(dtype) for x in qkv(100))
    key_mask = torch.arange(100) % 5 < torch.tensor([5, 3, 1])[:, None]
    ones = torch.ones_like(v)
    # Below -17, elu(x) + 1 rounds to zero in float32; the feature map must not.
    for shift in (0, -20, -35):
        out = build("linear", causal=causal)(q + shift, k, ones, key_mask)
        expected = ones.masked_fill(~key_mask[:, None, :, None], 0)
        assert_near(out, expected, f"queries near {shift}", 1e-5)


@full_and_causal
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_accumulates_in_float32(causal, dtype):
    """Accumulated in half precision, these sums overflow or lose keys; operands may be rounded."""
    q, k, v = qkv(5000, B=1, H=1, dtype=dtype)
    out = build("linear", causal=causal)(q, k + 20, torch.ones_like(v))
    assert_near(out, torch.ones_like(v), "output", torch.finfo(dtype).eps)


@full_and_causal
@pytest.mark.parametrize("index", [1, 2])
def test_values_that_are_not_finite_stay_visible(causal, index):
    inputs = qkv(90)
    inputs[index][0, 0, 70, 0] = torch.nan
    out = build("linear", causal=causal)(*inputs)
    assert out[0, 0, 70:].isnan().any(-1).all()
    assert out[1:].isfinite().all()


def test_sums_beyond_the_range_of_float16():
    q, k, v = (x.to(torch.float16) for x in qkv(200))
    out = build("linear")(q, k, v.abs() * 1_000)
    assert out.isfinite().all()
