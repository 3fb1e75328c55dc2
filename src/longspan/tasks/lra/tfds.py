"""Order and slices of TensorFlow Datasets, on which the splits of Long Range Arena are defined."""

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np


def tfds_order(split: str, keys: Sequence[str]) -> np.ndarray:
    """Return the rows in the order in which TensorFlow Datasets stores them, (N,) int64.

    It sorts the examples of a split by the md5 of the split's name followed by the example's key
    (https://github.com/tensorflow/datasets, core/hashing.py). Builders on Apache Beam have the same
    order: their buckets are ranges of the hash (core/tfrecords_writer.py, `BeamWriter`).

    Args:
        split: name of the split of the builder.
        keys: key of each example, as the builder yields it.
    """
    split_hash = hashlib.md5(split.encode(), usedforsecurity=False)
    hashes = []
    for key in keys:
        digest = split_hash.copy()
        digest.update(key.encode())
        hashes.append(digest.digest())
    return np.array(sorted(range(len(hashes)), key=hashes.__getitem__), np.int64)


def tfds_slices(count: int, *percentages: int) -> list[slice]:
    """Return the consecutive slices that end at these percentages, and the one after the last.

    A boundary is rounded to the nearest example, halves to even (core/tfrecords_reader.py,
    `_pct_to_abs_closest`).
    """
    bounds = [0, *(round(percentage * count / 100) for percentage in percentages), count]
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]
