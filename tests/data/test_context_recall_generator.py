"""Generator of recall in context: examples read by an independent parser, and its distributions."""

import itertools
from functools import partial

import numpy as np
import pytest
from synthetic_streams import draw

from longspan.tasks.synthetic.context_recall import (
    BLANK,
    ContextRecallOptions,
    FuzzyRecallOptions,
    NoisyRecallOptions,
)

drawn = partial(draw, "in_context_recall")
SHAPES = [
    ContextRecallOptions(),
    NoisyRecallOptions(),
    FuzzyRecallOptions(),
    ContextRecallOptions(length=3, keys=1, values=1),
    ContextRecallOptions(length=50, keys=3, values=4, key_size=3, value_size=2),
    FuzzyRecallOptions(length=11),
    NoisyRecallOptions(length=63, key_size=2, value_size=3, noise_share=0.9, noise=1),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def kind(shape, token):
    """Return "blank", "key", "value" or "noise"."""
    if token == BLANK:
        return "blank"
    bounds = shape.first_value, shape.first_noise, shape.vocabulary
    return ("key", "value", "noise")[sum(token >= x for x in bounds)]


def parse(shape, tokens):
    """Return the pairs of an example with the position of the value, and its other runs."""
    runs = [
        (x, list(y)) for x, y in itertools.groupby(enumerate(tokens), lambda x: kind(shape, x[1]))
    ]
    pairs, others = [], []
    while runs:
        name, run = runs.pop(0)
        if name != "key":
            others.append((name, run))
            continue
        following, value = runs.pop(0)
        assert following == "value"
        pairs.append((tuple(x for _, x in run), value[0][0], tuple(x for _, x in value)))
    return pairs, others


@every_shape
@pytest.mark.parametrize("stream", ["train", "test"])
def test_values_of_keys_that_occurred_before_are_scored(shape, stream):
    for tokens, targets in zip(*drawn(shape, 256, stream=stream), strict=True):
        assert targets[-1]
        whole = [*tokens.tolist(), int(targets[-1]) - 1]
        pairs, others = parse(shape, whole)
        assert all(name in ("blank", "noise") for name, _ in others)
        blanks = [x for name, run in others if name == "blank" for x, _ in run]
        assert blanks == list(range(len(blanks)))
        assert len(blanks) < shape.key_size + shape.value_size
        values, scored = {}, {}
        for key, position, value in pairs:
            assert len(set(key)) == len(key) <= shape.key_size
            assert len(set(value)) == len(value) <= shape.value_size
            if key in values:
                assert values[key] == value
                # A token is scored where the one before it is read.
                scored |= {position - 1 + i: x + 1 for i, x in enumerate(value)}
            values[key] = value
        assert {i: x for i, x in enumerate(targets.tolist()) if x} == scored


def test_held_out_keys_have_the_largest_size_and_training_keys_any():
    shape = FuzzyRecallOptions()
    sizes = {}
    for stream in ("train", "validation"):
        rows = drawn(shape, 256, stream=stream)
        wholes = [[*x.tolist(), int(y[-1]) - 1] for x, y in zip(*rows, strict=True)]
        found = [len(key) for x in wholes for key, _, _ in parse(shape, x)[0]]
        sizes[stream] = np.bincount(found, minlength=4) / len(found)
    assert sizes["validation"].tolist() == [0, 0, 0, 1]
    assert np.abs(sizes["train"][1:] - 1 / 3).max() < 0.04


def test_noise_takes_its_share():
    tokens, _ = drawn(NoisyRecallOptions(), 512)
    share = (tokens >= NoisyRecallOptions().first_noise).mean()
    assert abs(share - 0.2) < 0.01  # of 64 pairs two are never noise


def test_every_pair_may_be_the_one_that_is_asked_for():
    """The keys are as many as the pairs are few, so the key asked for is bound once."""
    shape = ContextRecallOptions(length=33, keys=4_000, values=8)
    tokens, _ = drawn(shape, 4_096, stream="test")
    is_asked = tokens[:, :-1:2] == tokens[:, -1:]
    assert (is_asked.sum(1) >= 1).all()
    counts = np.bincount(is_asked.argmax(1), minlength=16)
    # The first place is half as likely as the others, as in the original.
    assert (counts[1:15] > 150).all()
    assert counts[0] > 60
