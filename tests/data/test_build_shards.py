"""A part is read as it was made, or made again."""

import numpy as np
import pytest

from longspan.data.build_shards import BuildShards
from longspan.errors import RunError

SEEDS = (3, 7)


class Maker:
    """Makes small arrays of two kinds and counts how often."""

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


def test_a_part_is_made_once_and_then_read(tmp_path):
    makers = {seed: Maker(seed) for seed in SEEDS}
    for _ in range(3):
        for number, seed in enumerate(SEEDS):
            same(BuildShards(tmp_path / "parts").made(number, makers[seed]), Maker(seed)())
    assert [maker.calls for maker in makers.values()] == [1, 1]


def test_parts_may_come_in_any_order(tmp_path):
    for number in (5, 0, 999_999):
        BuildShards(tmp_path).made(number, Maker(number))
    for number in (0, 5, 999_999):
        maker = Maker()
        same(BuildShards(tmp_path).made(number, maker), Maker(number)())
        assert maker.calls == 0


@pytest.fixture
def part(tmp_path):
    """The file of a part, its bytes, and a function that reads or makes it."""
    BuildShards(tmp_path).made(1, Maker())
    (path,) = tmp_path.iterdir()

    def again():
        maker = Maker()
        same(BuildShards(tmp_path).made(1, maker), Maker()())
        assert [one.name for one in tmp_path.iterdir()] == [path.name]
        return maker.calls

    return path, path.read_bytes(), again


def test_a_part_cut_anywhere_is_made_again(part):
    path, content, again = part
    for length in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        assert again() == 1
        assert again() == 0


def test_a_part_with_one_bit_changed_anywhere_is_made_again(part):
    path, content, again = part
    for place in range(0, len(content), 5):
        spoilt = bytearray(content)
        spoilt[place] ^= 1 << place % 8
        path.write_bytes(spoilt)
        assert again() == 1


def test_what_a_killed_write_left_is_no_part(part):
    path, _, _ = part
    path.rename(path.with_name(f".{path.name}.0a1b2c3d"))
    maker = Maker()
    BuildShards(path.parent).made(1, maker)
    assert maker.calls == 1


def test_objects_are_not_kept(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle=False"):
        BuildShards(tmp_path).made(1, lambda: {"x": np.array([{}])})
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_the_maker_leaves_nothing(tmp_path):
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BuildShards(tmp_path / "parts").made(1, fail)
    assert not (tmp_path / "parts").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(small_disk):
    folder = small_disk / "parts"
    noise = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    with pytest.raises(RunError, match=r"cannot write .*part-000001.*No space left.*; free space"):
        BuildShards(folder).made(1, lambda: {"x": noise})
    assert list(folder.iterdir()) == []
    folder.rmdir()
