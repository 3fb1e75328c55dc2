"""Log-linear attention: buckets of the paper, blocks of powers of two, states, bounds."""

import math

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    assert_equals_reference,
    assert_near,
    full_and_causal,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)

from longspan import build
from longspan.attention.mechanisms import log_linear as module


def log_linear(causal=True):
    torch.manual_seed(0)
    return build("log_linear", causal=causal, heads=HEADS, head_dim=HEAD_DIM).double()


def buckets(t):
    """Yield the level and the tokens of each bucket of token t, from the newest (section 3.1)."""
    yield 0, range(t, t + 1)
    end = t
    while end:
        size = end & -end  # the lowest bit that is set
        yield size.bit_length(), range(end - size, end)
        end -= size


def test_weights_of_a_token_are_those_of_its_buckets():
    attention, T = log_linear(), 140
    q, k, _ = qkv(T, B=1)
    states = k.transpose(1, 2).flatten(2)
    levels = F.softplus(attention.level_weights(states)).unflatten(2, (HEADS, -1))
    expected = torch.zeros(1, HEADS, T, T, dtype=torch.float64)
    for t in range(T):
        for level, tokens in buckets(t):
            rows = k[:, :, tokens.start : tokens.stop] @ q[:, :, t, :, None] / HEAD_DIM**0.5
            part = levels[:, t, :, level, None] * rows[..., 0]
            expected[:, :, t, tokens.start : tokens.stop] = part
    assert_near(weights_of(attention, q, k), expected, "weights")


@full_and_causal
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_lengths_of_any_blocks_equal_the_reference(causal, kind):
    attention = log_linear(causal)
    for T in (2, 3, 63, 65, 256, 300, 447):
        assert_equals_reference(attention, qkv(T), f"T={T}", mask=key_masks(T)[kind])


def test_steps_of_any_length_equal_forward():
    attention, inputs, mask = log_linear(), qkv(300), key_masks(300)["holes"]
    for sizes in ((300,), (1,) * 300, (5, 100, 1, 1, 130, 63), (128, 128, 44)):
        out, cache = run_steps(attention, inputs, sizes, mask)
        assert_near(out, attention(*inputs, mask), f"steps {sizes[:3]}")
        # 300 tokens are buckets of 256, 32, 8 and 4.
        some = cache.state["sums"].flatten(3).any(-1).any(0).any(0).nonzero()[:, 0].tolist()
        assert some == [2, 3, 5, 8]


@full_and_causal
def test_equal_levels_are_linear_attention_without_a_feature_map(causal):
    attention, (q, k, v) = log_linear(causal), qkv(200)
    with torch.no_grad():
        attention.level_weights.weight.zero_()
        attention.level_weights.bias.fill_(math.log(math.expm1(1.0)))
    weights = q @ k.mT / HEAD_DIM**0.5
    assert_near(attention(q, k, v), (weights.tril() if causal else weights) @ v, "output")


@full_and_causal
def test_larger_buckets_share_the_last_level(causal, monkeypatch):
    monkeypatch.setattr(module, "LEVELS", 4)  # the last one from 4 tokens on
    attention, T = log_linear(causal), 150
    q, k, v = qkv(T)
    assert_equals_reference(attention, (q, k, v), f"T={T}")
    levels = F.softplus(attention.level_weights(k.transpose(1, 2).flatten(2)))
    w = weights_of(attention, q, k)[0, 0, 149] / (q[0, 0, 149] @ k[0, 0].mT / HEAD_DIM**0.5)
    expected = torch.tensor([3] * 148 + [1, 0])
    assert_near(w, levels[0, 149, expected], "levels of the last token")
    if causal:
        for sizes in ((1,) * T, (7, 50, 93), (4, 64, 64, 18), (8, 8, 134)):
            out, cache = run_steps(attention, (q, k, v), sizes)
            assert_near(out, attention(q, k, v), f"steps {sizes[:3]}")
            assert cache.state["sums"].shape == (3, HEADS, 3, HEAD_DIM, HEAD_DIM)


def test_rows_beyond_the_range_of_float16_are_its_largest_numbers():
    attention = log_linear(False).half()
    rows = attention(*(200 * x for x in qkv(50, dtype=torch.float16)))
    assert rows.isfinite().all()
    assert rows.abs().max() == torch.finfo(torch.float16).max
