"""The factorized patterns and patterns per head: definition, count, and what they refuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attention.patterns import BlockWindow, Causal, Fixed, PerHead, Strided, Window
from longspan.errors import OptionError

# Checking shapes draws from `random`, which no strategy here does.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


@st.composite
def factorized(draw):
    stride, local = draw(st.integers(1, 12)), draw(st.booleans())
    pattern = Strided(stride, local)
    if draw(st.booleans()):
        summary = draw(st.integers(1, stride))
        group = draw(st.integers(0, stride // summary - 1))
        pattern = Fixed(stride, summary, local, group)
    return pattern & Causal() if draw(st.booleans()) else pattern


def naive(pattern, i, j):
    """Whether i may attend j: the words of section 4.3, in Python numbers."""
    stride = pattern.stride
    if pattern.causal and j > i:
        return False
    if isinstance(pattern, Strided):
        return abs(i - j) % stride == 0 or (pattern.local and abs(i - j) < stride)
    last = stride - pattern.group * pattern.summary
    column = j % stride in range(last - pattern.summary, last)
    return column or (pattern.local and i // stride == j // stride)


@settings(max_examples=150, deadline=None)
@given(factorized(), st.integers(1, 50))
def test_the_mask_is_the_definition_and_pairs_counts_it(pattern, T):
    expected = [[naive(pattern, i, j) for j in range(T)] for i in range(T)]
    assert pattern.dense(T)[0].tolist() == expected
    assert pattern.pairs(T) == sum(map(sum, expected))


def test_causal_rows_have_as_many_keys_as_the_paper_says():
    T, stride, summary = 100_003, 300, 8
    strided = sum(min(i + 1, stride) + i // stride for i in range(T))
    assert (Strided(stride) & Causal()).pairs(T) == strided
    fixed = sum(i % stride + 1 + summary * (i // stride) for i in range(T))
    assert (Fixed(stride, summary) & Causal()).pairs(T) == fixed


def test_the_first_place_of_a_block_is_no_column():
    assert not Fixed(8, 2, local=False).dense(32)[0, :, ::8].any()


def test_a_causal_pattern_stays_one_value():
    assert Strided(4) & Causal() == Strided(4, causal=True)
    assert Fixed(4, 1, False) & Causal() == Fixed(4, 1, False, causal=True)
    assert (Strided(4) & Causal()).causal
    assert not Strided(4).causal
    both = Strided(4) & BlockWindow(8)
    assert torch.equal(both.dense(20), Strided(4).dense(20) & BlockWindow(8).dense(20))


@settings(max_examples=40, deadline=None)
@given(factorized(), st.integers(1, 30))
def test_shifting_by_the_period_changes_nothing(pattern, T):
    p = pattern.period
    assert torch.equal(pattern.dense(T + p)[:, p:, p:], pattern.dense(T))


def test_heads_have_the_patterns_they_were_given():
    own = (Window(3), Strided(4), Window(3), Fixed(5, 2))
    pattern = PerHead(own)
    assert pattern.heads == 4
    assert not pattern.causal
    assert torch.equal(pattern.dense(23), torch.cat([x.dense(23) for x in own]))
    assert pattern.pairs(23) == tuple(x.pairs(23) for x in own)
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
def test_what_cannot_be_a_pattern_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()
