"""Sparse Transformer: both kinds, every use of the heads, causal and not."""

import contract
import pytest
import torch
from contract import HEAD_DIM, assert_near, full_and_causal, qkv

from flop_counter import flop_counter
from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.errors import OptionError

both_kinds = pytest.mark.parametrize("kind", ["fixed", "strided"])
every_head_pattern = pytest.mark.parametrize("head_patterns", ["merged", "separate", "alternating"])


def sparse_transformer(kind, causal=False, heads=3, max_length=64, layer=0, **options):
    if kind == "strided":
        options.pop("summary", None)
    sizes = {"heads": heads, "max_length": max_length, "layer": layer}
    return build("sparse_transformer", causal=causal, **sizes, kind=kind, **options)


def near_and_far_keys(i, T, kind, stride, columns):
    """Return the near and the far keys of query i by the definition in the paper."""
    if kind == "strided":
        near = {j for j in range(T) if abs(i - j) < stride}
        return near, {j for j in range(T) if (i - j) % stride == 0}
    near = {j for j in range(T) if j // stride == i // stride}
    return near, {j for j in range(T) if j % stride in columns}


def published_mask(kind, head_patterns, causal, T, stride, summary, groups=1, layer=0, heads=3):
    """Build the mask of each head, (heads, T, T), by the definition in the paper."""
    mask = torch.zeros(heads, T, T, dtype=torch.bool)
    for head in range(heads):
        group = (head // 2 if head_patterns == "separate" else head) % groups
        columns = range(stride - (group + 1) * summary, stride - group * summary)
        for i in range(T):
            near, far = near_and_far_keys(i, T, kind, stride, columns)
            chosen = near | far
            if head_patterns != "merged":
                chosen = far if (head if head_patterns == "separate" else layer) % 2 else near
            mask[head, i, [j for j in chosen if j <= i or not causal]] = True
    return mask


def assert_equals_masked_softmax(attention, T, mask):
    inputs = qkv(T)
    assert_near(attention(*inputs), softmax_reference(*inputs, mask), f"T={T}")
    counts = mask.sum((1, 2)).tolist()
    pairs = attention.pairs(T)
    assert (list(pairs) if isinstance(pairs, tuple) else [pairs] * len(counts)) == counts


@full_and_causal
@every_head_pattern
@both_kinds
def test_equals_softmax_over_published_pairs(kind, head_patterns, causal):
    for stride, summary in ((1, 1), (4, 1), (5, 3), (8, 8), (90, 3)):
        for layer in (0, 1) if head_patterns == "alternating" else (0,):
            options = {
                "head_patterns": head_patterns,
                "stride": stride,
                "summary": summary,
                "layer": layer,
            }
            attention = sparse_transformer(kind, causal, **options)
            for T in (1, 3, 8, 13, 31, 67):
                mask = published_mask(kind, head_patterns, causal, T, stride, summary, layer=layer)
                assert_equals_masked_softmax(attention, T, mask)


@full_and_causal
@pytest.mark.parametrize("head_patterns", ["merged", "separate"])
def test_groups_give_heads_different_columns(head_patterns, causal):
    options = {"stride": 8, "summary": 2, "groups": 3}
    attention = sparse_transformer("fixed", causal, heads=7, head_patterns=head_patterns, **options)
    for T in (5, 16, 37):
        mask = published_mask("fixed", head_patterns, causal, T, 8, 2, groups=3, heads=7)
        if T > 8:
            assert len({tuple(x.flatten().tolist()) for x in mask}) == (
                4 - (head_patterns == "merged")
            )
        q, k, v = qkv(T, H=7)
        assert_near(attention(q, k, v), softmax_reference(q, k, v, mask), f"T={T}")
        assert attention.pairs(T) == tuple(mask.sum((1, 2)).tolist())


def test_default_stride_is_root_of_max_length_or_fits_the_columns():
    assert sparse_transformer("fixed", max_length=4096).stride == 64
    assert sparse_transformer("strided", max_length=1000).stride == 32
    assert sparse_transformer("strided", max_length=9).stride == 3
    assert sparse_transformer("fixed", max_length=9, groups=2, summary=5).stride == 10


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


@full_and_causal
@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=[f"{k}{o}" for k, o in OPTIONS])
def test_every_head_pattern_obeys_contract(kind, options, causal):
    contract.check_contract(sparse_transformer(kind, causal, **options), lengths=(1, 9, 33))


@full_and_causal
@every_head_pattern
@both_kinds
def test_work_matches_flops_and_grows_with_the_power_of_1_5(kind, head_patterns, causal):
    flops = []
    for T in (1024, 4096):
        attention = sparse_transformer(
            kind, causal, max_length=T, head_patterns=head_patterns, layer=1
        )
        with flop_counter() as counter:
            attention(*qkv(T, B=1, dtype=torch.float32))
        flops.append(counter.get_total_flops())
        assert 0.7 <= 3 * attention.flops(T, HEAD_DIM) / flops[-1] <= 1.4
    assert flops[1] <= 1.1 * 8 * flops[0]


@both_kinds
def test_causal_work_skips_most_of_the_future(kind):
    T, flops = 4096, []
    for causal in (False, True):
        # Only far sets, which are long.
        options = {"stride": 16, "summary": 4, "head_patterns": "alternating", "layer": 1}
        with flop_counter() as counter:
            sparse_transformer(kind, causal, **options)(*qkv(T, B=1, H=1, dtype=torch.float32))
        flops.append(counter.get_total_flops())
    assert flops[1] <= 0.6 * flops[0]


def test_cache_holds_only_keys_of_later_tokens():
    cached_tokens = {
        "fixed-merged": 4 * 2 + 6,  # columns of four blocks, six tokens of the fifth
        "strided-merged": 46,
        "fixed-near": 6,
    }
    for name, expected in cached_tokens.items():
        kind, _, head_patterns = name.partition("-")
        head_patterns = {"near": "alternating"}.get(head_patterns, head_patterns)
        options = {"head_patterns": head_patterns, "stride": 10, "summary": 2}
        _, cache = sparse_transformer(kind, True, **options).step(*qkv(46))
        assert cache.state["k"].shape[2] == expected, name


@both_kinds
def test_prompt_step_costs_the_same_as_forward(kind):
    attention, flops = sparse_transformer(kind, True, max_length=1024), []
    for call in (attention, attention.step):
        with flop_counter() as counter:
            call(*qkv(1024, B=1, dtype=torch.float32))
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1]


def test_strided_sets_have_no_summary_columns():
    with pytest.raises(OptionError, match="summary requires kind='fixed', got summary=8"):
        build("sparse_transformer", heads=2, max_length=64, summary=8)
