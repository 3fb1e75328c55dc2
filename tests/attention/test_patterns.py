"""Patterns: mask, drawing, pair count and kernel agree."""

import doctest
import math
import xml.etree.ElementTree as ET

import pytest
import torch
from contract import assert_near, gradients, qkv
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from flop_counter import flop_counter
from longspan.attention import Inputs, patterns
from longspan.attention.ops.blocks import pattern_attention
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.patterns import (
    BlockWindow,
    Both,
    Causal,
    Either,
    Global,
    PerHead,
    Window,
)
from longspan.errors import OptionError

# Runtime type checks use `random`; the strategies do not.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

windows = st.builds(
    Window, st.integers(0, 6), st.none() | st.integers(0, 6), dilation=st.integers(1, 4)
)
block_windows = st.builds(
    BlockWindow, st.integers(1, 9), st.integers(0, 12), st.none() | st.integers(0, 12)
)
global_sets = st.lists(st.integers(0, 45), min_size=1, max_size=3, unique=True).map(
    lambda positions: Global(tuple(positions))
)


@st.composite
def local_patterns(draw):
    """Draw unions and intersections of windows."""
    pattern = draw(windows | block_windows)
    for _ in range(draw(st.integers(0, 2))):
        other = draw(windows | block_windows)
        pattern = draw(st.sampled_from([pattern | other, pattern & other]))
    return pattern


@st.composite
def random_patterns(draw, with_globals=True):
    """Draw unions and intersections of every kind of pattern, causal or not."""
    pattern = draw(local_patterns())
    if with_globals and draw(st.booleans()):
        chosen = draw(global_sets)
        pattern = draw(st.sampled_from([pattern | chosen, chosen | pattern]))
        if draw(st.booleans()):
            pattern = pattern | draw(windows | block_windows)
    return pattern & Causal() if draw(st.booleans()) else pattern


def contains_pair(pattern, q, kv):
    """Return whether a pair is in the pattern, by its definition."""
    if isinstance(pattern, Window):
        after = pattern.left if pattern.right is None else pattern.right
        steps = range(-pattern.left, after + 1)
        return any(kv == q + step * pattern.dilation for step in steps)
    if isinstance(pattern, BlockWindow):
        first = math.floor(q / pattern.block) * pattern.block
        after = pattern.overlap if pattern.right is None else pattern.right
        return kv in range(first - pattern.overlap, first + pattern.block + after)
    if isinstance(pattern, Global):
        return q in pattern.positions or kv in pattern.positions
    if isinstance(pattern, Causal):
        return kv <= q
    sides = contains_pair(pattern.first, q, kv), contains_pair(pattern.second, q, kv)
    return any(sides) if isinstance(pattern, patterns.Either) else all(sides)


@settings(max_examples=80, deadline=None)
@given(random_patterns(), st.integers(1, 50))
def test_mask_equals_definition_and_pairs_counts_it(pattern, T):
    expected = [[contains_pair(pattern, q, kv) for kv in range(T)] for q in range(T)]
    assert pattern.dense(T)[0].tolist() == expected
    assert pattern.pairs(T) == sum(map(sum, expected))


@settings(max_examples=30, deadline=None)
@given(random_patterns(), st.integers(100, 400))
def test_pairs_is_exact_over_many_blocks(pattern, T):
    assert pattern.pairs(T) == int(pattern.dense(T).sum())


def test_pairs_takes_no_quadratic_memory():
    T, w = 100_000, 100
    assert Window(w).pairs(T) == T * (2 * w + 1) - w * (w + 1)
    assert (Window(w) & Causal()).pairs(T) == T * (w + 1) - w * (w + 1) // 2


