"""Sparse Transformer: both kinds, each use of the heads, with a future and without."""

import contract
import pytest
import torch
from contract import HEAD_DIM, assert_near, qkv
from torch.utils.flop_counter import FlopCounterMode

from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.errors import InputError, OptionError

both_kinds = pytest.mark.parametrize("kind", ["fixed", "strided"])
both_orders = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
every_use = pytest.mark.parametrize("use", ["merged", "separate", "alternating"])


def sparse(kind, causal=False, heads=3, max_length=64, layer=0, **options):
    sizes = {"heads": heads, "max_length": max_length, "layer": layer}
    return build("sparse_transformer", causal=causal, **sizes, kind=kind, **options)


def keys_of(i, T, kind, stride, columns):
    """The near and the far set of query i, as the paper words them (l keys are near)."""
    if kind == "strided":
        near = {j for j in range(T) if abs(i - j) < stride}
        return near, {j for j in range(T) if (i - j) % stride == 0}
    near = {j for j in range(T) if j // stride == i // stride}
    return near, {j for j in range(T) if j % stride in columns}


def published(kind, use, causal, T, stride, summary, groups=1, layer=0, heads=3):
    """The pairs of each head, (heads, T, T), from sets of Python numbers."""
    mask = torch.zeros(heads, T, T, dtype=torch.bool)
    for head in range(heads):
        group = (head // 2 if use == "separate" else head) % groups
        columns = range(stride - (group + 1) * summary, stride - group * summary)
        for i in range(T):
            near, far = keys_of(i, T, kind, stride, columns)
            chosen = near | far
            if use != "merged":
                chosen = far if (head if use == "separate" else layer) % 2 else near
            for j in chosen:
                mask[head, i, j] = j <= i or not causal
    return mask


def assert_published(attention, T, mask):
    inputs = qkv(T)
    assert_near(attention(*inputs), softmax_reference(*inputs, mask), f"T={T}")
    counts = mask.sum((1, 2)).tolist()
    pairs = attention.pairs(T)
    assert (list(pairs) if isinstance(pairs, tuple) else [pairs] * len(counts)) == counts


@both_orders
@every_use
@both_kinds
def test_it_is_softmax_over_the_published_pairs(kind, use, causal):
    for stride, summary in ((1, 1), (4, 1), (5, 3), (8, 8), (90, 3)):
        for layer in (0, 1) if use == "alternating" else (0,):
            options = {"head_patterns": use, "stride": stride, "summary": summary, "layer": layer}
            attention = sparse(kind, causal, **options)
            for T in (1, 3, 8, 13, 31, 67):
                mask = published(kind, use, causal, T, stride, summary, layer=layer)
                assert_published(attention, T, mask)


@both_orders
@pytest.mark.parametrize("use", ["merged", "separate"])
def test_groups_give_heads_columns_of_their_own(use, causal):
    options = {"stride": 8, "summary": 2, "groups": 3}
    attention = sparse("fixed", causal, heads=7, head_patterns=use, **options)
    for T in (5, 16, 37):
        mask = published("fixed", use, causal, T, 8, 2, groups=3, heads=7)
        if T > 8:
            assert len({tuple(x.flatten().tolist()) for x in mask}) == (4 - (use == "merged"))
        q, k, v = qkv(T, H=7)
        assert_near(attention(q, k, v), softmax_reference(q, k, v, mask), f"T={T}")
        assert attention.pairs(T) == tuple(mask.sum((1, 2)).tolist())


@both_orders
@both_kinds
def test_a_key_in_both_sets_counts_once(kind, causal):
    T = 37
    q, k, _ = qkv(T)
    values = torch.eye(T, dtype=q.dtype).expand(3, 3, T, T)
    weights = sparse(kind, causal, stride=6, summary=2)(0 * q, k, values)
    mask = published(kind, "merged", causal, T, 6, 2).double()
    assert_near(weights[0], mask / mask.sum(-1, keepdim=True), "equal weights")


@both_orders
@both_kinds
def test_a_stride_as_long_as_the_text_is_full_attention(kind, causal):
    for T in (1, 30, 50):
        inputs = qkv(T)
        full = build("full", causal=causal)(*inputs)
        assert_near(sparse(kind, causal, stride=50)(*inputs), full, f"T={T}")


@both_orders
def test_a_stride_of_one_and_blocks_all_summary_are_full_attention(causal):
    inputs = qkv(41)
    full = build("full", causal=causal)(*inputs)
    assert_near(sparse("strided", causal, stride=1)(*inputs), full, "stride 1")
    assert_near(sparse("fixed", causal, stride=7, summary=7)(*inputs), full, "all columns")


def test_a_text_without_columns_gives_far_heads_zeros():
    q, k, v = (x.requires_grad_() for x in qkv(5))
    out = sparse("fixed", head_patterns="alternating", layer=1, stride=8, summary=2)(q, k, v)
    assert not out.any()
    assert not any(x.any() for x in contract.gradients(out, (q, k, v), torch.nn.Module()))


def test_the_stride_is_the_root_of_the_longest_text_with_room_for_the_columns():
    assert sparse("fixed", max_length=4096).stride == 64
    assert sparse("strided", max_length=1000).stride == 32
    assert sparse("strided", max_length=9).stride == 3
    assert sparse("fixed", max_length=9, groups=2, summary=5).stride == 10


OPTIONS = [
    ("strided", {}),
    ("strided", {"stride": 5, "head_patterns": "separate"}),
    ("strided", {"stride": 5, "head_patterns": "alternating", "layer": 1}),
    ("fixed", {"stride": 5, "summary": 2}),
    ("fixed", {"stride": 6, "summary": 2, "groups": 3}),
    ("fixed", {"stride": 5, "summary": 2, "head_patterns": "separate"}),
    ("fixed", {"stride": 5, "summary": 2, "head_patterns": "alternating", "layer": 1}),
    ("fixed", {"stride": 5, "summary": 2, "head_patterns": "alternating", "layer": 2}),
    ("fixed", {"stride": 2, "summary": 1}),
]


@both_orders
@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=[f"{k}{o}" for k, o in OPTIONS])
def test_every_use_obeys_the_contract(kind, options, causal):
    contract.obeys(sparse(kind, causal, **options), lengths=(1, 9, 33))


@both_orders
@every_use
@both_kinds
def test_work_is_what_is_claimed_and_grows_as_the_power_of_one_and_a_half(kind, use, causal):
    seen = []
    for T in (1024, 4096):
        attention = sparse(kind, causal, max_length=T, head_patterns=use, layer=1)
        with FlopCounterMode(display=False) as counter:
            attention(*qkv(T, B=1, dtype=torch.float32))
        seen.append(counter.get_total_flops())
        assert 0.7 <= 3 * attention.flops(T, HEAD_DIM) / seen[-1] <= 1.4
    assert seen[1] <= 1.1 * 8 * seen[0]


@both_kinds
def test_the_future_of_a_causal_row_is_mostly_skipped(kind):
    T, seen = 4096, []
    for causal in (False, True):
        # Far sets alone, and long ones.
        options = {"stride": 16, "summary": 4, "head_patterns": "alternating", "layer": 1}
        with FlopCounterMode(display=False) as counter:
            sparse(kind, causal, **options)(*qkv(T, B=1, H=1, dtype=torch.float32))
        seen.append(counter.get_total_flops())
    assert seen[1] <= 0.6 * seen[0]


def test_a_cache_keeps_what_later_tokens_can_attend():
    kept = {
        "fixed-merged": 4 * 2 + 6,  # the columns of four blocks, and 6 tokens of the fifth
        "strided-merged": 46,
        "fixed-near": 6,
    }
    for name, expected in kept.items():
        kind, _, use = name.partition("-")
        use = {"near": "alternating"}.get(use, use)
        options = {"head_patterns": use, "stride": 10, "summary": 2}
        _, cache = sparse(kind, True, **options).step(*qkv(46))
        assert cache.state["k"].shape[2] == expected, name


@both_kinds
def test_a_prompt_costs_what_forward_costs(kind):
    attention, seen = sparse(kind, True, max_length=1024), []
    for call in (attention, attention.step):
        with FlopCounterMode(display=False) as counter:
            call(*qkv(1024, B=1, dtype=torch.float32))
        seen.append(counter.get_total_flops())
    assert seen[0] == seen[1]


def test_heads_that_differ_are_as_many_as_were_built():
    attention = sparse("fixed", head_patterns="separate")
    with pytest.raises(InputError, match="the pattern has 3 heads, got 2"):
        attention(*qkv(9, H=2))
    assert sparse("fixed")(*qkv(9, H=2)).shape == (3, 2, 9, HEAD_DIM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0, "kind": "strided"}, "stride must be >= 1, got 0"),
        ({"summary": 0}, "summary must be >= 1, got 0"),
        ({"groups": 0}, "groups must be >= 1, got 0"),
        ({"stride": 8, "summary": 3, "groups": 3}, "groups must be <= stride, got 9 and 8"),
        (
            {"kind": "strided", "groups": 2},
            "groups > 1 requires kind='fixed', got groups=2",
        ),
        ({"head_patterns": "separate", "heads": 1}, "requires heads >= 2, got 1"),
        ({"stride": 0, "summary": 0}, "stride must be >= 1, got 0; summary must be >= 1, got 0"),
    ],
)
def test_what_makes_no_pattern_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        sparse(**{"kind": "fixed", **options})


def test_unknown_words_are_refused():
    for option in ("kind", "head_patterns"):
        sizes = {"heads": 2, "max_length": 64, option: "diagonal"}
        with pytest.raises(OptionError, match=f"{option} must be one of .* got 'diagonal'"):
            build("sparse_transformer", **sizes)
        with pytest.raises(OptionError, match=f"{option} must be .* got 'diagonal'"):
            contract.unchecked("sparse_transformer", **sizes)
