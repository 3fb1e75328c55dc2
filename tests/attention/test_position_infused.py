"""Position-infused attention: queries and keys carry positions, numbered in each segment."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    check_contract,
    full_and_causal,
    qkv,
    with_layer_input,
)
from test_transformer_xl import sinusoid

from longspan import build
from longspan.attention import LayerInput

WIDTH = HEADS * HEAD_DIM


def position_infused(causal=True, **options):
    return build("position_infused", causal=causal, **options)


def sinusoid_table(T, width):
    return torch.tensor([sinusoid(p, width) for p in range(T)], dtype=torch.float64)


def projection_weights(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(3, WIDTH, WIDTH, generator=g, dtype=torch.float64) / WIDTH**0.5


def states(T, B=3, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, WIDTH, generator=g, dtype=torch.float64)


def split_heads(x):
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(-3, -2)


def project(x):
    """Return q, k, v of x and the layer input."""
    wq, wk, wv = projection_weights()
    layer_input = LayerInput(x, lambda p: split_heads(p @ wq), lambda p: split_heads(p @ wk))
    return split_heads(x @ wq), split_heads(x @ wk), split_heads(x @ wv), layer_input


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [
        {"segment": 8, "memory": 0},
        {"segment": 5, "memory": 17},
        {"segment": 8, "memory": 3},
        {"segment": 9, "memory": 9, "backprop_through_memory": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("projected", [False, True])
def test_obeys_contract_with_other_sizes(options, causal, projected):
    attention, (query, key, _) = position_infused(causal, **options), projection_weights()
    if projected:
        maps = (lambda p: split_heads(p @ query), lambda p: split_heads(p @ key))
        attention = with_layer_input(attention, *maps)
    check_contract(attention, lengths=(1, 8, 33))


@full_and_causal
def test_equals_attention_of_projected_states_plus_positions(causal):
    wq, wk, wv = projection_weights()
    for T in (1, 9, 20):
        x = states(T)
        q, k, v, layer_input = project(x)
        found = position_infused(causal, segment=30)(q, k, v, layer_input=layer_input)
        with_positions = x + sinusoid_table(T, WIDTH)
        inputs = (
            split_heads(with_positions @ wq),
            split_heads(with_positions @ wk),
            split_heads(x @ wv),
        )
        expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
        assert_near(found, expected, f"T={T}")


@full_and_causal
def test_positions_restart_at_the_oldest_key_of_each_segment(causal):
    """Each segment equals one pass over its memory and itself, numbered from zero."""
    n, memory, inputs = 7, 9, qkv(28)
    out = position_infused(causal, segment=n, memory=memory)(*inputs)
    single_segment = position_infused(True, segment=100)
    for start in range(0, 28, n):
        oldest = max(0, start - memory)
        q, k, v = (x[:, :, oldest : start + n] for x in inputs)
        if causal:
            expected = single_segment(q, k, v)
        else:
            p = sinusoid_table(start + n - oldest, HEAD_DIM)
            expected = F.scaled_dot_product_attention(q + p, k + p, v)
        found = out[:, :, start : start + n]
        assert_near(found, expected[:, :, start - oldest :], f"segment at {start}")


def test_positions_of_keys_that_heads_share():
    """Multi-query keys: the layer projects positions to fewer heads than queries have."""
    x = states(20)
    q, k, v, layer_input = project(x)
    shared = dataclasses.replace(layer_input, key=lambda p: layer_input.key(p)[:1])
    attention = position_infused(False, segment=8)
    found = attention(q, k[:, :1], v[:, :1], layer_input=shared)
    alike = dataclasses.replace(
        layer_input, key=lambda p: layer_input.key(p)[:1].expand(HEADS, -1, -1)
    )
    repeated = (y[:, :1].expand(-1, HEADS, -1, -1) for y in (k, v))
    assert_near(found, attention(q, *repeated, layer_input=alike), "shared heads")
