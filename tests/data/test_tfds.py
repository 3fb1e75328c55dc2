"""Order and slices of TensorFlow Datasets."""

import hashlib

import pytest

from longspan.tasks.lra.tfds import tfds_order, tfds_slices


def test_order_is_that_of_the_hash_of_split_and_key():
    """`Hasher` of TensorFlow Datasets returns the md5 as a number; its writers sort by it."""
    keys = [f"imgs/{n // 40}_sample_{n}.png_{n % 40 + 1}" for n in range(200)]
    hashes = [int(hashlib.md5(f"hard{key}".encode()).hexdigest(), 16) for key in keys]
    order = tfds_order("hard", keys).tolist()
    assert sorted(order) == list(range(200))
    assert [hashes[row] for row in order] == sorted(hashes)
    assert order != tfds_order("easy", keys).tolist()


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(200_000, [160_000, 20_000, 20_000]), (199_999, [159_999, 20_000, 20_000]), (5, [4, 0, 1])],
)
def test_slices_are_rounded_to_the_nearest_example(count, sizes):
    parts = [range(count)[part] for part in tfds_slices(count, 80, 90)]
    assert list(map(len, parts)) == sizes
    assert [n for part in parts for n in part] == list(range(count))
