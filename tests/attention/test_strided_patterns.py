"""Factorized patterns and patterns per head: definition, pair count and errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attention.patterns import BlockWindow, Causal, Fixed, PerHead, Strided, Window
from longspan.errors import OptionError

# Runtime type checks use `random`; the strategies do not.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


@st.composite
def factorized_patterns(draw):
    stride, local = draw(st.integers(1, 12)), draw(st.booleans())
    pattern = Strided(stride, local)
    if draw(st.booleans()):
        summary = draw(st.integers(1, stride))
        group = draw(st.integers(0, stride // summary - 1))
        pattern = Fixed(stride, summary, local, group)
    return pattern & Causal() if draw(st.booleans()) else pattern


def contains_pair(pattern, i, j):
    """Return whether i attends to j, by the definition in section 4.3."""
    stride = pattern.stride
    if pattern.causal and j > i:
        return False
    if isinstance(pattern, Strided):
        return abs(i - j) % stride == 0 or (pattern.local and abs(i - j) < stride)
    last = stride - pattern.group * pattern.summary
    column = j % stride in range(last - pattern.summary, last)
    return column or (pattern.local and i // stride == j // stride)


@settings(max_examples=150, deadline=None)
@given(factorized_patterns(), st.integers(1, 50))
def test_mask_equals_definition_and_pairs_counts_it(pattern, T):
    expected = [[contains_pair(pattern, i, j) for j in range(T)] for i in range(T)]
    assert pattern.dense(T)[0].tolist() == expected
    assert pattern.pairs(T) == sum(map(sum, expected))


def test_causal_pair_counts_equal_the_paper():
    T, stride, summary = 100_003, 300, 8
    strided = sum(min(i + 1, stride) + i // stride for i in range(T))
    assert (Strided(stride) & Causal()).pairs(T) == strided
    fixed = sum(i % stride + 1 + summary * (i // stride) for i in range(T))
    assert (Fixed(stride, summary) & Causal()).pairs(T) == fixed


def test_causal_pattern_equals_constructor_with_causal():
    assert Strided(4) & Causal() == Strided(4, causal=True)
    assert Fixed(4, 1, False) & Causal() == Fixed(4, 1, False, causal=True)
    assert (Strided(4) & Causal()).causal
    assert not Strided(4).causal
    both = Strided(4) & BlockWindow(8)
    assert torch.equal(both.dense(20), Strided(4).dense(20) & BlockWindow(8).dense(20))


@settings(max_examples=40, deadline=None)
@given(factorized_patterns(), st.integers(1, 30))
def test_mask_is_invariant_to_shifts_by_the_period(pattern, T):
    p = pattern.period
    assert torch.equal(pattern.dense(T + p)[:, p:, p:], pattern.dense(T))


def test_each_head_has_its_given_pattern():
    head_patterns = (Window(3), Strided(4), Window(3), Fixed(5, 2))
    pattern = PerHead(head_patterns)
    assert pattern.heads == 4
    assert not pattern.causal
    assert torch.equal(pattern.dense(23), torch.cat([x.dense(23) for x in head_patterns]))
    assert pattern.pairs(23) == tuple(x.pairs(23) for x in head_patterns)
    causal = pattern & Causal()
    assert causal.causal
    assert torch.equal(causal.dense(23), pattern.dense(23).tril())
    assert causal.pairs(23) == tuple(int(x.sum()) for x in pattern.dense(23).tril())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Strided(0), r"stride >= 1, got Strided\(.*stride=0"),
        (lambda: Fixed(0, 1), r"stride >= 1, .* got Fixed\(.*stride=0"),
        (lambda: Fixed(4, 0), r"summary >= 1, .* got .*summary=0"),
        (lambda: Fixed(4, 1, group=-1), r"group >= 0 .* got .*group=-1"),
        (lambda: Fixed(4, 2, group=2), r"\(group \+ 1\) \* summary <= stride, got Fixed"),
        (lambda: Strided(4).layout, r"Strided\(.*stride=4.* has no block layout"),
        (lambda: (Window(2) | Fixed(4, 1)).layout, r"Fixed\(.*stride=4.* has no block layout"),
        (lambda: PerHead(()), r"one pattern for each head, got \(\)"),
        (lambda: PerHead((PerHead((Window(1), Window(2))),)), r"one pattern for each head"),
    ],
)
def test_invalid_patterns_are_rejected(make, message):
    with pytest.raises(OptionError, match=message):
        make()
