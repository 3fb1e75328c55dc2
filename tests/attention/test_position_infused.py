"""Positions in queries and keys alone, counted anew in each segment."""

import pytest
import torch
import torch.nn.functional as F
from contract import HEAD_DIM, HEADS, assert_near, key_masks, obeys, qkv, slow_twin
from test_transformer_xl import sinusoid

from longspan import build
from longspan.attention import LayerInput
from longspan.errors import InputError

both_orders = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
WIDTH = HEADS * HEAD_DIM


def infused(causal=True, **options):
    return build("position_infused", causal=causal, **options)


def table(T, width):
    return torch.tensor([sinusoid(p, width) for p in range(T)], dtype=torch.float64)


def maps(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(3, WIDTH, WIDTH, generator=g, dtype=torch.float64) / WIDTH**0.5


def states(T, B=3, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, WIDTH, generator=g, dtype=torch.float64)


def heads(x):
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(-3, -2)


def projected(x):
    """q, k, v of x and the layer input."""
    wq, wk, wv = maps()
    layer_input = LayerInput(x, lambda p: heads(p @ wq), lambda p: heads(p @ wk))
    return heads(x @ wq), heads(x @ wk), heads(x @ wv), layer_input


@both_orders
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
def test_it_obeys_the_contract_with_other_sizes(options, causal):
    obeys(infused(causal, **options), lengths=(1, 8, 33))


@both_orders
def test_it_is_attention_of_the_projected_sum_of_states_and_positions(causal):
    wq, wk, wv = maps()
    for T in (1, 9, 20):
        x = states(T)
        q, k, v, layer_input = projected(x)
        found = infused(causal, segment=30)(q, k, v, layer_input=layer_input)
        placed = x + table(T, WIDTH)
        inputs = heads(placed @ wq), heads(placed @ wk), heads(x @ wv)
        expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
        assert_near(found, expected, f"T={T}")


@both_orders
def test_a_source_changes_both_bodies_alike(causal):
    attention, x = infused(causal, segment=6, memory=7), states(33)
    *inputs, layer_input = projected(x)
    plain = attention(*inputs)
    for mask in key_masks(33).values():
        found = attention(*inputs, mask, layer_input=layer_input)
        assert_near(
            found,
            slow_twin(attention)(*inputs, mask, layer_input=layer_input),
            "with a layer input",
        )
        assert mask is not None or not torch.allclose(found, plain, atol=1e-2)


def test_steps_with_a_source_equal_the_whole():
    attention, x = infused(segment=6, memory=7), states(23)
    *inputs, layer_input = projected(x)
    outs, cache = [], None
    for rows in torch.arange(23).split([1, 4, 3, 11, 2, 1, 1]):
        part = LayerInput(x[:, rows], layer_input.query, layer_input.key)
        new = (y[:, :, rows] for y in inputs)
        out, cache = attention.step(*new, cache, layer_input=part)
        outs.append(out)
    assert_near(torch.cat(outs, 2), attention(*inputs, layer_input=layer_input), "steps")


@both_orders
def test_the_cache_and_a_segment_are_one_pass_of_new_numbers(causal):
    """The first segment has no cache: it counts from 0; then as many keys as there are."""
    n, memory, inputs = 7, 9, qkv(28)
    out = infused(causal, segment=n, memory=memory)(*inputs)
    whole = infused(True, segment=100)
    for start in range(0, 28, n):
        oldest = max(0, start - memory)
        q, k, v = (x[:, :, oldest : start + n] for x in inputs)
        if causal:
            expected = whole(q, k, v)
        else:
            p = table(start + n - oldest, HEAD_DIM)
            expected = F.scaled_dot_product_attention(q + p, k + p, v)
        found = out[:, :, start : start + n]
        assert_near(found, expected[:, :, start - oldest :], f"segment at {start}")


@both_orders
def test_values_carry_no_position(causal):
    q, k, v = qkv(40)
    attention = infused(causal, segment=8, memory=8)
    same = v[:, :, :1].expand_as(v)
    assert_near(attention(q, k, same), same, "equal values")
    # Positions decide alone, and the same way in each segment after the first.
    weights = attention(
        torch.zeros_like(q),
        torch.zeros_like(k),
        torch.eye(40, dtype=q.dtype).expand(3, HEADS, -1, -1),
    )
    assert_near(weights[:, :, 16:24, 8:24], weights[:, :, 32:40, 24:40], "weights")
    assert weights[0, 0, 20, 8:21].std() > 1e-3


def test_the_same_text_gives_the_same_output_in_every_segment():
    n = 6
    inputs = [x.repeat(1, 1, 5, 1) for x in qkv(n)]
    out = infused(segment=n, memory=2 * n)(*inputs)
    assert_near(out[:, :, 3 * n : 4 * n], out[:, :, 2 * n : 3 * n], "third and fourth")
    assert not torch.allclose(out[:, :, n : 2 * n], out[:, :, :n], atol=1e-3)


def test_a_cache_of_another_batch_is_refused_not_dropped():
    attention = infused(segment=4, memory=4)
    _, cache = attention.step(*qkv(6))
    with pytest.raises(InputError, match=r"the cache requires \(B, H, D, E\) = \(3, 3, 8, 8\)"):
        attention.step(*qkv(1, B=2), cache)
    with pytest.raises(InputError, match=r"layer_input.states must be .* \(3, 1\), got \(3, 2\)"):
        attention.step(*qkv(1), cache, layer_input=projected(states(2))[3])