@st.composite
def per_head_patterns(draw, heads):
    """Draw a pattern that differs between heads, and the expected pattern of each head."""
    head_patterns = draw(st.lists(local_patterns(), min_size=heads, max_size=heads))
    if draw(st.booleans()):
        head_patterns[-1] = head_patterns[0]
    pattern = PerHead(tuple(head_patterns))
    for _ in range(draw(st.integers(0, 2))):
        other = draw(local_patterns() | global_sets)
        side = draw(st.sampled_from(["left", "right"]))
        pattern = pattern | other if side == "left" else other | pattern
        head_patterns = [x | other if side == "left" else other | x for x in head_patterns]
    if draw(st.booleans()):
        pattern, head_patterns = pattern & Causal(), [x & Causal() for x in head_patterns]
    return pattern, head_patterns


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3).flatmap(per_head_patterns), st.integers(1, 24))
def test_each_head_has_its_own_mask_and_count(case, T):
    pattern, head_patterns = case
    expected = [
        [[contains_pair(x, q, kv) for kv in range(T)] for q in range(T)] for x in head_patterns
    ]
    assert pattern.heads == len(head_patterns)
    assert pattern.dense(T).tolist() == expected
    counts = tuple(sum(map(sum, mask)) for mask in expected)
    assert pattern.pairs(T) == (counts if len(head_patterns) > 1 else counts[0])
    assert len(head_patterns) == 1 or pattern.each == tuple(head_patterns)
    assert pattern.causal == head_patterns[0].causal
    assert pattern.layout.globals == head_patterns[0].layout.globals


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 3).flatmap(per_head_patterns), st.integers(0, 60))
def test_later_queries_reach_no_key_before_earliest(case, start):
    pattern, _ = case
    T, first = start + 30, pattern.earliest(start)
    keys = [n for n in range(first) if n not in pattern.layout.globals]
    rows = [n for n in range(start, T) if n not in pattern.layout.globals]
    assert not pattern.dense(T)[:, rows][:, :, keys].any()


def test_earliest_is_near_the_reach_of_the_farthest_head():
    pattern = PerHead((Window(3), Window(3, dilation=5), BlockWindow(10)))
    assert pattern.earliest(10_000) == 10_000 - 5 * 3
    assert (Window(7) | Global((0, 3))).earliest(10_000) == 10_000 - 7


def assert_kernel_equals_masked_softmax(pattern, T, masked, ragged, seed):
    """Compare outputs and gradients of the block kernel with masked softmax."""
    inputs, key_mask, global_mask, dense = build_case(pattern, T, masked, ragged, seed)
    inputs = [x.requires_grad_() for x in inputs]
    x = Inputs(*inputs, key_mask, global_mask=global_mask)
    actual = pattern_attention(x, pattern)
    expected = softmax_reference(*inputs, dense)
    actual, expected = zero_padded_rows(actual, key_mask), zero_padded_rows(expected, key_mask)
    assert_near(actual, expected, "output")
    no_parameters = nn.Module()
    pairs = zip(
        gradients(actual, inputs, no_parameters),
        gradients(expected, inputs, no_parameters),
        strict=True,
    )
    for x, y in pairs:
        assert_near(x, y, "gradient")


@settings(max_examples=50, deadline=None)
@given(
    per_head_patterns(2), st.integers(1, 120), st.booleans(), st.booleans(), st.integers(0, 1000)
)
def test_block_kernel_equals_masked_softmax_with_different_heads(case, T, masked, ragged, seed):
    assert_kernel_equals_masked_softmax(case[0], T, masked, ragged, seed)


def test_heads_keep_their_order():
    inputs = qkv(40, H=6)
    head_patterns = (Window(1), Window(4), Window(1), Window(2, dilation=3), Window(4), Window(1))
    out = pattern_attention(Inputs(*inputs), PerHead(head_patterns))
    for head, pattern in enumerate(head_patterns):
        x = Inputs(*(x[:, head : head + 1] for x in inputs))
        alone = pattern_attention(x, pattern)
        assert_near(out[:, head : head + 1], alone, f"head {head}")


def test_single_pattern_applies_to_any_number_of_heads():
    inputs = qkv(40)
    out = pattern_attention(Inputs(*inputs), PerHead((Window(3),)))
    assert_near(out, pattern_attention(Inputs(*inputs), Window(3)), "output")


