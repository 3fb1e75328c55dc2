"""Transformer-XL: memory and relative positions; properties of all mechanisms with segments."""

import math

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    check_contract,
    full_and_causal,
    gradients,
    qkv,
    reference_copy,
    run_steps,
    weights_of,
)
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from longspan import build
from longspan.attention.ops import relative_positions
from longspan.attention.ops.relative_positions import sinusoids
from longspan.attention.relative_bias import shift_to_keys

WIDTH = HEADS * HEAD_DIM


def randomize_parameters(attention, seed=0):
    """Draw parameters large enough that each affects the output; convert to float64."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in attention.parameters():
            p.copy_(torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5)
    return attention.double()


def transformer_xl(causal=True, **options):
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM}
    return randomize_parameters(build("transformer_xl", causal=causal, **sizes, **options))


def sinusoid(distance, width):
    rates = [10000 ** (-2 * i / width) for i in range(width // 2)]
    return [math.sin(distance * w) for w in rates] + [math.cos(distance * w) for w in rates]


def relative_bias(attention, q, S, clamp=math.inf):
    """Compute the position score of each pair; the last query is at the last key."""
    T, found = q.shape[2], []
    for i in range(T):
        row = []
        for j in range(S):
            d = max(-clamp, min(clamp, i + S - T - j))
            r = attention.position @ torch.tensor(sinusoid(d, WIDTH), dtype=q.dtype)
            row.append(((q[:, :, i] + attention.position_bias) * r).sum(-1))
        found.append(torch.stack(row, -1))
    return torch.stack(found, -2) / HEAD_DIM**0.5


def biased_attention(attention, q, k, v, clamp=math.inf):
    """Compute one segment by torch attention with the relative bias."""
    scores = relative_bias(attention, q, k.shape[2], clamp)
    if attention.causal:
        T, S = scores.shape[-2:]
        future = torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)
        scores = scores.masked_fill(future, -torch.inf)
    q = q + attention.content_bias[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=scores)


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [
        {"segment": 8, "memory": 0},
        {"segment": 5, "memory": 17, "clamp": 6},
        {"segment": 8, "memory": 3, "same_length": True},
        {"segment": 4, "memory": 13, "clamp": 5, "same_length": True},  # as in evaluation
        {"segment": 1, "memory": 4, "clamp": 0},
        {"segment": 9, "memory": 9, "backprop_through_memory": True},
    ],
    ids=str,
)
def test_obeys_contract_with_other_sizes(options, causal):
    check_contract(transformer_xl(causal, **options), lengths=(1, 8, 33))


@full_and_causal
def test_one_segment_equals_full_attention_with_relative_bias(causal):
    attention = transformer_xl(causal, segment=50, memory=50)
    for T in (1, 2, 17):
        inputs = qkv(T)
        assert_near(attention(*inputs), biased_attention(attention, *inputs), f"T={T}")


@full_and_causal
def test_segment_attends_to_its_memory_and_itself_in_one_softmax(causal):
    n, inputs = 7, qkv(21)
    attention = transformer_xl(causal, segment=n, memory=9)
    out = attention(*inputs)
    for start, oldest in ((0, 0), (7, 0), (14, 5)):
        q = inputs[0][:, :, start : start + n]
        k, v = (x[:, :, oldest : start + n] for x in inputs[1:])
        assert_near(
            out[:, :, start : start + n], biased_attention(attention, q, k, v), f"from {start}"
        )


def test_longer_distances_are_clamped():
    attention = transformer_xl(segment=30, memory=0, clamp=4)
    inputs = qkv(15)
    assert_near(attention(*inputs), biased_attention(attention, *inputs, clamp=4), "clamp 4")
    attention.clamp = 14
    out = attention(*inputs)
    attention.clamp = None
    assert_near(out, attention(*inputs), "clamp at the longest distance")
    both = transformer_xl(causal=False, segment=30, memory=0, clamp=3)
    assert_near(both(*inputs), biased_attention(both, *inputs, clamp=3), "clamp 3, bidirectional")


@full_and_causal
@pytest.mark.parametrize("memory", [0, 4, 11])
def test_same_length_gives_each_query_equally_many_keys(causal, memory):
    T, n = 40, 8
    attention = transformer_xl(causal, segment=n, memory=memory, same_length=True)
    weights = weights_of(attention, *qkv(T)[:2])
    for i in range(T):
        keys = (weights[:, :, i] != 0).sum(-1)
        future_keys = 0 if causal else n - 1 - i % n
        assert (keys == min(i, memory) + 1 + future_keys).all(), i
    assert attention.pairs(T) == (weights[0, 0] != 0).sum()


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 6), (5, 5), (4, 9)])
def test_shift_equals_gather_by_distance(T, S):
    """Distances S..0 for causal attention, whose mask covers later keys, then all distances."""
    for nearest in (0, 1 - T):
        distances = torch.arange(S, nearest - 1, -1)
        scores = torch.randn(2, T, len(distances), generator=torch.Generator().manual_seed(0))
        found = shift_to_keys(scores, S)
        for i in range(T):
            for j in range(S):
                d = i + S - T - j
                if d >= nearest:
                    assert (found[:, i, j] == scores[:, i, distances.tolist().index(d)]).all()
        assert found.untyped_storage().data_ptr() == scores.untyped_storage().data_ptr()


@pytest.mark.parametrize("width", [1, 2, 7, 24])
def test_sinusoids_equal_the_formula(width):
    found = sinusoids(torch.tensor([-3, 0, 5, 10_000]), width)
    assert found.shape == (4, width)
    half = (width + 1) // 2
    for p, row in zip((-3, 0, 5, 10_000), found.tolist(), strict=True):
        for c, x in enumerate(row):
            angle = p * 10000 ** (-2 * (c % half) / width)
            assert abs(x - (math.sin(angle) if c < half else math.cos(angle))) < 1e-9


@pytest.mark.parametrize("clamp", [None, 5])
def test_equals_xlnet_attention(clamp):
    """Compare bidirectional attention over a segment and its memory, in the XLNet weight layout."""
    n = 6
    attention = transformer_xl(causal=False, segment=n, memory=n, clamp=clamp)
    config = XLNetConfig(
        d_model=WIDTH, n_head=HEADS, d_inner=8, n_layer=1, vocab_size=5, clamp_len=clamp or -1
    )
    peer = XLNetRelativeAttention(config).double().eval()
    with torch.no_grad():
        peer.r_w_bias.copy_(attention.content_bias)
        peer.r_r_bias.copy_(attention.position_bias)
        peer.r.copy_(attention.position.permute(2, 0, 1))
    q, k, v = qkv(2 * n)
    out = attention(q, k, v)
    for start in (0, n):
        end = start + n
        position_encoding = XLNetModel(config).relative_positional_encoding(n, end).double()
        r = torch.einsum("ibw,whd->ibhd", position_encoding, peer.r).expand(-1, 3, -1, -1)
        inputs = (q[:, :, start:end], k[:, :, :end], v[:, :, :end])
        expected = peer.rel_attn_core(*(x.permute(2, 0, 1, 3) for x in inputs), r)
        # XLNet computes its sinusoids in float32.
        assert_near(out[:, :, start:end], expected.permute(1, 2, 0, 3), f"{start}", 1e-5)


def test_memory_receives_gradients_only_with_backprop_through_memory():
    n, inputs = 8, [x.requires_grad_() for x in qkv(24)]
    for backprop_through_memory in (False, True):
        attention = transformer_xl(
            segment=n, memory=2 * n, backprop_through_memory=backprop_through_memory
        )
        last = attention(*inputs)[:, :, 2 * n :]
        found = gradients(last, inputs, attention)
        for x in found[1:3]:
            assert bool(x[:, :, : 2 * n].any()) == backprop_through_memory
            assert x[:, :, 2 * n :].any()
        assert not found[0][:, :, : 2 * n].any()


@pytest.mark.parametrize("name", ["transformer_xl", "compressive", "position_infused"])
@pytest.mark.parametrize("backprop_through_memory", [False, True])
def test_gradients_of_steps_equal_forward(name, backprop_through_memory):
    """Gradients pass through the steps of a segment, and into the memory only as in forward."""
    sizes = {} if name == "position_infused" else {"heads": HEADS, "head_dim": HEAD_DIM}
    attention = randomize_parameters(
        build(
            name,
            causal=True,
            segment=6,
            memory=7,
            backprop_through_memory=backprop_through_memory,
            **sizes,
        )
    )
    inputs = [x.requires_grad_() for x in qkv(23)]
    out, _ = run_steps(attention, inputs, (1, 4, 3, 11, 2, 1, 1))
    expected = gradients(attention(*inputs), inputs, attention)
    assert_near(gradients(out, inputs, attention), expected, "gradient")


def test_layers_with_their_own_memory_equal_the_loop_of_the_paper():
    """The loop of the paper stores states per layer and projects them again."""
    n, T, g = 5, 20, torch.Generator().manual_seed(3)
    layers = [transformer_xl(segment=n, memory=n) for _ in range(2)]
    maps = torch.randn(2, 3, WIDTH, WIDTH, generator=g, dtype=torch.float64) / WIDTH**0.5

    def project(x, layer):
        return [(x @ w).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for w in maps[layer]]

    def merge_heads(x):
        return x.transpose(1, 2).flatten(2)

    first = x = torch.randn(2, T, WIDTH, generator=g, dtype=torch.float64)
    for number, layer in enumerate(layers):
        x = x + merge_heads(layer(*project(x, number)))
    memories = [first[:, :0]] * 2
    for segment in range(0, T, n):
        y = first[:, segment : segment + n]
        for number, layer in enumerate(layers):
            keys = torch.cat([memories[number], y], 1)
            memories[number] = keys[:, -n:].detach()
            q, k, v = project(keys, number)
            y = y + merge_heads(biased_attention(layer, q[:, :, -n:], k, v))
        assert_near(x[:, segment : segment + n], y, f"segment at {segment}")


@full_and_causal
@pytest.mark.parametrize("name", ["transformer_xl", "compressive", "position_infused"])
def test_real_queries_before_the_first_real_key_give_zeros(name, causal):
    sizes = {} if name == "position_infused" else {"heads": HEADS, "head_dim": HEAD_DIM}
    attention = randomize_parameters(build(name, causal=causal, segment=6, memory=7, **sizes))
    inputs = [x.requires_grad_() for x in qkv(23)]
    masks = {
        "key_mask": (torch.arange(23) >= torch.tensor([3, 9, 22])[:, None]),
        "query_mask": torch.ones(3, 23, dtype=torch.bool),
    }
    out = attention(*inputs, **masks)
    assert_near(out, reference_copy(attention)(*inputs, **masks), "output")
    assert not out[1, :, :6].any()
    assert bool(out[1, :, 6:9].any()) != causal
    assert all(x.isfinite().all() for x in gradients(out, inputs, attention))


@pytest.mark.parametrize("name", ["transformer_xl", "position_infused"])
def test_cache_holds_the_memory_and_the_unfinished_segment(name):
    sizes = {} if name == "position_infused" else {"heads": HEADS, "head_dim": HEAD_DIM}
    n, memory = 6, 10
    attention = build(name, causal=True, segment=n, memory=memory, **sizes).double()
    q, k, v = qkv(50)
    cache = None
    for t in range(50):
        _, cache = attention.step(*(x[:, :, t : t + 1] for x in (q, k, v)), cache)
        first = max(0, (t + 1) // n * n - memory)
        assert set(cache.state) == {"k", "v"}
        # Cached keys contain no positions.
        assert torch.equal(cache.state["k"], k[:, :, first : t + 1])
        assert torch.equal(cache.state["v"], v[:, :, first : t + 1])


@pytest.mark.parametrize("name", ["transformer_xl", "compressive"])
def test_blocks_of_queries_equal_the_formula(name, monkeypatch):
    """A segment in several blocks, the last one shorter, with padding, gradients and steps."""
    monkeypatch.setattr(relative_positions, "QUERY_BLOCK", 5)
    options = {"compressed_memory": 4, "ratio": 4} if name == "compressive" else {"clamp": 9}
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM}
    made = build(name, causal=True, segment=12, memory=8, **sizes, **options)
    check_contract(randomize_parameters(made), lengths=(5, 6, 33))


def test_same_length_is_full_attention_where_its_reach_covers_the_input():
    attention = transformer_xl(True, segment=40, memory=16, same_length=True)
    assert [attention.is_dense(T) for T in (17, 18, 40)] == [True, False, False]
    for T in (17, 18, 40):
        assert (attention.pairs(T) == T * (T + 1) // 2) == attention.is_dense(T)
