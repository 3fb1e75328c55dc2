"""Atomic writes of files, and rejection of malformed JSON."""

import errno
import hashlib
import itertools
import json
import os
import stat
from pathlib import Path

import pytest

from longspan.errors import DataError, OptionError, RunError
from longspan.files import (
    atomic_write,
    new_folder,
    read_json,
    read_json_file,
    replaced_folder,
    write_json,
)

FULL_DISK = "No space left on device; free space or choose another folder"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_old_content_stays_until_new_content_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_folders_are_created_and_permissions_follow_umask(tmp_path):
    path = tmp_path / "deep" / "er" / "a.json"
    before = os.umask(0o027)
    try:
        write_json(path, {"x": [1, None]})
    finally:
        os.umask(before)
    assert read_json(path) == {"x": [1, None]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def write_half(path, error):
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()])
def test_failed_write_keeps_old_content(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def fail_with_full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_full_disk_at_end_of_write_keeps_old_content(tmp_path, monkeypatch, operation):
    path = tmp_path / "a.json"
    write_json(path, {"text": "old"})
    # `Path.replace` calls `os.replace`.
    monkeypatch.setattr(os, operation, fail_with_full_disk)
    with pytest.raises(RunError, match=FULL_DISK) as caught:
        write_json(path, {"text": "new"})
    assert str(caught.value).startswith(f"cannot write {path}: ")
    assert read_json(path) == {"text": "old"}
    assert names(tmp_path) == ["a.json"]


def test_real_full_disk_keeps_old_content(small_disk):
    path = small_disk / "a.json"
    write_json(path, {"text": "old"})
    with pytest.raises(RunError, match=FULL_DISK):
        write_json(path, {"text": "x" * 200_000})
    assert read_json(path) == {"text": "old"}
    assert names(small_disk) == ["a.json"]
    path.unlink()


def test_error_names_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*file/a\.json: .*; free space or choose"):
        write_json(tmp_path / "file" / "a.json", {})


def test_a_replaced_folder_is_the_earlier_or_the_new_one(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    for content in ("earlier", "new"):
        with replaced_folder(folder) as part:
            (part / content).touch()
    assert [path.name for path in folder.iterdir()] == ["new"]

    rename = Path.rename

    def refuse_part(path, target):
        if (path / "newest").exists():
            raise OSError(errno.ENOSPC, FULL_DISK)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_part)
    with pytest.raises(RunError, match=FULL_DISK), replaced_folder(folder) as part:
        (part / "newest").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [folder]


def test_new_folder_appears_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "deep" / "new"
    with pytest.raises(RunError, match=FULL_DISK), new_folder(folder):
        fail_with_full_disk()
    assert not names(folder.parent)
    with new_folder(folder) as part:
        (part / "a").write_text("whole")
        assert not folder.exists()
    assert names(folder.parent) == ["new"]
    assert names(folder) == ["a"]
    folder.with_name("other").mkdir()
    assert folder.stat().st_mode == folder.with_name("other").stat().st_mode


def test_existing_folder_and_broken_link_are_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for name in ("folder", "link"):
        with (
            pytest.raises(OptionError, match=f"{name} exists; remove it"),
            new_folder(tmp_path / name),
        ):
            pass
    assert names(tmp_path) == ["folder", "link"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_not_written(tmp_path, number):
    with pytest.raises(RunError, match=r"cannot write .*a\.json: a value is NaN or infinite"):
        write_json(tmp_path / "a.json", {"x": [number]})
    assert names(tmp_path) == []


BROKEN = {
    "absent": (None, r"a\.json does not exist"),
    "truncated": (b'{\n"a": [1,', r"a\.json is not JSON \(line 2: "),
    "empty": (b"", r"a\.json is not JSON \(line 1: "),
    "binary": (b"\x80\x81", r"a\.json is not UTF-8 text \(byte 0\)"),
    "nan": (b'{"a": NaN}', r"cannot be read as JSON \(NaN is not a finite number\)"),
    "vast": (b'{"a": [1e999]}', r"cannot be read as JSON \(1e999 is not a finite number\)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_malformed_json_is_rejected_with_its_location(tmp_path, case):
    content, message = BROKEN[case]
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_json(path)


def test_folder_in_place_of_file_is_rejected(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_json(tmp_path)


@pytest.mark.parametrize("name", ["pipe", "folder", "/", "."])
def test_folders_and_devices_are_not_replaced(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "folder").mkdir()
    message = r"cannot write .*: it is not a regular file; choose another path"
    with pytest.raises(RunError, match=message):
        write_json(Path(name), {})
    assert names(tmp_path) == ["folder", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


CONTENT = {"b": [1, 2.5, None], "a": {"y": "\u00e4", "x": True}, "c": (1, 2)}


def test_json_starts_with_checksum_of_its_other_fields(tmp_path):
    write_json(tmp_path / "a.json", CONTENT)
    raw = json.loads((tmp_path / "a.json").read_text())
    assert list(raw) == ["sha256", "b", "a", "c"]
    # Sorted, compact and in ASCII, written out by hand.
    plain = rb'{"a":{"x":true,"y":"\u00e4"},"b":[1,2.5,null],"c":[1,2]}'
    assert raw["sha256"] == hashlib.sha256(plain).hexdigest()
    assert read_json(tmp_path / "a.json") == {**CONTENT, "c": [1, 2]}
    assert json.loads(read_json_file(tmp_path / "a.json").text) == {**CONTENT, "c": [1, 2]}
    write_json(tmp_path / "b.json", raw)
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()


def test_every_changed_byte_of_json_is_found_or_harmless(tmp_path):
    path, expected = tmp_path / "a.json", {**CONTENT, "c": [1, 2]}
    write_json(path, CONTENT)
    whole, found = path.read_bytes(), 0
    for position, bit in itertools.product(range(len(whole)), range(8)):
        changed = bytearray(whole)
        changed[position] ^= 1 << bit
        path.write_bytes(changed)
        try:
            content = read_json(path)
        except DataError as error:
            assert str(error).startswith(f"{path} ")  # noqa: PT017
            found += 1
            continue
        # A changed name of the checksum field is left to the reader, which knows the fields.
        assert {k: v for k, v in content.items() if k in expected} == expected
        assert len(content) in (len(expected), len(expected) + 1)
    assert found > 0.8 * 8 * len(whole)


def test_formatting_and_absent_checksum_are_accepted(tmp_path):
    path, expected = tmp_path / "a.json", {**CONTENT, "c": [1, 2]}
    write_json(path, CONTENT)
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw, sort_keys=True, indent=7))
    assert read_json(path) == expected
    path.write_text(json.dumps(expected))
    assert read_json(path) == expected


@pytest.mark.parametrize("recorded", ["0" * 64, None, 3, ""])
def test_other_checksum_is_rejected_with_remedy(tmp_path, recorded):
    path = tmp_path / "a.json"
    write_json(path, CONTENT)
    path.write_text(json.dumps({**json.loads(path.read_text()), "sha256": recorded}))
    message = (
        r"a\.json is damaged: its content has sha256 [0-9a-f]{64}, expected .*; restore it, or"
    )
    with pytest.raises(DataError, match=message):
        read_json(path)
