"""Windows with gaps: the published pairs, per head and per layer, and residues that never meet."""

import pytest
import torch
from contract import HEAD_DIM, HEADS, assert_near, global_masks, key_masks, obeys, qkv
from test_contract_state import in_new_process
from test_contract_traits import Allocations
from torch.utils.flop_counter import FlopCounterMode

from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.patterns import PerHead, Window
from longspan.errors import InputError, OptionError

both_orders = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def dilated(causal=False, heads=HEADS, layer=0, **options):
    return build("dilated", causal=causal, heads=heads, layer=layer, **options)


def steps(window, dilations, T, causal):
    """The pairs as the paper words them, counted out key by key, (heads, T, T)."""
    mask = torch.zeros(len(dilations), T, T, dtype=torch.bool)
    for head, g in enumerate(dilations):
        for i in range(T):
            for m in range(-window, 1 if causal else window + 1):
                if 0 <= i + m * g < T:
                    mask[head, i, i + m * g] = True
    return mask


@both_orders
@pytest.mark.parametrize(
    ("window", "dilation"),
    [(0, 3), (1, 1), (2, 2), (3, 7), (4, [1, 2, 3]), (2, [5, 1, 5]), (40, 2), (3, [60, 1, 500])],
)
def test_it_is_softmax_over_the_published_pairs(window, dilation, causal):
    attention = dilated(causal, window=window, dilation=dilation)
    each = dilation if isinstance(dilation, list) else [dilation] * HEADS
    for T in (1, 2, 7, 33, 61):
        mask, inputs = steps(window, each, T, causal), qkv(T)
        assert_near(attention(*inputs), softmax_reference(*inputs, mask), f"T={T}")
        counts = attention.pairs(T)
        counts = counts if isinstance(counts, tuple) else (counts,) * HEADS
        assert counts == tuple(mask.sum((1, 2)).tolist())


@both_orders
def test_no_gaps_is_the_local_window(causal):
    attention, local = (
        dilated(causal, window=5, dilation=1),
        build("local", causal=causal, window=5),
    )
    assert attention.pattern == local.pattern
    assert torch.equal(attention(*qkv(70)), local(*qkv(70)))


def test_a_window_and_a_dilation_of_each_layer_and_head():
    options = {"window": [4, 2], "dilation": [[1, 1, 1], [1, 2, 3]]}
    assert dilated(layer=0, **options).pattern == Window(4, 4)
    own = PerHead((Window(2, 2), Window(2, 2, 2), Window(2, 2, 3)))
    assert dilated(layer=1, **options).pattern == own
    assert dilated(layer=1, window=[4, 2], dilation=3).pattern == Window(2, 2, 3)
    assert dilated(layer=7, window=4, dilation=[1, 2, 3]).pattern.patterns[1] == Window(4, 4, 2)


@both_orders
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
def test_it_obeys_the_contract_with_other_options(options, causal):
    obeys(dilated(causal, **options).double())


@both_orders
def test_residue_classes_do_not_meet(causal):
    g, T = 4, 57
    attention = dilated(causal, window=3, dilation=g)
    inputs = qkv(T)
    before = attention(*inputs)
    own = torch.arange(T) % g == 1
    changed = [torch.where(own[:, None], 50 * x + 1, x) for x in inputs]
    after = attention(*changed)
    assert torch.equal(after[:, :, ~own], before[:, :, ~own])
    assert not torch.allclose(after[:, :, own], before[:, :, own])


@both_orders
def test_a_global_key_within_the_gaps_or_on_a_step_counts_once(causal):
    T, window, each = 45, 3, [1, 2, 3]
    attention = dilated(causal, window=window, dilation=each)
    q, k, _ = qkv(T)
    identity = torch.eye(T, dtype=q.dtype).expand(3, HEADS, T, T)
    for kind, key_mask in key_masks(T).items():
        is_global = global_masks("dilated", T)[1]
        mask = steps(window, each, T, False)[None]
        mask = mask | is_global[:, None, :, None] | is_global[:, None, None, :]
        if key_mask is not None:
            mask = mask & key_mask[:, None, None, :] & key_mask[:, None, :, None]
        mask = mask.tril() if causal else mask
        weights = attention(q, k, identity, key_mask, global_mask=is_global)
        assert_near(weights, softmax_reference(q, k, identity, mask), kind)
        assert torch.equal(weights != 0, mask)


