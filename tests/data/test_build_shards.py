"""A shard is read as it was built, or rebuilt."""

from unittest.mock import Mock

import numpy as np
import pytest

from longspan.tasks.lra.generators.shards import get_or_build

SEEDS = (3, 7)


class Builder:
    """Builds small arrays of two types and counts its calls."""

    def __init__(self, seed=3):
        self.seed, self.calls = seed, 0

    def __call__(self):
        self.calls += 1
        draw = np.random.default_rng(self.seed)
        return {
            "tokens": draw.integers(0, 60_000, 5, np.uint16),
            "labels": draw.integers(0, 2, (2, 3), np.uint8),
        }


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        assert np.array_equal(array, other[name])


def test_shard_is_built_once_and_then_read(tmp_path):
    builders = {seed: Builder(seed) for seed in SEEDS}
    for _ in range(3):
        for number, seed in enumerate(SEEDS):
            same(get_or_build(tmp_path / "shards", number, builders[seed]), Builder(seed)())
    assert [builder.calls for builder in builders.values()] == [1, 1]


def test_shards_may_be_built_in_any_order(tmp_path):
    for number in (5, 0, 999_999):
        get_or_build(tmp_path, number, Builder(number))
    for number in (0, 5, 999_999):
        builder = Builder()
        same(get_or_build(tmp_path, number, builder), Builder(number)())
        assert builder.calls == 0


@pytest.fixture
def shard(tmp_path):
    """The file of a shard, its bytes, and a function that reads or rebuilds it."""
    get_or_build(tmp_path, 1, Builder())
    (path,) = tmp_path.iterdir()

    def again():
        builder = Builder()
        same(get_or_build(tmp_path, 1, builder), Builder()())
        assert [one.name for one in tmp_path.iterdir()] == [path.name]
        return builder.calls

    return path, path.read_bytes(), again


def test_truncated_shard_is_rebuilt(shard):
    path, content, again = shard
    for length in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        assert again() == 1
        assert again() == 0


def test_shard_with_one_changed_bit_is_rebuilt(shard):
    path, content, again = shard
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert again() == 1


def test_temporary_file_of_a_killed_write_is_ignored(shard):
    path, _, _ = shard
    path.rename(path.with_name(f".{path.name}.0a1b2c3d"))
    builder = Builder()
    get_or_build(path.parent, 1, builder)
    assert builder.calls == 1


def test_objects_are_not_stored(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle=False"):
        get_or_build(tmp_path, 1, lambda: {"x": np.array([{}])})
    assert list(tmp_path.iterdir()) == []


def test_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        get_or_build(tmp_path / "shards", 1, Mock(side_effect=KeyboardInterrupt))
    assert not (tmp_path / "shards").exists()
