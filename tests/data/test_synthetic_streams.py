"""Contract of the streams of synthetic examples: seeds, prefixes, digests."""

import hashlib

import numpy as np
import pytest
from synthetic_streams import chunks, draw

from longspan.tasks.synthetic.copying import CopyingOptions
from longspan.tasks.synthetic.recall import RecallOptions

# Options, and the digest of 600 examples.
CASES = {
    "recall": (
        RecallOptions(length=64, pairs=4, queries=4, vocabulary=64, power=0.01, noise=True),
        "4c7377e1d6e37087cb05a2aa0a927773bcc504b35b34f5f62f978335d4963253",
    ),
    "copying": (
        CopyingOptions(length=32, count=4, symbols=8, noise=5),
        "28bf782b5da5b1ce17821fd83d99fcd530c35e4c8a6c4708d89c9c8dc144e223",
    ),
}
every_generator = pytest.mark.parametrize("name", CASES)


@every_generator
def test_longer_stream_begins_with_the_shorter(name):
    shape, _ = CASES[name]
    for one, other in zip(draw(name, shape, 300), draw(name, shape, 1_000), strict=True):
        assert np.array_equal(one, other[:300])


@every_generator
def test_examples_depend_on_seed_and_stream_but_not_on_the_global_seed(name):
    shape, _ = CASES[name]
    first = draw(name, shape, 600)[0]
    np.random.seed(1)
    assert np.array_equal(draw(name, shape, 600)[0], first)
    for change in ({"seed": 1}, {"stream": "test"}):
        other = draw(name, shape, 600, **change)[0]
        assert not set(map(bytes, other)) & set(map(bytes, first))
    # chunks do not repeat
    assert len(set(map(bytes, first))) == 600


@every_generator
def test_stream_is_the_same_in_every_version(name):
    """If a digest changes, the data has changed: raise the version of the task."""
    shape, expected = CASES[name]
    arrays = (array for chunk in chunks(name, shape, 600) for array in chunk)
    assert hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest() == expected
