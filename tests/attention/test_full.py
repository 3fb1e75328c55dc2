"""Full attention: equals torch, with queries aligned to the end of the keys."""

import torch
import torch.nn.functional as F
from contract import assert_near, qkv

from longspan import build


def loop_attention(q, k, v, allowed):
    """Compute attention one query at a time over its allowed keys."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype)
    for b, t in torch.cartesian_prod(torch.arange(q.shape[0]), torch.arange(q.shape[2])).tolist():
        keys = allowed[b, t]
        if keys.any():
            scores = (k[b, :, keys] * q[b, :, t, None]).sum(-1) / q.shape[-1] ** 0.5
            out[b, :, t] = (scores.softmax(-1)[..., None] * v[b, :, keys]).sum(1)
    return out


def test_equals_torch_attention():
    q, k, v = qkv(30, 41)
    assert_near(build("full")(q, k, v), F.scaled_dot_product_attention(q, k, v), "no mask")
    q, k, v = qkv(30)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert_near(build("full", causal=True)(q, k, v), expected, "causal")


def test_equals_softmax_over_real_and_past_keys():
    q, k, v = qkv(9, 14)
    key_mask = torch.rand(3, 14, generator=torch.Generator().manual_seed(0)) < 0.5
    key_mask[1, :8] = False
    for causal in (False, True):
        allowed = key_mask[:, None, :].expand(3, 9, 14)
        if causal:
            allowed = allowed & (torch.arange(14) <= torch.arange(9)[:, None] + 5)
        expected = loop_attention(q, k, v, allowed)
        for backend in ("torch", "reference"):
            out = build("full", causal=causal, backend=backend)(q, k, v, key_mask=key_mask)
            assert_near(out, expected, f"{backend}, causal {causal}")
            assert not out[1, :, :3].any() or not causal
