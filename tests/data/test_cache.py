"""A built set is read whole or not at all, whatever happened while it was written."""

import dataclasses
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from longspan.data import cache as cached
from longspan.data.cache import Built, Recipe
from longspan.data.store import Examples, Ragged
from longspan.errors import DataError, RunError

RECIPE = Recipe(task="toy", version=1, options={"seed": 0}, origin={})


def examples(count, value=1):
    return Examples(
        tokens=Ragged.pack([np.full(row + 1, value, np.uint8) for row in range(count)], np.uint8),
        labels=np.arange(count, dtype=np.uint8),
    )


class Builder:
    """Counts how often it builds."""

    def __init__(self, rows=4):
        self.rows, self.calls = rows, 0

    def __call__(self, scratch):
        self.calls += 1
        splits = {"train": examples(self.rows), "validation": examples(2), "test": examples(3)}
        return Built(splits=splits, source="toy", licence="none", facts={"n": self.rows})


# the same in a process of its own; `{before}` may break things
PROCESS = """
import os, sys, time, signal, pathlib
sys.path.insert(0, {tests!r})
import test_cache as t
from longspan.data import cache as cached, store
{before}
cached.open_set(pathlib.Path({cache!r}), t.RECIPE, build)
"""


def process(cache, before):
    tests = str(Path(__file__).parent)
    script = PROCESS.format(tests=tests, cache=str(cache), before=before)
    return subprocess.Popen([sys.executable, "-c", script])


def test_a_set_is_built_once_and_then_read(tmp_path):
    build = Builder()
    first = cached.open_set(tmp_path, RECIPE, build)
    second = cached.open_set(tmp_path, RECIPE, build)
    assert build.calls == 1
    assert first.manifest == second.manifest
    assert second.manifest.files["train"].rows == 4
    assert second.manifest.facts == {"n": 4}
    assert second.splits["test"].checksum() == examples(3).checksum()
    names = sorted(path.name for path in second.folder.iterdir())
    assert names == ["manifest.json", "test.arrow", "train.arrow", "validation.arrow"]
    assert second.folder == tmp_path / "toy" / RECIPE.key


@pytest.mark.parametrize(
    "change", [{"task": "t2"}, {"version": 2}, {"options": {"seed": 1}}, {"origin": {"rows": 1}}]
)
def test_every_part_of_the_recipe_is_in_the_key(change):
    assert dataclasses.replace(RECIPE, **change).key != RECIPE.key


def test_key_is_the_same_in_every_process():
    assert RECIPE.key == "b3f0f85c0410e8fd"


def corrupt(folder, how):
    path = folder / "train.arrow"
    raw = bytearray(path.read_bytes())
    if how == "one bit":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif how == "truncated":
        path.write_bytes(raw[:-8])
    elif how == "absent":
        path.unlink()
    elif how == "manifest cut":
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text()[:50])
    elif how == "manifest foreign":
        (folder / "manifest.json").write_text('{"a": 1}')
    else:
        record = json.loads((folder / "manifest.json").read_text())
        record["files"] = {"train": {"rows": 1}}
        (folder / "manifest.json").write_text(json.dumps(record))


CORRUPTIONS = {
    "one bit": r"train\.arrow does not match its recorded sha256; delete",
    "truncated": r"train\.arrow has \d+ bytes, its record says \d+; delete",
    "absent": r"train\.arrow cannot be read \(No such file",
    "manifest cut": r"manifest\.json is not JSON",
    "manifest foreign": r"manifest\.json is no manifest of schema 2",
    "files malformed": r"files are malformed",
}


@pytest.mark.parametrize(("how", "reason"), CORRUPTIONS.items())
def test_corrupted_set_is_reported_and_built_again(tmp_path, caplog, how, reason):
    build = Builder()
    folder = cached.open_set(tmp_path, RECIPE, build).folder
    cached.verify(tmp_path)
    corrupt(folder, how)
    with pytest.raises(DataError, match=reason):
        cached.verify(tmp_path)
    with caplog.at_level(logging.WARNING):
        again = cached.open_set(tmp_path, RECIPE, build)
    assert build.calls == 2
    assert "building" in caplog.text
    assert "again" in caplog.text
    assert again.splits["train"].checksum() == examples(4).checksum()
    cached.verify(tmp_path)