def test_per_head_patterns_combine_head_by_head():
    heads = PerHead((Window(1), Window(2)))
    assert heads | PerHead((Window(3), Window(4))) == PerHead(
        (Window(1) | Window(3), Window(2) | Window(4))
    )
    assert (Window(5) & heads).patterns == (Window(5) & Window(1), Window(5) & Window(2))
    assert PerHead((Window(7),)) | heads == PerHead((Window(7) | Window(1), Window(7) | Window(2)))
    assert len({heads, PerHead((Window(1), Window(2)))}) == 1
    assert PerHead((BlockWindow(4), BlockWindow(6))).period == 12


@settings(max_examples=60, deadline=None)
@given(random_patterns(with_globals=False), st.integers(1, 60))
def test_mask_is_invariant_to_shifts_by_the_period(pattern, T):
    p = pattern.period
    assert torch.equal(pattern.dense(T + p)[:, p:, p:], pattern.dense(T))


def build_case(pattern, T, masked, ragged, seed):
    """Return inputs as mechanisms pass them (zero where masked), masks, and the dense mask."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = qkv(T, B=2, H=2, D=4, E=3, seed=seed)
    dense, key_mask, global_mask = pattern.dense(T), None, None
    if masked:
        key_mask = torch.rand(2, T, generator=g) < 0.7
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (k, v))
    if ragged:
        global_mask = torch.rand(2, T, generator=g) < torch.tensor([[0.2], [0.05]])
        real = global_mask if key_mask is None else global_mask & key_mask
        global_pairs = real[:, None, :, None] | real[:, None, None, :]
        dense = dense | (global_pairs.tril() if pattern.causal else global_pairs)
    dense = dense.expand(2, pattern.heads, T, T)
    if masked:
        dense = dense & key_mask[:, None, None, :]
    return (q, k, v), key_mask, global_mask, dense


def zero_padded_rows(out, key_mask):
    """Zero padded rows: mask and kernel differ at padded global positions."""
    return out if key_mask is None else out.masked_fill(~key_mask[:, None, :, None], 0)


@settings(max_examples=200, deadline=None)
@given(random_patterns(), st.integers(1, 150), st.booleans(), st.booleans(), st.integers(0, 1000))
@example(Window(2, dilation=4) & BlockWindow(5, 4), 50, False, False, 0)
@example(Window(2, dilation=4) | BlockWindow(5, 4), 50, False, False, 0)
def test_block_kernel_equals_masked_softmax(pattern, T, masked, ragged, seed):
    assert_kernel_equals_masked_softmax(pattern, T, masked, ragged, seed)


TWO = PerHead((Window(1), Window(2)))
LARGE = [
    Window(70),
    Window(40, 3, dilation=3),
    Window(9, dilation=60),
    BlockWindow(48, 100),
    (Window(33) | Global((0, 5, 200))) & Causal(),
    Window(40, dilation=2) | Window(3, dilation=2) | Global((31, 32, 33)),
    Window(8, dilation=4) | BlockWindow(10, 3),
    Window(8, dilation=3) & BlockWindow(10, 30),
    Global((7,)) | BlockWindow(10) | Window(2, dilation=3),
    Window(100, 0) & Window(7, 90),
]


@pytest.mark.parametrize("pattern", LARGE, ids=str)
@pytest.mark.parametrize("T", [31, 97, 260])
def test_block_kernel_equals_masked_softmax_over_many_blocks(pattern, T):
    for ragged in (False, True):
        inputs, _, global_mask, dense = build_case(pattern, T, False, ragged, T)
        actual = pattern_attention(Inputs(*inputs, global_mask=global_mask), pattern)
        assert_near(actual, softmax_reference(*inputs, dense), f"ragged globals {ragged}")


@pytest.mark.parametrize("pattern", LARGE, ids=str)
def test_work_is_linear_in_length(pattern):
    flops = []
    for T in (4096, 16384):
        with flop_counter() as counter:
            pattern_attention(Inputs(*qkv(T, B=1, H=1, D=4)), pattern)
        flops.append(counter.get_total_flops())
    assert flops[1] <= 1.1 * 4 * flops[0]


def test_union_of_equal_dilations_is_dilated_but_not_with_blocks():
    same_dilation = Window(40, dilation=2) | Window(3, dilation=2) | Global((31, 32))
    assert (same_dilation.layout.dilation, same_dilation.layout.left) == (2, 40)
    assert (same_dilation & Causal()).layout.dilation == 2
    with_blocks = Window(40, dilation=2) | BlockWindow(10)
    assert (with_blocks.layout.dilation, with_blocks.layout.left) == (1, 80)
    assert with_blocks.layout.block % 10 == 0


def test_drawing_shows_the_mask():
    pattern = (Window(2) | Global((3,))) & Causal()
    cells = [[cell == "█" for cell in line] for line in pattern.draw(9).split("\n")]
    assert cells == pattern.dense(9)[0].tolist()


def test_svg_has_a_square_for_each_pair():
    pattern, space = BlockWindow(4, 1) | Global((0,)), "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(pattern.svg(10))
    squares = root.find(f"{space}g").findall(f"{space}rect")
    assert {(int(x.get("y")), int(x.get("x"))) for x in squares} == {
        tuple(pair) for pair in pattern.dense(10)[0].nonzero().tolist()
    }
    assert root.find(f"{space}title").text == f"{pattern}, 10 positions"


def test_patterns_are_hashable_values():
    assert Window(3) | Global((0,)) == Window(3) | Global((0,))
    assert len({Window(3), Window(3), Window(4)}) == 2


def test_module_examples_are_correct():
    assert doctest.testmod(patterns).attempted >= 3
    assert doctest.testmod(patterns).failed == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(-1), r"sizes >= 0 and dilation >= 1, got Window\(left=-1"),
        (lambda: Window(2, -1), r"sizes >= 0 and dilation >= 1, got Window\(left=2, right=-1"),
        (lambda: Window(2, dilation=0), r"dilation >= 1, got .*dilation=0"),
        (lambda: BlockWindow(4, 0, -1), r"block >= 1 and overlap >= 0, got .*right=-1"),
        (lambda: BlockWindow(0), r"block >= 1 and overlap >= 0, got BlockWindow\(block=0"),
        (lambda: BlockWindow(4, -1), r"block >= 1 and overlap >= 0, got .*overlap=-1"),
        (lambda: Global(()), r"distinct and >= 0, got \(\)"),
        (lambda: Global((1, -1)), r"distinct and >= 0, got \(1, -1\)"),
        (lambda: Global((1, 1)), r"distinct and >= 0, got \(1, 1\)"),
        (lambda: Causal().layout, r"combine it: Window\(64\) & Causal\(\)"),
        (lambda: (Causal() & Window(1)).layout, r"combine it: Window\(64\) & Causal\(\)"),
        (lambda: ((Global((0,)) & Causal()) | Window(2)).layout, r"\(a \| b\) & Causal\(\)"),
        (lambda: ((Global((0,)) | Window(2)) & Window(9)).layout, r"with Causal\(\) only"),
        (lambda: (Window(9) & (Global((0,)) | Window(2))).layout, r"with Causal\(\) only"),
        (lambda: PerHead(()), r"one pattern for each head, got \(\)"),
        (lambda: PerHead((Window(1), TWO)), r"one pattern for each head, got \(Window"),
        (lambda: Either(Window(1), TWO), r"must be combined with \|"),
        (lambda: Both(TWO, Causal()), r"must be combined with \|"),
        (lambda: TWO | PerHead((Window(1),) * 3), "of 2 and 3 heads cannot be combined"),
        (lambda: PerHead((Window(1) | Global((0,)), Window(1))).layout, "same fixed global"),
        (lambda: PerHead((Window(1) & Causal(), Window(1))), "all heads or none must be causal"),
    ],
)
def test_invalid_patterns_are_rejected(make, message):
    with pytest.raises(OptionError, match=message):
        make()
