"""Generator of copying: format, positions of the symbols, and dependence on the seed."""

from functools import partial

import numpy as np
import pytest
from synthetic_streams import draw

from longspan.tasks.synthetic.copying import MARKER, CopyingOptions

USUAL = {"length": 32, "count": 4, "symbols": 8, "noise": 1, "together": False, "depth": None}


def settings(**change):
    return CopyingOptions(**{**USUAL, **change})


drawn = partial(draw, "copying")


def places(shape, tokens):
    """Return the positions of the symbols, (rows, count)."""
    rows, columns = np.nonzero(tokens >= 2 + shape.noise)
    assert (np.bincount(rows, minlength=len(tokens)) == shape.count).all()
    return columns.reshape(-1, shape.count)


SETTINGS = [
    settings(),
    settings(noise=5),
    settings(length=9, count=4, symbols=1),
    settings(length=8, count=4),
    settings(together=True),
    settings(together=True, depth=0.0),
    settings(together=True, depth=1, noise=3),
    settings(count=1, depth=0.5, noise=40, symbols=200),
    settings(count=1, length=2),
]


@pytest.mark.parametrize("shape", SETTINGS, ids=str)
def test_targets_are_the_symbols_in_order(shape):
    tokens, targets = drawn(shape, 600)
    assert tokens.shape == targets.shape == (600, shape.length)
    first, markers = 2 + shape.noise, shape.length - shape.count
    for row, wanted in zip(tokens.astype(int), targets.astype(int), strict=True):
        assert list(wanted[markers:]) == [x - first + 1 for x in row[:markers] if x >= first]
    assert not targets[:, :markers].any()
    assert (tokens[:, markers:] == MARKER).all()
    assert tokens.min() >= 1
    assert MARKER not in tokens[:, :markers]
    assert tokens.max() < shape.vocabulary == first + shape.symbols


@pytest.mark.parametrize(
    ("depth", "start"), [(0, 0), (0.0, 0), (1, 24), (1.0, 24), (0.5, 12), (0.021, 1), (0.02, 0)]
)
def test_depth_sets_the_position_of_the_symbols(depth, start):
    shape = settings(together=True, depth=depth)
    assert (places(shape, drawn(shape, 300)[0]) == start + np.arange(4)).all()


def test_depth_of_one_symbol_does_not_need_together():
    shape = settings(count=1, depth=0.25)
    assert (places(shape, drawn(shape, 300)[0]) == 8).all()


def even(counts):
    mean = counts.mean()
    return (np.abs(counts - mean) < 5 * np.sqrt(mean)).all()


def test_positions_are_uniform():
    scattered, block = settings(length=12, count=3), settings(length=12, count=3, together=True)
    found = places(scattered, drawn(scattered, 30_000)[0])
    sets = np.unique(found, axis=0, return_counts=True)
    assert len(sets[0]) == 84  # 9 choose 3
    assert even(sets[1])
    found = places(block, drawn(block, 10_000)[0])
    assert (np.diff(found) == 1).all()
    assert even(np.bincount(found[:, 0], minlength=7))
    assert found[:, 0].max() == 6


def test_symbols_and_filler_are_uniform_and_independent_of_position():
    shape = settings(noise=6)
    tokens, targets = drawn(shape, 10_000)
    for column in (28, 31):
        assert even(np.bincount(targets[:, column] - 1, minlength=8))
    for column in (0, 27):
        filler = tokens[:, column][tokens[:, column] < 8] - 2
        assert even(np.bincount(filler, minlength=6))
    pairs = (targets[:, 28] - 1) * 8 + targets[:, 29] - 1
    assert even(np.bincount(pairs, minlength=64))
