"""The option that a mechanism names as its size_option exists, is a number, and buys something."""

import pytest

from longspan.attention import MECHANISMS, build, options_of

SIZE_OPTIONS = {
    name: cls.size_option for name, cls in MECHANISMS.items() if cls.size_option is not None
}
T = 2048


def reach(name, size):
    """Pairs of one head, or operations where there are none to count."""
    options = {**MECHANISMS[name].small_options, SIZE_OPTIONS[name]: size}
    attention = build(name, heads=2, head_dim=8, max_length=T, **options)
    pairs = attention.pairs(T)
    pairs = attention.flops(T, 8) if pairs is None else pairs
    return sum(pairs) if isinstance(pairs, tuple) else pairs


@pytest.mark.parametrize("name", sorted(SIZE_OPTIONS))
def test_a_size_option_is_an_option_that_takes_whole_numbers(name):
    assert SIZE_OPTIONS[name] in options_of(name)
    assert build(name, heads=2, head_dim=8, max_length=T, **{SIZE_OPTIONS[name]: 16}) is not None


@pytest.mark.parametrize("name", sorted(SIZE_OPTIONS))
def test_a_larger_size_reaches_further(name):
    """From the square root of the length on: sizes below it may make many small pieces."""
    reached = [reach(name, size) for size in (64, 128, 256, 512)]
    assert reached == sorted(reached)
    assert len(set(reached)) == 4


@pytest.mark.parametrize("name", sorted(MECHANISMS.keys() - SIZE_OPTIONS))
def test_without_a_size_option_there_is_no_number_to_choose(name):
    assert not [x for x in options_of(name).values() if isinstance(x, int) and x is not True]