def test_failed_build_leaves_nothing(tmp_path):
    def build(scratch):
        built = Builder()(scratch)
        return dataclasses.replace(built, splits={**built.splits, "test": examples(0)})

    with pytest.raises(DataError, match="no examples to write"):
        cached.open_set(tmp_path, RECIPE, build)
    assert not (tmp_path / "toy" / RECIPE.key).exists()
    assert cached.manifests(tmp_path) == {}


def test_killed_build_is_never_read_and_the_next_one_works(tmp_path):
    before = """
build = t.Builder()
write = store.write
def dying(path, examples):
    if path.name == "test.arrow":
        (path.parent / ".test.arrow.half").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, examples)
store.write = dying
"""
    assert process(tmp_path, before).wait() == -signal.SIGKILL
    folder = tmp_path / "toy" / RECIPE.key
    assert (folder / "train.arrow").exists()
    assert cached.manifests(tmp_path) == {}
    assert cached.open_any(tmp_path, "toy", 1, {"seed": 0}) is None
    build = Builder()
    assert len(cached.open_set(tmp_path, RECIPE, build).splits["test"]) == 3
    assert build.calls == 1
    assert not (folder / ".test.arrow.half").exists()


def test_two_processes_build_one_set_once(tmp_path):
    before = f"""
class Slow(t.Builder):
    def __call__(self, scratch):
        with open({str(tmp_path / "log")!r}, "a") as log:
            log.write("built\\n")
        time.sleep(1)
        return super().__call__(scratch)
build = Slow()
pathlib.Path({str(tmp_path)!r}, f"ready{{os.getpid()}}").touch()
while len(list(pathlib.Path({str(tmp_path)!r}).glob("ready*"))) < 2:
    time.sleep(0.01)
"""
    both = [process(tmp_path / "cache", before) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "built\n"
    cached.verify(tmp_path / "cache")


def test_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "toy").write_text("a file where a folder should be")
    with pytest.raises(RunError, match=r"cannot write the cache .*set LONGSPAN_CACHE"):
        cached.open_set(tmp_path, RECIPE, Builder())


def test_foreign_folder_inside_a_set_is_not_removed(tmp_path):
    keep = tmp_path / "toy" / RECIPE.key / "mine" / "keep.txt"
    keep.parent.mkdir(parents=True)
    keep.write_text("mine")
    with pytest.raises(RunError, match="cannot clear"):
        cached.open_set(tmp_path, RECIPE, Builder())
    assert keep.read_text() == "mine"


def test_without_its_source_the_largest_set_of_these_options_serves(tmp_path, caplog):
    for rows in (3, 9, 5):
        origin = {"rows": rows}
        cached.open_set(tmp_path, dataclasses.replace(RECIPE, origin=origin), Builder(rows))
    largest = cached.open_any(tmp_path, "toy", 1, {"seed": 0})
    assert largest.manifest.origin == {"rows": 9}
    assert cached.open_any(tmp_path, "toy", 2, {"seed": 0}) is None
    assert cached.open_any(tmp_path, "toy", 1, {"seed": 1}) is None
    corrupt(largest.folder, "one bit")
    assert cached.open_any(tmp_path, "toy", 1, {"seed": 0}).manifest.origin == {"rows": 5}
    assert "passing over" in caplog.text


def test_checksum_follows_the_content_and_its_split(tmp_path):
    def swapped(scratch):
        built = Builder()(scratch)
        splits = built.splits
        return dataclasses.replace(
            built, splits={**splits, "train": splits["test"], "test": splits["train"]}
        )

    one = cached.open_set(tmp_path / "a", RECIPE, Builder()).manifest.checksum
    assert cached.open_set(tmp_path / "b", RECIPE, Builder()).manifest.checksum == one
    assert cached.open_set(tmp_path / "c", RECIPE, swapped).manifest.checksum != one


def test_default_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    assert cached.default_folder() == tmp_path
    monkeypatch.delenv("LONGSPAN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cached.default_folder() == tmp_path / ".cache" / "longspan"