def test_work_and_memory_grow_with_the_length_alone_where_heads_differ():
    attention = dilated(window=3, dilation=[1, 3, 1])
    seen, counted = [], []
    for T in (128, 1024):
        masks = {"global_mask": (torch.arange(T) % (T // 2) == 3).expand(2, T)}
        inputs = [x.requires_grad_() for x in qkv(T, B=2)]
        with Allocations() as forward:
            out = attention(*inputs, **masks)
        with Allocations() as backward:
            out.sum().backward()
        seen.append((forward.largest, forward.total, backward.largest, backward.total))
        with FlopCounterMode(display=False) as counter:
            attention(*qkv(T, B=2))
        counted.append(counter.get_total_flops())
        assert counted[-1] == pytest.approx(2 * HEADS * attention.flops(T, HEAD_DIM), rel=1e-4)
    assert all(long <= 1.1 * 8 * short for short, long in zip(*seen, strict=True))
    assert counted[1] <= 1.1 * 8 * counted[0]


def test_heads_that_share_a_dilation_run_together(monkeypatch):
    from longspan.attention.ops import blocks

    calls, whole = [], blocks._block_rows
    monkeypatch.setattr(
        blocks, "_block_rows", lambda q, *rest: calls.append(q.shape[1]) or whole(q, *rest)
    )
    dilated(heads=6, window=3, dilation=[2, 1, 2, 1, 1, 7])(*qkv(40, H=6))
    assert sorted(calls) == [1, 2, 3]


COMPILED = """
import torch
from contract import gradients, qkv
from longspan.attention import LayerInput, build
torch.set_num_threads(1)
inputs = [x.requires_grad_() for x in qkv(50)]
layer_input = LayerInput(torch.zeros(3, 50, 24, dtype=torch.float64), torch.nn.Identity(), None)
for name, more, extra in (
    ("dilated", {}, {}),
    ("longformer", {"head_dim": 8, "global_projections": True}, {"layer_input": layer_input}),
):
    for causal in (False, True):
        attention = build(name, heads=3, causal=causal, window=3, dilation=[2, 1, 2], **more)
        compiled = torch.compile(attention.double(), fullgraph=True, backend="aot_eager")
        for mask in (None, torch.arange(50) < torch.tensor([50, 31, 0])[:, None]):
            outs = [f(*inputs, mask, **extra) for f in (attention, compiled)]
            for x, y in zip(*((out, *gradients(out, inputs, attention)) for out in outs)):
                torch.testing.assert_close(x, y, atol=1e-10, rtol=0)
"""


def test_layers_with_two_dilations_compile_as_one_graph():
    in_new_process(COMPILED)


def test_a_cache_holds_what_the_farthest_head_can_still_reach():
    attention = dilated(True, window=2, dilation=[1, 2, 4])
    cache, kept = None, []
    for t in range(120):
        _, cache = attention.step(*qkv(1, seed=t), cache)
        kept.append(cache.state["k"].shape[2])
    farthest = attention.pattern.patterns[2].layout
    assert max(kept) <= (farthest.left + farthest.block) * farthest.dilation
    assert kept[-1] >= 2 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "window must be >= 0, got -1"),
        ({"window": [3, -2]}, r"window must be >= 0, got \[3, -2\]"),
        ({"window": [3, 4], "layer": 2}, r"window lists 2 layers, but this is layer 2"),
        ({"window": []}, "window lists 0 layers, but this is layer 0"),
        ({"dilation": 0}, r"dilation must be >= 1 \(1: every key\), got 0"),
        ({"dilation": [1, 0, 2]}, r"dilation must be >= 1 .*got \[1, 0, 2\]"),
        ({"dilation": [1, 2]}, r"one number, or one per head \(3\), got \[1, 2\]"),
        ({"dilation": []}, "dilation lists 0 layers, but this is layer 0"),
        ({"dilation": [[1, 1, 2]], "layer": 1}, "dilation lists 1 layers, but this is layer 1"),
        ({"dilation": [[1, 1, 2], [1, 2]]}, r"one per head \(3\), got \[\[1, 1, 2\], \[1, 2\]\]"),
        ({"dilation": [[1, 1, 2], 2]}, "dilation must be an integer or a list, got"),
        ({"window": 2.5}, "window must be an integer or a list, got 2.5"),
    ],
)
@pytest.mark.parametrize("name", ["dilated", "longformer"])
def test_options_that_make_no_sense_are_refused(name, options, message):
    with pytest.raises(OptionError, match=f"{name} cannot be built: .*{message}"):
        build(name, heads=3, head_dim=8, **options)


def test_every_reason_is_listed():
    with pytest.raises(OptionError) as refused:
        dilated(layer=2, window=[1, -1], dilation=[[0, 1, 1], [1, 1]])
    for part in ("window lists 2", "dilation lists 2", "window must be", "per head", "every key"):
        assert part in str(refused.value)


def test_other_heads_than_the_pattern_has_are_refused():
    with pytest.raises(InputError, match="the pattern has 3 heads, got 2"):
        dilated(dilation=[1, 2, 3])(*qkv(9, H=2))
    assert dilated(dilation=2)(*qkv(9, H=2)).shape == (3, 2, 9, HEAD_DIM)
