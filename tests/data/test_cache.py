"""A built dataset is read completely or not at all, even after an interrupted build."""

import contextlib
import dataclasses
import errno
import logging
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from longspan import files
from longspan.data import cache as cached
from longspan.data import store
from longspan.data.cache import BuildOutput, BuildSize, DatasetSpec
from longspan.data.store import Examples, Ragged, SequenceWriter
from longspan.errors import DataError, RunError, UnreadableError
from longspan.files import cache_folder, read_json, write_json
from longspan.tasks.lra.generators.shards import get_or_build

SPEC = DatasetSpec(task="toy", version=1, options={"seed": 0}, origin={})


def examples(count, value=1):
    return Examples(
        tokens=Ragged.pack([np.full(row + 1, value, np.uint8) for row in range(count)], np.uint8),
        labels=np.arange(count, dtype=np.uint8),
    )


class Builder:
    """Counts its builds."""

    def __init__(self, rows=4):
        self.rows, self.calls = rows, 0

    def __call__(self, scratch):
        self.calls += 1
        splits = {"train": examples(self.rows), "validation": examples(2), "test": examples(3)}
        return BuildOutput(splits=splits, source="toy", license="none", facts={"n": self.rows})


FORKS = multiprocessing.get_context("fork")


def start_build(cache, build):
    """Build in another process, a fork of this one."""
    process = FORKS.Process(target=cached.open_dataset, args=(cache, SPEC, build))
    process.start()
    return process


def exit_code(process):
    process.join(60)
    return process.exitcode


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def test_dataset_is_built_once_and_then_read(tmp_path):
    build = Builder()
    first = cached.open_dataset(tmp_path, SPEC, build)
    second = cached.open_dataset(tmp_path, SPEC, build)
    assert build.calls == 1
    assert first.manifest == second.manifest
    assert second.manifest.files["train"].rows == 4
    assert second.manifest.facts == {"n": 4}
    assert second.splits["test"].checksum() == examples(3).checksum()
    names = sorted(path.name for path in second.folder.iterdir())
    assert names == ["manifest.json", "test.arrow", "train.arrow", "validation.arrow"]
    assert second.folder == tmp_path / "toy" / SPEC.key


@pytest.mark.parametrize(
    "change", [{"task": "t2"}, {"version": 2}, {"options": {"seed": 1}}, {"origin": {"rows": 1}}]
)
def test_key_depends_on_every_field(change):
    assert dataclasses.replace(SPEC, **change).key != SPEC.key


def test_key_is_the_same_in_every_process():
    assert SPEC.key == "b3f0f85c0410e8fd"


def flip(path, place):
    raw = bytearray(path.read_bytes())
    raw[place] ^= 8
    path.write_bytes(raw)


