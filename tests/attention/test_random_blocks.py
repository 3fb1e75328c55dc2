"""Random blocks: draws, pairs and pair counts."""

import itertools
from collections import Counter

import pytest
import torch

from longspan.attention.patterns import BlockWindow, Global, RandomBlocks
from longspan.attention.patterns.random import BITS, draw_distinct
from longspan.errors import OptionError

CHOSEN = ((2, 0), (), (1,), (0, 3))


def test_mask_equals_listed_blocks_and_pairs_counts_it():
    pattern = RandomBlocks(3, CHOSEN)
    for T in (1, 2, 5, 9, 11, 12, 20):
        dense = pattern.dense(T)
        listed = [[t // 3 < 4 and s // 3 in CHOSEN[t // 3] for s in range(T)] for t in range(T)]
        assert dense[0].tolist() == listed
        assert pattern.pairs(T) == int(dense.sum())


def test_union_with_other_patterns_equals_union_of_masks():
    pattern = BlockWindow(3, 3) | Global((0,)) | RandomBlocks(3, CHOSEN)
    parts = [x.dense(12) for x in (BlockWindow(3, 3), Global((0,)), RandomBlocks(3, CHOSEN))]
    assert torch.equal(pattern.dense(12), parts[0] | parts[1] | parts[2])
    assert pattern.draw(12).count("█") == int(pattern.dense(12).sum())


def test_seed_determines_the_blocks():
    before = torch.get_rng_state()
    first, again, other = (RandomBlocks.seeded(4, 3, 10, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other
    assert len({first, again, other}) == 2
    assert all(len(set(row)) == 3 and set(row) <= set(range(10)) for row in first.key_blocks)
    assert {len(row) for row in RandomBlocks.seeded(4, 7, 5, 0).key_blocks} == {5}


def test_draws_choose_every_subset_equally_often():
    """Enumerate pairs of draws on a grid whose size is a multiple of the number of choices."""
    steps = [-(-n * 2**BITS // 12) for n in range(12)]
    found = Counter(
        frozenset(draw_distinct(pair, range(4))) for pair in itertools.product(steps, steps)
    )
    assert found == {frozenset(pair): 24 for pair in itertools.combinations(range(4), 2)}


def test_draws_are_distinct_and_exhaust_the_choices():
    high = 2**BITS - 1
    assert draw_distinct([0, 0, 0], range(5)) == (0, 3, 4)
    assert draw_distinct([high, high, high], range(5)) == (2, 3, 4)
    assert draw_distinct([5, high, 0], [7, 9]) == (7, 9)
    assert draw_distinct([], [7, 9]) == draw_distinct([7, 7], []) == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomBlocks(0, ()), "block must be >= 1, got 0"),
        (lambda: RandomBlocks(4, ((1,), (2, 2))), r"row 1 must list distinct blocks >= 0, got"),
        (lambda: RandomBlocks(4, ((-1,),)), r"row 0 must list distinct blocks >= 0, got \(-1,\)"),
        (lambda: RandomBlocks(4, CHOSEN).layout, "no block layout"),
        (lambda: (BlockWindow(4) | RandomBlocks(4, CHOSEN)).layout, "no block layout"),
        (lambda: RandomBlocks(4, CHOSEN).period, "no period"),
    ],
)
def test_invalid_blocks_and_unsupported_properties_are_rejected(make, message):
    with pytest.raises(OptionError, match=message):
        make()
