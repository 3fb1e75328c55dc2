"""Differential attention: the formula, DiffLlama's code, rotary positions, cancelled weights."""

import math

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_equals_reference,
    assert_near,
    check_contract,
    full_and_causal,
    qkv,
    weights_of,
)
from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

from longspan import build
from longspan.attention.value_norms import skip_value_norms
from longspan.models.positions import apply_rotary


def differential(causal=False, heads=HEADS, head_dim=HEAD_DIM, **options):
    return build("differential", causal=causal, heads=heads, head_dim=head_dim, **options).double()


@full_and_causal
@pytest.mark.parametrize("options", [{"output_norm": False}, {"layer": 5}], ids=str)
def test_options_keep_the_contract(causal, options):
    check_contract(differential(causal, **options))


@full_and_causal
def test_weights_are_the_difference_of_two_softmaxes(causal):
    attention, (q, k, _) = differential(causal, layer=2), qkv(20)
    later = torch.ones(20, 20, dtype=torch.bool).triu(1) & causal
    a, b = (
        (q[..., i::2] @ k[..., i::2].mT / 2).masked_fill(later, -torch.inf).softmax(-1)
        for i in (0, 1)
    )
    (u1, w1), (u2, w2) = attention.lambda_vectors
    factor = (u1 @ w1).exp() - (u2 @ w2).exp() + 0.8 - 0.6 * math.exp(-0.6)
    with skip_value_norms(attention):
        assert_near(weights_of(attention, q, k), a - factor * b, "weights")


def test_lambda_begins_near_its_initial_value_of_the_layer():
    torch.manual_seed(0)
    for layer, expected in ((0, 0.2), (1, 0.3555), (24, 0.7996)):
        attention = differential(layer=layer, head_dim=128)
        assert attention.lambda_init == pytest.approx(expected, abs=1e-4)
        (u1, w1), (u2, w2) = attention.lambda_vectors
        assert abs((u1 @ w1).exp() - (u2 @ w2).exp()) < 0.3


def test_rows_of_each_head_have_the_same_norm():
    attention, inputs = differential(layer=1), qkv(30)
    root = attention(*inputs).square().mean(-1).sqrt()
    assert_near(root, torch.full_like(root, 1 - attention.lambda_init), "root of mean square", 1e-3)


@pytest.mark.parametrize("layer", [0, 3])
def test_equals_diffllama_with_copied_weights(layer):
    """A head here is a pair of heads there: i and i + H / 2, with the values of both."""
    torch.manual_seed(layer)
    B, T, heads, groups, d = 2, 37, 8, 4, 6
    config = DiffLlamaConfig(
        hidden_size=heads * d, num_attention_heads=heads, num_key_value_heads=groups
    )
    config._attn_implementation = "eager"
    module = DiffLlamaAttention(config, layer).double()
    module.o_proj = torch.nn.Identity()
    states = torch.randn(B, T, heads * d, dtype=torch.float64)
    positions = (torch.ones(B, T, d).double(), torch.zeros(B, T, d).double())
    mask = torch.full((T, T), -torch.inf).triu(1).double()[None, None]
    expected = module(states, positions, mask)[0]

    def paired(projection, interleaved):
        x = projection(states).unflatten(-1, (-1, d)).transpose(1, 2)
        first, second = x.chunk(2, dim=1)
        return (
            torch.stack([first, second], -1).flatten(3)
            if interleaved
            else torch.cat([first, second], 3)
        )

    attention = differential(True, heads=heads // 2, head_dim=2 * d, layer=layer)
    with torch.no_grad():
        vectors = [getattr(module, f"lambda_{x}") for x in ("q1", "k1", "q2", "k2")]
        attention.lambda_vectors.copy_(torch.stack(vectors).view(2, 2, d))
    q, k = (paired(x, True) for x in (module.q_proj, module.k_proj))
    found = attention(q, k, paired(module.v_proj, False))
    assert_near(
        found.transpose(1, 2).flatten(2), expected, "output", 2e-6
    )  # its softmax is in float32


def test_rotary_positions_count_through_distances():
    """The halves are turned by themselves, so that equal shifts of all positions change nothing."""
    attention, (q, k, v), angles = differential(True), qkv(20), torch.arange(60.0)[:, None].double()
    angles = angles * 10_000 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)).double()
    rotary = torch.stack([angles.cos(), angles.sin()], 1)[None]
    outs = [
        attention(*(apply_rotary(x, rotary[:, start : start + 20]) for x in (q, k)), v)
        for start in (0, 40)
    ]
    assert_near(*outs, "output")
    assert not torch.allclose(outs[0], attention(q, k, v), atol=1e-3)


@full_and_causal
def test_odd_head_dimension_gives_the_first_softmax_one_feature_more(causal):
    assert_equals_reference(differential(causal, head_dim=7), qkv(20, D=7), "D=7")
    attention, (q, k, _) = differential(head_dim=7), qkv(20, D=7)
    a, b = ((q[..., i::2] @ k[..., i::2].mT / 3.5**0.5).softmax(-1) for i in (0, 1))
    (u1, w1), (u2, w2) = attention.lambda_vectors
    with skip_value_norms(attention):
        w = weights_of(attention, q, k)
    assert_near(w, a - ((u1 @ w1).exp() - (u2 @ w2).exp() + 0.2) * b, "weights")