def flip_middle(path):
    flip(path, path.stat().st_size // 2)


def change_version(path):
    path.write_text(path.read_text().replace('"version": 1', '"version": 3'))


# File, its corruption, and message.
CORRUPTIONS = {
    "one bit": ("train.arrow", flip_middle, "does not match its recorded sha256; delete"),
    "truncated": (
        *("train.arrow", lambda path: os.truncate(path, path.stat().st_size - 8)),
        r"has \d+ bytes, expected \d+; delete",
    ),
    "absent": ("train.arrow", Path.unlink, "does not exist; delete .* to rebuild it"),
    "cut": ("manifest.json", lambda path: os.truncate(path, 50), "is not JSON"),
    "digit": ("manifest.json", change_version, "is damaged: its content has sha256"),
    "foreign": (
        *("manifest.json", lambda path: path.write_text('{"a": 1}')),
        "is not a manifest of schema 3; delete .* to rebuild it",
    ),
    "files malformed": (
        "manifest.json",
        lambda path: write_json(path, {**read_json(path), "files": {"train": {"rows": 1}}}),
        "files are malformed",
    ),
}


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_corrupted_dataset_is_reported_and_rebuilt(tmp_path, logged, how):
    name, corrupt, reason = CORRUPTIONS[how]
    build = Builder()
    folder = cached.open_dataset(tmp_path, SPEC, build).folder
    cached.verify(tmp_path)
    corrupt(folder / name)
    with pytest.raises(DataError, match=rf"{name}.* {reason}"):
        cached.verify(tmp_path)
    with logged.at_level(logging.WARNING):
        again = cached.open_dataset(tmp_path, SPEC, build)
    assert build.calls == 2
    assert "rebuilding" in logged.text
    assert again.splits["train"].checksum() == examples(4).checksum()
    cached.verify(tmp_path)


@pytest.mark.parametrize("name", ["train.arrow", "manifest.json"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_dataset_that_cannot_be_read_now_is_kept(tmp_path, monkeypatch, name, code):
    build = Builder()
    folder = cached.open_dataset(tmp_path, SPEC, build).folder

    def fail(path, *arguments, **options):
        if path.name == name and path.parent == folder:
            raise OSError(code, os.strerror(code))
        return path.open("rb")

    with monkeypatch.context() as patch:
        patch.setattr(files, "open", fail, raising=False)
        with pytest.raises(UnreadableError, match=rf"{name} cannot be read \({os.strerror(code)}"):
            cached.open_dataset(tmp_path, SPEC, build)
    cached.open_dataset(tmp_path, SPEC, build)
    assert build.calls == 1


@pytest.mark.usefixtures("large")
def test_large_dataset_that_cannot_be_mapped_now_is_kept(tmp_path, monkeypatch):
    build = Builder()
    cached.open_dataset(tmp_path, SPEC, build)

    def fail(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr("mmap.mmap", fail)
        with pytest.raises(UnreadableError, match=r"train\.arrow cannot be read \(Cannot allocate"):
            cached.open_dataset(tmp_path, SPEC, build)
    cached.open_dataset(tmp_path, SPEC, build)
    assert build.calls == 1


def free_disk(monkeypatch, folder, total):
    """Limit the disk of a folder to a number of bytes, those of its files included."""

    def usage(_):
        files = [path for path in folder.rglob("*") if path.is_file()]
        used = sum(path.stat().st_size for path in files)
        return shutil._ntuple_diskusage(total, used, total - used)

    monkeypatch.setattr("shutil.disk_usage", usage)


def test_damaged_dataset_does_not_count_against_its_next_build(tmp_path, monkeypatch):
    folder = cached.open_dataset(tmp_path, SPEC, Builder()).folder
    size = sum(path.stat().st_size for path in folder.iterdir())
    flip_middle(folder / "train.arrow")
    free_disk(monkeypatch, tmp_path, 2 * size - 1)
    build = Builder()
    cached.open_dataset(tmp_path, SPEC, build, lambda: BuildSize(memory=0, disk=size))
    assert build.calls == 1


def test_shards_of_an_interrupted_build_count_as_built(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        cached.open_dataset(tmp_path, SPEC, InShards(raising(KeyboardInterrupt())))
    kept = sum(path.stat().st_size for path in (tmp_path / "toy" / SPEC.key).rglob("shard-*"))
    assert kept
    free_disk(monkeypatch, tmp_path, 10**6 + kept)
    for disk, message in ((10**6 + 10**5, "on the disk of"), (10**6 + kept, None)):
        with pytest.raises(RunError, match=message) if message else contextlib.nullcontext():
            cached.open_dataset(
                tmp_path, SPEC, InShards(), lambda disk=disk: BuildSize(memory=0, disk=disk)
            )


def test_failed_build_leaves_nothing(tmp_path):
    def build(scratch):
        built = Builder()(scratch)
        return dataclasses.replace(built, splits={**built.splits, "test": examples(0)})

    with pytest.raises(DataError, match="no examples to write"):
        cached.open_dataset(tmp_path, SPEC, build)
    assert not (tmp_path / "toy" / SPEC.key).exists()
    assert cached.built_folders(tmp_path) == []


def test_killed_build_is_not_read_and_the_next_one_succeeds(tmp_path, monkeypatch):
    write = store.write_examples

    def die_at_test(path, examples):
        if path.name == "test.arrow":
            (path.parent / ".test.arrow.half").write_bytes(b"half")
            kill()
        write(path, examples)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_examples", die_at_test)
        assert exit_code(start_build(tmp_path, Builder())) == -signal.SIGKILL
    folder = tmp_path / "toy" / SPEC.key
    assert (folder / "train.arrow").exists()
    assert cached.built_folders(tmp_path) == []
    assert cached.find_built(tmp_path, "toy", 1, {"seed": 0}) is None
    build = Builder()
    assert len(cached.open_dataset(tmp_path, SPEC, build).splits["test"]) == 3
    assert build.calls == 1
    assert not (folder / ".test.arrow.half").exists()


def test_two_processes_build_a_dataset_once(tmp_path):
    log, both_started = tmp_path / "log", FORKS.Barrier(2)

    def build(scratch):
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        return Builder()(scratch)

    def open_at_once(cache):
        both_started.wait(60)
        cached.open_dataset(cache, SPEC, build)

    both = [FORKS.Process(target=open_at_once, args=(tmp_path / "cache",)) for _ in range(2)]
    for one in both:
        one.start()
    assert [exit_code(one) for one in both] == [0, 0]
    assert log.read_text() == "built\n"
    cached.verify(tmp_path / "cache")


def test_unwritable_cache_gives_one_line(tmp_path):
    (tmp_path / "toy").write_text("a file where a folder should be")
    with pytest.raises(RunError, match=r"cannot write the cache .*set LONGSPAN_CACHE"):
        cached.open_dataset(tmp_path, SPEC, Builder())


def test_unknown_folder_inside_a_dataset_is_not_removed(tmp_path):
    keep = tmp_path / "toy" / SPEC.key / "mine" / "keep.txt"
    keep.parent.mkdir(parents=True)
    keep.write_text("mine")
    with pytest.raises(RunError, match="cannot clear"):
        cached.open_dataset(tmp_path, SPEC, Builder())
    assert keep.read_text() == "mine"


def test_without_source_files_the_largest_dataset_with_these_options_is_used(tmp_path, logged):
    for rows in (3, 9, 5):
        origin = {"rows": rows}
        cached.open_dataset(tmp_path, dataclasses.replace(SPEC, origin=origin), Builder(rows))
    largest = cached.find_built(tmp_path, "toy", 1, {"seed": 0})
    assert largest.manifest.origin == {"rows": 9}
    message = "3 data sets of toy with these options are built; using the largest"
    assert message in logged.text
    assert largest.manifest.checksum[:8] in logged.text
    assert cached.find_built(tmp_path, "toy", 2, {"seed": 0}) is None
    assert cached.find_built(tmp_path, "toy", 1, {"seed": 1}) is None
    flip_middle(largest.folder / "train.arrow")
    assert cached.find_built(tmp_path, "toy", 1, {"seed": 0}).manifest.origin == {"rows": 5}
    assert "skipping" in logged.text


def test_checksum_depends_on_the_content_and_its_split(tmp_path):
    def swapped(scratch):
        built = Builder()(scratch)
        splits = built.splits
        return dataclasses.replace(
            built, splits={**splits, "train": splits["test"], "test": splits["train"]}
        )

    one = cached.open_dataset(tmp_path / "a", SPEC, Builder()).manifest.checksum
    assert cached.open_dataset(tmp_path / "b", SPEC, Builder()).manifest.checksum == one
    assert cached.open_dataset(tmp_path / "c", SPEC, swapped).manifest.checksum != one


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LONGSPAN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "longspan"


@pytest.fixture
def large(monkeypatch):
    """Treat every file as too large for a checksum when it is opened."""
    monkeypatch.setattr(cached, "_READ_THROUGH", 0)


@pytest.mark.usefixtures("large")
def test_changed_row_of_a_large_file_is_never_used(tmp_path):
    build = Builder(40)
    folder = cached.open_dataset(tmp_path, SPEC, build).folder
    path = folder / "train.arrow"
    flip(path, path.read_bytes().index(bytes([1] * 300)))  # the first of the rows
    train = cached.open_dataset(tmp_path, SPEC, build).splits["train"]
    train.check(np.arange(1, 40))
    with pytest.raises(
        DataError, match=r"train\.arrow: row 0 has changed since it was written; run"
    ):
        train.check(np.arange(40))
    assert build.calls == 1
    with pytest.raises(DataError, match=r"train\.arrow does not match its recorded sha256"):
        cached.verify(tmp_path)


def place_of(array, path):
    """Return the position of the bytes of an array in a file."""
    raw, wanted = path.read_bytes(), array.tobytes()
    assert raw.count(wanted) == 1
    return raw.index(wanted)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("part", ["labels", "offsets", "checks"])
def test_large_file_with_a_changed_index_is_rebuilt(tmp_path, logged, part):
    build = Builder(40)
    folder = cached.open_dataset(tmp_path, SPEC, build).folder
    train = cached.open_dataset(tmp_path, SPEC, build).splits["train"]
    array = train.tokens.offsets if part == "offsets" else getattr(train, part)
    flip(folder / "train.arrow", place_of(array, folder / "train.arrow") + 24)
    again = cached.open_dataset(tmp_path, SPEC, build)
    assert build.calls == 2
    assert "labels or offsets do not match their recorded sha256" in logged.text
    assert again.splits["train"].checksum() == examples(40).checksum()


@pytest.mark.usefixtures("large")
def test_bit_changed_anywhere_in_a_large_file_is_harmless(tmp_path):
    """The dataset is rebuilt, or the row is rejected, or the bit is unused."""
    build, truth = Builder(6), examples(6)
    folder = cached.open_dataset(tmp_path, SPEC, build).folder
    path = folder / "train.arrow"
    whole, kinds = path.read_bytes(), set()
    for place in range(0, len(whole), 11):
        flip(path, place)
        before = build.calls
        train = cached.open_dataset(tmp_path, SPEC, build).splits["train"]
        kinds.add(outcome(train, truth) if build.calls == before else "rebuilt")
        path.write_bytes(whole)
    assert kinds == {"rebuilt", "rejected", "harmless"}


def outcome(train, truth):
    try:
        train.check(np.arange(len(truth)))
    except DataError:
        return "rejected"
    same = train.checksum() == truth.checksum()
    return "harmless" if same else "changed content was read"


class InShards:
    """A build of three shards and a spool; it may fail after two shards."""

    def __init__(self, fail=None):
        self.fail, self.built = fail, []

    def __call__(self, scratch):
        spool = SequenceWriter(scratch / "tokens", np.uint8)
        for number in range(3):
            if number == 2 and self.fail:
                self.fail()
            shard = get_or_build(
                scratch / "shards", number, lambda number=number: self.make(number)
            )
            spool.add_rows(shard["rows"])
        rows = Examples(tokens=spool.ragged(), labels=np.arange(6, dtype=np.uint8))
        splits = {"train": rows, "validation": examples(2), "test": examples(3)}
        return BuildOutput(splits=splits, source="shards", license="none", facts={})

    def make(self, number):
        self.built.append(number)
        return {"rows": np.full((2, 5), number + 1, np.uint8)}


def raising(error):
    def fail():
        raise error

    return fail


def check_continued(cache):
    folder = cache / "toy" / SPEC.key
    assert [path.name for path in folder.iterdir()] == ["building"]
    assert folder not in cached.built_folders(cache)
    build = InShards()
    train = cached.open_dataset(cache, SPEC, build).splits["train"]
    assert build.built == [2]
    assert [set(row.tolist()) for row in train.tokens] == [{1}, {1}, {2}, {2}, {3}, {3}]
    assert not (folder / "building").exists()


def test_shards_survive_ctrl_c_and_are_not_rebuilt(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        cached.open_dataset(tmp_path, SPEC, InShards(raising(KeyboardInterrupt())))
    check_continued(tmp_path)


def test_shards_survive_a_kill_and_are_not_rebuilt(tmp_path):
    assert exit_code(start_build(tmp_path, InShards(kill))) == -signal.SIGKILL
    check_continued(tmp_path)


@pytest.mark.parametrize("error", [DataError("malformed"), RunError("full"), ValueError("a bug")])
def test_error_removes_the_shards(tmp_path, error):
    with pytest.raises(type(error), match=str(error)):
        cached.open_dataset(tmp_path, SPEC, InShards(raising(error)))
    assert not (tmp_path / "toy" / SPEC.key).exists()
    build = InShards()
    cached.open_dataset(tmp_path, SPEC, build)
    assert build.built == [0, 1, 2]


def test_build_of_another_dataset_keeps_the_shards(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        cached.open_dataset(tmp_path, SPEC, InShards(raising(KeyboardInterrupt())))
    cached.open_dataset(tmp_path, dataclasses.replace(SPEC, version=2), InShards())
    check_continued(tmp_path)


def spools(scratch):
    spool = SequenceWriter(scratch / "tokens", np.uint8)
    spool.add_rows(np.ones((20, 10_000), np.uint8))


def keeps_shards(scratch):
    noise = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    get_or_build(scratch, 0, lambda: {"x": noise})


def returns_much(scratch):
    noise = np.random.default_rng(0).integers(0, 256, (30, 10_000), np.uint8)
    much = Examples(
        tokens=Ragged(noise.reshape(-1), np.arange(31) * 10_000), labels=np.zeros(30, np.uint8)
    )
    return BuildOutput(
        splits={"validation": examples(2), "train": much}, source="", license="", facts={}
    )


@pytest.mark.parametrize("build", [spools, keeps_shards, returns_much])
def test_full_disk_gives_one_line_and_leaves_nothing(small_disk, build):
    with pytest.raises(RunError, match=r"cannot write .*No space left on device; free space or"):
        cached.open_dataset(small_disk, SPEC, build)
    left = [path for path in small_disk.rglob("*") if path.is_file()]
    assert [path.suffix for path in left] == [".lock"]
    assert cached.open_dataset(small_disk, SPEC, Builder()).manifest.files["train"].rows == 4
    for path in (small_disk / "toy" / SPEC.key).iterdir():
        path.unlink()
