"""Based: softmax within the window, its Taylor series beyond it, one sum of weights."""

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    assert_equals_reference,
    assert_near,
    build_small,
    full_and_causal,
    gradients,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)


@full_and_causal
@pytest.mark.parametrize("options", [{"window": 0}, {"window": 64}, {"window": 90}], ids=str)
@pytest.mark.parametrize("feature_dim", [None, 3])
def test_blocks_of_long_inputs_equal_the_reference(options, feature_dim, causal):
    """Rows of 300 tokens have distant blocks on either side."""
    attention = build_small("based", causal, feature_dim=feature_dim, **options)
    for parameter in attention.parameters():
        parameter.data += torch.randn_like(parameter) / 2
    for kind, mask in key_masks(300, B=2).items():
        assert_equals_reference(attention, qkv(300, B=2), kind, mask=mask)


@full_and_causal
def test_window_of_all_tokens_is_softmax_attention(causal):
    inputs = qkv(40)
    attention = build_small("based", causal, window=39)
    assert attention.is_dense(40)
    assert not attention.is_dense(41)
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    assert_near(attention(*inputs), expected, "output")


@full_and_causal
def test_weights_are_exponentials_within_the_window_and_their_series_beyond(causal):
    attention, (q, k, _) = build_small("based", causal, feature_dim=None), qkv(150)
    scores = q @ k.mT / HEAD_DIM**0.5
    distance = torch.arange(150)[:, None] - torch.arange(150)
    expected = torch.where(distance.abs() <= 5, scores.exp(), 1 + scores + scores**2 / 2)
    if causal:
        expected = expected * (distance >= 0)
    expected = expected / expected.sum(-1, keepdim=True)
    assert_near(weights_of(attention, q, k), expected, "weights")


@full_and_causal
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_any_size_keep_their_rows(causal, sign):
    """Near scores in the thousands of either sign, whose exponentials float32 does not hold."""
    q, k, v = qkv(150, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in (100 * q.abs(), sign * 100 * k.abs(), v)]
    attention = build_small("based", causal).float()
    out = attention(*inputs)
    assert out.isfinite().all()
    assert out.norm(dim=-1).all()
    assert all(x.isfinite().all() for x in gradients(out, inputs, attention))
    attention.backend = "reference"
    expected = attention.double()(*(x.double() for x in inputs))
    assert_near(out.double(), expected, "output", 1e-3)


def test_state_is_the_window_and_one_summary():
    attention, inputs = build_small("based", True, window=8), qkv(200)
    out, cache = run_steps(attention, inputs, (130, 1, 1, 5, 1, 62))
    assert_near(out, attention(*inputs), "output")
    features = 1 + 3 + 6
    shapes = {n: tuple(x.shape[1:]) for n, x in cache.state.items()}
    assert shapes == {
        "k": (HEADS, 8, HEAD_DIM),
        "v": (HEADS, 8, HEAD_DIM),
        "summary": (HEADS, features, HEAD_DIM + 1),
    }
