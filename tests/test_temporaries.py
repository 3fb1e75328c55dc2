"""Temporary files of killed writers are removed by the next write; those of live writers stay."""

import os
import signal
import subprocess
import sys
import time

import pytest

from longspan import temporaries
from longspan.files import atomic_write, replaced_folder, write_json
from longspan.temporaries import locked_temporary, machine_id, remove_temporaries, sweep_temporaries

LEAVE = """
import os, signal, sys
from pathlib import Path
from longspan.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def left_behind(tmp_path):
    """Folder with the temporary file of a killed process."""
    subprocess.run([sys.executable, "-c", LEAVE, str(tmp_path / "report.html")], check=False)
    (name,) = names(tmp_path)
    assert name.startswith(f".report.html.longspan-{machine_id()}-")
    return tmp_path


def test_next_write_of_any_file_removes_temporaries_of_killed_process(left_behind):
    write_json(left_behind / "other.json", {})
    assert names(left_behind) == ["other.json"]


def test_temporaries_of_live_writers_are_kept(tmp_path):
    with locked_temporary(tmp_path / "a.txt") as held, atomic_write(tmp_path / "b.txt") as other:
        write_json(tmp_path / "c.json", {})
        sweep_temporaries(tmp_path)
        assert {held.name, other.name, "c.json"} == set(names(tmp_path))
        other.write_text("b")
    assert names(tmp_path) == ["b.txt", "c.json"]


def test_writer_in_another_process_is_recognized(tmp_path):
    script = LEAVE.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(1, flush=True); input()")
    command = [sys.executable, "-c", script, str(tmp_path / "a.txt")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        sweep_temporaries(tmp_path)
        assert len(names(tmp_path)) == 1
        writer.communicate(b"\n")
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("has_locks", [True, False])
def test_temporaries_of_other_machines_are_removed_when_old(tmp_path, monkeypatch, has_locks):
    if not has_locks:
        monkeypatch.setattr(temporaries, "fcntl", None)
    machine = "0" * 8 if has_locks else machine_id()
    old, new = (tmp_path / f".a.json.longspan-{machine}-{n:08x}" for n in (1, 2))
    for path in (old, new):
        path.write_text("half")
    day_ago = time.time() - temporaries.MAX_AGE - 1
    os.utime(old, (day_ago, day_ago))
    write_json(tmp_path / "a.json", {})
    assert names(tmp_path) == [new.name, "a.json"]


def test_other_hidden_files_are_kept(tmp_path):
    kept = [".a.json.12345678", ".a.longspan-12345678", "a.longspan-00000000-00000000", ".bashrc"]
    for name in kept:
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    write_json(tmp_path / "a.json", {})
    assert names(tmp_path) == sorted([*kept, "a.json"])


def test_file_swept_before_it_was_locked_is_created_again(tmp_path, monkeypatch):
    swept = []

    class SweepOnce:
        LOCK_EX, LOCK_NB = temporaries.fcntl.LOCK_EX, temporaries.fcntl.LOCK_NB

        @staticmethod
        def flock(descriptor, operation):
            if not swept:
                (path,) = tmp_path.iterdir()
                swept.append(path.name)
                path.unlink()

    monkeypatch.setattr(temporaries, "fcntl", SweepOnce)
    with atomic_write(tmp_path / "a.txt") as temporary:
        assert temporary.name not in swept
        temporary.write_text("whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_folder_without_locks_is_written(tmp_path, monkeypatch):
    """Some network file systems have no locks."""

    class NoLocks:
        LOCK_EX, LOCK_NB = temporaries.fcntl.LOCK_EX, temporaries.fcntl.LOCK_NB

        @staticmethod
        def flock(descriptor, operation):
            raise OSError(38, "Function not implemented")

    monkeypatch.setattr(temporaries, "fcntl", NoLocks)
    with locked_temporary(tmp_path / "b.json") as held:
        write_json(tmp_path / "a.json", {})
        assert held.exists()
        day_ago = time.time() - temporaries.MAX_AGE - 1
        os.utime(held, (day_ago, day_ago))
        sweep_temporaries(tmp_path)
        assert not held.exists()
    assert names(tmp_path) == ["a.json"]


def test_every_temporary_of_a_path_is_removed_under_its_lock(tmp_path):
    for name in ("a.json", ".a.json.longspan-00000000-12345678", ".b.json.12345678", ".a.jsonx"):
        (tmp_path / name).write_text("")
    remove_temporaries(tmp_path / "a.json")
    assert names(tmp_path) == [".a.jsonx", ".b.json.12345678", "a.json"]


def test_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path):
    script = LEAVE.replace("atomic_write", "replaced_folder").replace(
        'temporary.write_text("half")', '(temporary / "documents").write_text("half")'
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "mine")], check=False)
    (left,) = names(tmp_path)
    assert (tmp_path / left / "mine" / "documents").exists()
    with replaced_folder(tmp_path / "other") as part:
        assert names(tmp_path) == [part.parent.name]
        with replaced_folder(tmp_path / "third"):
            assert part.is_dir()  # that of a live process stays
    assert names(tmp_path) == ["other", "third"]


@pytest.mark.parametrize("has_locks", [True, False])
def test_folder_of_another_machine_is_kept_for_a_day_after_its_last_change(
    tmp_path, monkeypatch, has_locks
):
    if not has_locks:
        monkeypatch.setattr(temporaries, "fcntl", None)
    machine = "0" * 8 if has_locks else machine_id()
    folder = tmp_path / f".a.longspan-{machine}-00000001"
    folder.mkdir()
    (folder / "documents").write_text("half")
    day_ago = time.time() - temporaries.MAX_AGE - 1
    os.utime(folder, (day_ago, day_ago))
    sweep_temporaries(tmp_path)
    assert names(folder) == ["documents"]
    os.utime(folder / "documents", (day_ago, day_ago))
    os.utime(folder, (day_ago, day_ago))
    sweep_temporaries(tmp_path)
    assert names(tmp_path) == []


KILLED_BETWEEN = """
import os, signal, sys
from pathlib import Path
from longspan.files import replaced_folder
rename = Path.rename
def rename_once(path, target):
    if path.name == Path(sys.argv[1]).name and Path(target) == Path(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)
Path.rename = rename_once
with replaced_folder(Path(sys.argv[1])) as part:
    (part / "new").write_text("new")
"""


@pytest.mark.parametrize("name", ["data", "earlier"])
def test_folder_of_a_process_killed_while_it_replaced_it_goes_back_to_its_place(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "old").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not folder.exists()
    sweep_temporaries(tmp_path)
    assert names(tmp_path) == [name]
    assert names(folder) == ["old"]
