"""Dilated windows: published pairs per head and layer, independent residue classes."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    check_contract,
    full_and_causal,
    global_masks,
    key_masks,
    qkv,
)
from test_contract_state import run_in_new_process
from test_contract_traits import Allocations

from flop_counter import flop_counter
from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.patterns import PerHead, Window


def dilated(causal=False, heads=HEADS, layer=0, **options):
    return build("dilated", causal=causal, heads=heads, layer=layer, **options)


def published_mask(window, dilations, T, causal):
    """Build the masks (heads, T, T) from the definition in the paper, key by key."""
    mask = torch.zeros(len(dilations), T, T, dtype=torch.bool)
    for head, g in enumerate(dilations):
        for i in range(T):
            for m in range(-window, 1 if causal else window + 1):
                if 0 <= i + m * g < T:
                    mask[head, i, i + m * g] = True
    return mask


@full_and_causal
@pytest.mark.parametrize(
    ("window", "dilation"),
    [(0, 3), (1, 1), (2, 2), (3, 7), (4, [1, 2, 3]), (2, [5, 1, 5]), (40, 2), (3, [60, 1, 500])],
)
def test_equals_softmax_over_published_pairs(window, dilation, causal):
    attention = dilated(causal, window=window, dilation=dilation)
    dilations = dilation if isinstance(dilation, list) else [dilation] * HEADS
    for T in (1, 2, 7, 33, 61):
        mask, inputs = published_mask(window, dilations, T, causal), qkv(T)
        assert_near(attention(*inputs), softmax_reference(*inputs, mask), f"T={T}")
        counts = attention.pairs(T)
        counts = counts if isinstance(counts, tuple) else (counts,) * HEADS
        assert counts == tuple(mask.sum((1, 2)).tolist())


def test_window_per_layer_and_dilation_per_layer_and_head():
    options = {"window": [4, 2], "dilation": [[1, 1, 1], [1, 2, 3]]}
    assert dilated(layer=0, **options).pattern == Window(4, 4)
    local = build("local", causal=True, window=4)
    assert dilated(causal=True, layer=0, **options).pattern == local.pattern
    own = PerHead((Window(2, 2), Window(2, 2, 2), Window(2, 2, 3)))
    assert dilated(layer=1, **options).pattern == own
    assert dilated(layer=1, window=[4, 2], dilation=3).pattern == Window(2, 2, 3)
    assert dilated(layer=7, window=4, dilation=[1, 2, 3]).pattern.patterns[1] == Window(4, 4, 2)


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [
        {"window": 4, "dilation": [1, 2, 5]},
        {"window": [9, 2], "dilation": [[1, 1, 1], [3, 1, 3]], "layer": 1},
        {"window": 2, "dilation": 50},
        {"window": 0, "dilation": [2, 2, 1]},
    ],
    ids=str,
)
def test_obeys_contract_with_other_options(options, causal):
    check_contract(dilated(causal, **options).double())


@full_and_causal
def test_global_key_counts_once_inside_or_between_dilated_steps(causal):
    T, window, dilations = 45, 3, [1, 2, 3]
    attention = dilated(causal, window=window, dilation=dilations)
    q, k, _ = qkv(T)
    identity = torch.eye(T, dtype=q.dtype).expand(3, HEADS, T, T)
    for kind, key_mask in key_masks(T).items():
        is_global = global_masks("dilated", T)[1]
        mask = published_mask(window, dilations, T, False)[None]
        mask = mask | is_global[:, None, :, None] | is_global[:, None, None, :]
        if key_mask is not None:
            mask = mask & key_mask[:, None, None, :] & key_mask[:, None, :, None]
        mask = mask.tril() if causal else mask
        weights = attention(q, k, identity, key_mask, global_mask=is_global)
        assert_near(weights, softmax_reference(q, k, identity, mask), kind)
        assert torch.equal(weights != 0, mask)


def test_work_and_memory_are_linear_with_different_heads():
    attention = dilated(window=3, dilation=[1, 3, 1])
    allocated, flops = [], []
    for T in (128, 1024):
        masks = {"global_mask": (torch.arange(T) % (T // 2) == 3).expand(2, T)}
        inputs = [x.requires_grad_() for x in qkv(T, B=2)]
        with Allocations() as forward:
            out = attention(*inputs, **masks)
        with Allocations() as backward:
            out.sum().backward()
        allocated.append((forward.largest, forward.total, backward.largest, backward.total))
        with flop_counter() as counter:
            attention(*qkv(T, B=2))
        flops.append(counter.get_total_flops())
        assert flops[-1] == pytest.approx(2 * HEADS * attention.flops(T, HEAD_DIM), rel=1e-4)
    assert all(long <= 1.1 * 8 * short for short, long in zip(*allocated, strict=True))
    assert flops[1] <= 1.1 * 8 * flops[0]


def test_heads_that_share_a_dilation_run_in_one_call(monkeypatch):
    from longspan.attention.ops import blocks

    calls, original = [], blocks._block_rows
    monkeypatch.setattr(
        blocks, "_block_rows", lambda x, *rest: calls.append(x.q.shape[1]) or original(x, *rest)
    )
    attention = dilated(heads=6, window=3, dilation=[2, 1, 2, 1, 1, 7])
    attention.backend = "torch"  # so short an input would run densely
    attention(*qkv(40, H=6))
    assert sorted(calls) == [1, 2, 3]


COMPARE_COMPILED = """
import torch
from contract import gradients, qkv
from longspan.attention import LayerInput, build
inputs = [x.requires_grad_() for x in qkv(50)]
split = lambda x: x.unflatten(-1, (3, 8)).transpose(0, 1)
layer_input = LayerInput(torch.zeros(3, 50, 24, dtype=torch.float64), split, split)
for name, more, extra in (
    ("dilated", {}, {}),
    ("longformer", {"head_dim": 8, "global_projections": True}, {"layer_input": layer_input}),
):
    for causal in (False, True):
        attention = build(name, heads=3, causal=causal, window=3, dilation=[2, 1, 2], **more)
        compiled = torch.compile(attention.double(), fullgraph=True, backend="eager")
        for mask in (None, torch.arange(50) < torch.tensor([50, 31, 0])[:, None]):
            outs = [f(*inputs, mask, **extra) for f in (attention, compiled)]
            for x, y in zip(*((out, *gradients(out, inputs, attention)) for out in outs)):
                torch.testing.assert_close(x, y, atol=1e-10, rtol=0)
"""


@pytest.mark.slow
def test_layers_with_two_dilations_compile_to_one_graph():
    run_in_new_process(COMPARE_COMPILED)


def test_cache_holds_the_reach_of_the_farthest_head():
    attention = dilated(True, window=2, dilation=[1, 2, 4])
    cache, cached = None, []
    for t in range(120):
        _, cache = attention.step(*qkv(1, seed=t), cache)
        cached.append(cache.state["k"].shape[2])
    farthest = attention.pattern.patterns[2].layout
    assert max(cached) <= (farthest.left + farthest.block) * farthest.dilation
    assert cached[-1] >= 2 * 4
