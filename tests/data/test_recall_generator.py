"""Generator of associative recall: format, distributions, and dependence on the seed."""

import itertools
from functools import partial

import numpy as np
import pytest
from synthetic_streams import draw

from longspan.tasks.synthetic.recall import BLANK, RecallOptions

USUAL = {"length": 64, "pairs": 4, "queries": 4, "vocabulary": 64, "power": 0.01, "noise": False}


def settings(**change):
    return RecallOptions(**{**USUAL, **change})


drawn = partial(draw, "recall")


def answers(shape, tokens):
    """Find the class of each query position by reading the example."""
    half = shape.vocabulary // 2
    bound, queried = {}, {}
    for place, token in enumerate(int(token) for token in tokens):
        if place < 2 * shape.pairs:
            if place % 2:
                bound[int(tokens[place - 1])] = token - half
        elif token in bound:
            queried[place] = bound[token]
    return queried


SETTINGS = [
    settings(),
    settings(noise=True),
    settings(length=17, pairs=1, queries=7, vocabulary=8, noise=True),
    settings(length=41, pairs=8, queries=3, vocabulary=20),
    settings(length=48, pairs=5, queries=19, vocabulary=14, power=1.0),
    settings(length=300, pairs=60, queries=60, vocabulary=8192, power=0.0, noise=True),
]


@pytest.mark.parametrize("shape", SETTINGS, ids=str)
def test_every_answer_is_the_value_bound_to_the_query(shape):
    tokens, targets = drawn(shape, 300)
    assert tokens.shape == targets.shape == (300, shape.length)
    for row, wanted in zip(tokens, targets, strict=True):
        queried = answers(shape, row)
        assert len(queried) == shape.queries
        assert {place: int(wanted[place]) - 1 for place in np.nonzero(wanted)[0]} == queried


@pytest.mark.parametrize("shape", SETTINGS, ids=str)
def test_no_value_occurs_after_the_pairs(shape):
    tokens, _ = drawn(shape, 500)
    half, head = shape.vocabulary // 2, 2 * shape.pairs
    keys, values, rest = tokens[:, 0:head:2], tokens[:, 1:head:2], tokens[:, head:]
    assert keys.min() >= 2
    assert keys.max() < half <= values.min()
    assert values.max() < shape.vocabulary
    assert rest.min() >= 1
    assert rest.max() < half
    assert (rest != BLANK).all() == shape.noise
    for one in (keys, values):
        assert all(len(set(row)) == shape.pairs for row in one.tolist())


@pytest.mark.parametrize("shape", SETTINGS, ids=str)
def test_queries_are_spread_evenly_over_the_pairs(shape):
    tokens, targets = drawn(shape, 300)
    places = [np.nonzero(row)[0] for row in targets]
    assert all(((place - 2 * shape.pairs) % 2 == 0).all() for place in places)
    for row, place in zip(tokens, places, strict=True):
        counts = np.bincount([list(row[: 2 * shape.pairs : 2]).index(row[p]) for p in place])
        counts = np.pad(counts, (0, shape.pairs - len(counts)))
        assert counts.max() - counts.min() <= 1


def inclusion(weights, count):
    """Compute the exact probability that weighted sampling without replacement picks each slot."""
    found = np.zeros(len(weights))
    for order in itertools.permutations(range(len(weights)), count):
        left, chance = weights.sum(), 1.0
        for place in order:
            chance *= weights[place] / left
            left -= weights[place]
        found[list(order)] += chance
    return found


@pytest.mark.parametrize("power", [0.0, 0.01, 0.5, 1.0])
def test_slots_follow_the_power_law_without_replacement(power):
    shape = settings(length=16, pairs=3, queries=3, vocabulary=16, power=power)
    _, targets = drawn(shape, 20_000)
    observed = (targets[:, 6::2] > 0).mean(0)
    exact = inclusion(np.arange(1, 6) ** (power - 1.0), 3)
    error = np.sqrt(exact * (1 - exact) / 20_000)
    assert (np.abs(observed - exact) < 4.5 * error + 1e-12).all()


def test_keys_values_filler_and_queried_pairs_are_uniform():
    shape = settings(length=32, pairs=4, queries=2, vocabulary=24, noise=True)
    tokens, targets = drawn(shape, 20_000)
    rest = tokens[:, 8:][targets[:, 8:] == 0]
    place = (tokens[:, 0:8:2, None] == tokens[:, None, 8:]) & (targets[:, None, 8:] > 0)
    tallies = {
        "key by place": [np.bincount(tokens[:, p] - 2, minlength=10) for p in (0, 6)],
        "value by place": [np.bincount(tokens[:, p] - 12, minlength=12) for p in (1, 7)],
        "filler": [np.bincount(rest - 2, minlength=10)],
        "queried pair": [place.sum((0, 2))],
    }
    for name, counts in tallies.items():
        for count in counts:
            mean = count.mean()
            assert (np.abs(count - mean) < 5 * np.sqrt(mean)).all(), name


@pytest.mark.parametrize("change", [{"vocabulary": 12}, {"length": 16}, {"vocabulary": 65_536}])
def test_remedy_of_an_error_is_sufficient(change):
    tokens, _ = drawn(settings(**change), 10)
    assert tokens.max() < settings(**change).vocabulary
