"""Contract of the streams of synthetic examples: seeds, prefixes, digests."""

import hashlib

import numpy as np
import pytest
from synthetic_streams import chunks, draw

from longspan.tasks.synthetic.compression import CompressionOptions
from longspan.tasks.synthetic.context_recall import FuzzyRecallOptions, NoisyRecallOptions
from longspan.tasks.synthetic.copying import CopyingOptions
from longspan.tasks.synthetic.duplication import DuplicationOptions
from longspan.tasks.synthetic.memorization import MemorizationOptions
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
    "noisy_recall": (
        NoisyRecallOptions(),
        "41f915156a1de1d3da20421f5661c74fe65b553e2ac43e0f3db9a29ddd4a8231",
    ),
    "fuzzy_recall": (
        FuzzyRecallOptions(),
        "ba98b0e207939e3454ff85bebce64ac822fa14f2a0d22160417f9ad0e9a04193",
    ),
    "compression": (
        CompressionOptions(),
        "238a396cf268bb7177b6161a2f1d37e48d1964216e3ab14c181ce50609508a3b",
    ),
    "duplication": (
        DuplicationOptions(length=64, symbols=10),
        "a4de20c16e85c7f7ae0c47c263493706654041688f828ab9ba839289e3537c01",
    ),
    "memorization": (
        MemorizationOptions(),
        "5ffe840f3b890ea017da67600dd2c2264b128c1b5fd8f1acad5c6540a5d34800",
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
