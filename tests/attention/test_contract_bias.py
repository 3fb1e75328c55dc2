"""Bias of the scores: equal to the reference and to torch, or refused."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    build_small,
    every_mechanism,
    full_and_causal,
    global_masks,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_or_skip,
    run_steps,
    softmax_deviation,
    steps_of,
    weights_of,
)

from longspan.attention import build
from longspan.errors import InputError

T = 33
SHAPES = ((1, 1), (3, 1), (1, HEADS), (3, HEADS))


def draw_bias(B=3, H=HEADS, rows=T, columns=T, hidden=0.0):
    """Draw a bias whose share `hidden` is -inf."""
    g = torch.Generator().manual_seed(B + 10 * H)
    bias = 2 * torch.randn(B, H, rows, columns, generator=g, dtype=torch.float64)
    return bias.masked_fill(torch.rand(bias.shape, generator=g) < hidden, -torch.inf)


def build_with_bias(name, causal, backend):
    attention = build_small(name, causal, backend)
    if not attention.traits.bias:
        pytest.skip("no bias (trait)")
    return attention


@every_mechanism
@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_bias_equals_the_reference(name, causal, backend, hidden):
    attention = build_with_bias(name, causal, backend)
    for shape in SHAPES:
        for mask in (None, key_masks(T)["holes"]):
            for global_mask in global_masks(name, T):
                masks, found = {"mask": mask, "global_mask": global_mask}, []
                for module in (attention, reference_copy(attention)):
                    bias = draw_bias(*shape, hidden=hidden).requires_grad_()
                    inputs = [*(x.requires_grad_() for x in qkv(T)), bias]
                    out = run_or_skip(module, *inputs[:3], **masks, bias=bias)
                    found.append((out, *gradients(out, inputs, module)))
                assert found[0][4].any(), "no gradient of the bias"
                assert_near(*found, f"bias of shape {shape}")


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lowest_finite_bias_reveals_no_hidden_pair(name, causal, backend, dtype):
    """Use the additive masks of transformers, whose hidden pairs have the lowest finite number."""
    attention = build_with_bias(name, causal, backend)
    q, k, v = (x.to(dtype) for x in qkv(T))
    for mask in (None, key_masks(T)["holes"]):
        bias = torch.zeros(1, 1, T, T, dtype=dtype)
        bias[..., :2] = torch.finfo(dtype).min
        out = run_or_skip(attention.to(dtype), q, k, v, mask, bias=bias)
        expected = reference_copy(attention)(q, k, v, mask, bias=bias)
        assert_near(out, expected, "output", 1e-10 if dtype == torch.float64 else 1e-5)


@every_mechanism
def test_bias_of_a_hidden_key_has_no_influence(name, causal, backend):
    attention = build_with_bias(name, causal, backend)
    mask, bias = key_masks(T)["ragged"], draw_bias()
    hidden = ~mask[:, None, None, :].expand_as(bias)
    expected = run_or_skip(attention, *qkv(T), mask, bias=bias)
    out = attention(*qkv(T), mask, bias=bias.masked_fill(hidden, torch.nan))
    assert_near(out, expected, "output")


@every_mechanism
def test_log_weights_are_scores_plus_bias(name, causal, backend):
    attention, (q, k, _) = build_with_bias(name, causal, backend), qkv(T)
    for scale in (None, 0.1) if attention.traits.scale else (None,):
        bias, factor = draw_bias(), HEAD_DIM**-0.5 if scale is None else scale
        weights = weights_of(attention, q, k, bias=bias, scale=scale)
        assert softmax_deviation(weights, factor * q @ k.mT + bias) < 1e-8
        # -inf hides its pairs; a row without pairs is zero.
        bias[:, :, 5] = bias[0, 0, 7, 3] = -torch.inf
        weights = weights_of(attention, q, k, bias=bias, scale=scale)
        assert not weights[:, :, 5].any()
        assert weights[0, 0, 7, 3] == 0
        assert weights.isfinite().all()


@every_mechanism
def test_steps_with_bias_equal_forward(name, causal, backend):
    attention, inputs, bias = build_with_bias(name, causal, backend), qkv(T, H=HEADS), draw_bias()
    if not causal:
        pytest.skip("step() requires causal=True")
    mask = key_masks(T)["holes"]
    steps = run_steps(
        attention, inputs, steps_of(T, 8), mask, bias=lambda rows: bias[:, :, rows, : rows.stop]
    )
    assert_near(steps[0], attention(*inputs, mask, bias=bias), "output")


@full_and_causal
@pytest.mark.parametrize("G", [HEADS, 1])
def test_full_attention_with_bias_equals_torch(causal, G):
    q, *_ = qkv(20)
    _, k, v = qkv(T, H=G)
    bias = draw_bias(rows=20)
    out = build("full", causal=causal)(q, k, v, bias=bias)
    allowed = torch.ones(20, T, dtype=torch.bool).tril(T - 20) if causal else torch.ones(20, T) > 0
    masked = bias.masked_fill(~allowed, -torch.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=masked, enable_gqa=True)
    assert_near(out, expected, "output")


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (draw_bias(2), r"bias must have shape \(3 or 1, 3 or 1, 33, 33\), got \(2, 3, 33, 33\)"),
        (draw_bias()[0], r"got \(3, 33, 33\)"),
        (draw_bias(columns=T - 1), r"got \(3, 3, 33, 32\)"),
        (draw_bias().float(), "bias must be torch.float64 on cpu, got torch.float32 on cpu"),
        (draw_bias().to("meta"), "got torch.float64 on meta"),
        (1.0, "bias must be a tensor, got float"),
    ],
)
def test_other_tensors_are_rejected(bias, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=message):
        build("local")(*qkv(T), bias=bias)
