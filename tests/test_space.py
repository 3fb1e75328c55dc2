"""Free memory and disk space."""

import shutil

import pytest

from longspan import space
from longspan.errors import NoMemoryError, RunError

MEMINFO = """MemTotal:       2000 kB
MemFree:         100 kB
MemAvailable:   1000 kB
SwapFree:        500 kB
"""
GIB = 2**30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Folder of a control group; the system has 1500 kB available."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setattr(space, "SYSTEM", tmp_path / "meminfo")
    monkeypatch.setattr(space, "CONTAINERS", ((group, "memory.max", "memory.current"),))
    return group


def write_group(folder, limit, use, cached):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{use}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file 7\ninactive_file {cached}\n")


def test_available_memory_includes_swap(system):
    assert space.available_memory() == 1500 * 1024


@pytest.mark.parametrize(
    ("limit", "use", "cached", "expected"),
    [
        (10_000, 4_000, 0, 6_000),
        (10_000, 9_000, 3_000, 4_000),
        (10_000, 12_000, 0, 0),
        ("max", 4_000, 0, 1500 * 1024),
        (GIB, 4_000, 0, 1500 * 1024),
    ],
)
def test_available_memory_is_limited_by_container(system, limit, use, cached, expected):
    write_group(system, limit, use, cached)
    assert space.available_memory() == expected


def test_unknown_memory_refuses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "SYSTEM", tmp_path / "absent")
    assert space.available_memory() is None
    space.check_memory(10**30, "it", "nothing")


def test_memory_that_is_not_there_is_refused(system):
    space.check_memory(1500 * 1024, "a table", "use less")
    message = "a table needs 1.465 MiB of memory, and 1.465 MiB are available; use less"
    with pytest.raises(NoMemoryError, match=message):
        space.check_memory(1500 * 1024 + 1, "a table", "use less")
    with pytest.raises(NoMemoryError, match="5 GiB of memory, and 4 GiB are available"):
        space.check_memory(5 * GIB, "a table", "use less", available=4 * GIB)


def test_disk_of_missing_folder_is_that_of_its_parent(tmp_path, monkeypatch):
    asked = []
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage)
    folder = tmp_path / "absent" / "deeper"
    space.check_disk(3 * GIB, folder, "a file", "use less")
    with pytest.raises(RunError, match=f"4 GiB on the disk of {folder}, and 3 GiB are free; use"):
        space.check_disk(4 * GIB, folder, "a file", "use less")
    assert asked == [tmp_path, tmp_path]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 * GIB // 2, "1.5 GiB"), (2**70, "1024 EiB")],
)
def test_bytes_are_printed_in_binary_units(count, text):
    assert space.format_bytes(count) == text
