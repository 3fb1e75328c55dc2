"""Provenance of records: the commit of the package, and files from outside it."""

import dataclasses
import functools
import hashlib
import importlib.util
import subprocess
import sys

import pytest

import tiny
from longspan.arena import provenance
from longspan.arena.provenance import (
    added_files,
    changed_files,
    git_commit,
    register_source_file,
    run_identity,
    source_files,
)
from longspan.attention import MECHANISMS
from longspan.attention.registry import KERNELS, register_kernel
from longspan.results import SourceFile

MECHANISM = '''
from longspan.attention import register, register_kernel
from longspan.attention.mechanisms.linear import LinearAttention

@register("of_a_user")
class OfAUser(LinearAttention):
    """Linear attention under another name."""

@register_kernel(OfAUser, "of_a_user", lambda *inputs: [], automatic=False)
def run(attention, *inputs):
    return attention.attend(*inputs)
'''


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the folder of a package in a clean working tree, taken for longspan's."""
    folder = tmp_path / "src" / "package"
    (folder / "mechanisms").mkdir(parents=True)
    for name in ("__init__.py", "mechanisms/__init__.py"):
        (folder / name).write_text("")
    (tmp_path / ".gitignore").write_text("ignored*\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    return folder


def test_commit_of_a_clean_tree_is_its_hash(package):
    assert git_commit.__wrapped__() == git(package, "rev-parse", "HEAD")[:12]


@pytest.mark.parametrize(
    ("name", "is_dirty"),
    [
        ("mechanisms/mine.py", True),
        ("mechanisms/ignored.py", True),
        ("new_package/__init__.py", True),
        ("__init__.py", True),
        ("notes.txt", False),
        ("mechanisms/__pycache__/mine.pyc", False),
        ("../../scripts/mine.py", False),
        ("../../.gitignore", True),
    ],
)
def test_commit_is_dirty_if_other_code_can_run(package, name, is_dirty):
    path = package / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("changed = True\n")
    commit = git(package, "rev-parse", "HEAD")[:12]
    assert git_commit.__wrapped__() == (f"{commit}-dirty" if is_dirty else commit)


def test_untracked_and_changed_files_are_marked_once(package):
    for name in ("mine.py", "__init__.py"):
        (package / name).write_text("changed = True\n")
    assert git_commit.__wrapped__().count("-dirty") == 1


def test_commit_is_none_outside_working_tree(package, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path_factory.mktemp("elsewhere"))
    assert git_commit.__wrapped__() is None
    # such as a virtual environment in the working tree of another project
    installed = package / "ignored"
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "PACKAGE", installed)
    assert git_commit.__wrapped__() is None


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def committed(package, monkeypatch):
    """Return the package with two more committed files, and functions that do not cache."""
    for name in ("kept.py", "gone.py"):
        (package / name).write_text("")
    git(package, "add", ".")
    git(package, "commit", "-qm", "second")
    for function in (git_commit, changed_files, added_files):
        monkeypatch.setattr(provenance, function.__name__, function.__wrapped__)
    return package


def test_files_of_a_clean_tree_are_those_of_the_commit(committed):
    assert (provenance.changed_files(), provenance.added_files()) == ({}, {})


def test_changed_and_added_files_are_named_with_their_content(committed):
    changed, staged = ["__init__.py", "mechanisms/__init__.py"], ["staged.py", "moved.py"]
    added = ["mechanisms/mine.py", "mechanisms/ignored.py", 'mechanisms/ünd "so".py', *staged]
    for name in (*changed, *added, "notes.txt", "../../scripts.py", "../../.gitignore"):
        (committed / name).write_text("changed = True\n")
    (committed / "moved.py").write_text("")
    (committed / "gone.py").unlink()
    git(committed, "add", *staged)
    digests = {
        f"longspan/{name}": sha256(committed / name) for name in (*sorted(changed), *sorted(added))
    }
    expected = {name: x for name, x in digests.items() if "init" in name} | {
        "longspan/gone.py": None
    }
    assert provenance.changed_files() == expected
    assert provenance.added_files() == {x: y for x, y in digests.items() if "init" not in x}


def test_changed_and_added_files_are_unknown_outside_a_working_tree(committed, tmp_path_factory):
    provenance.PACKAGE = tmp_path_factory.mktemp("elsewhere")
    assert (provenance.changed_files(), provenance.added_files()) == (None, None)


@pytest.fixture
def user_experiment(tmp_path, monkeypatch):
    """Return an experiment whose mechanism is in a file of its own."""
    path = tmp_path / "of_a_user.py"
    path.write_text(MECHANISM)
    spec = importlib.util.spec_from_file_location("of_a_user", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "of_a_user", module)
    spec.loader.exec_module(module)
    experiment = tiny.experiment("linear")
    mechanism = dataclasses.replace(experiment.config.mechanism, name="of_a_user")
    config = dataclasses.replace(experiment.config, mechanism=mechanism)
    yield dataclasses.replace(experiment, config=config)
    KERNELS.pop(MECHANISMS.pop("of_a_user"))


def test_files_outside_the_package_are_named_without_their_folder(user_experiment, tmp_path):
    path = tmp_path / "of_a_user.py"
    expected = SourceFile(name="of_a_user.py", sha256=sha256(path))
    found = source_files(user_experiment)
    assert (found.pop("mechanism"), found.pop("kernel of_a_user")) == (expected, expected)
    assert expected.is_external
    assert list(found) == ["task"]
    path.write_text(f"{MECHANISM}# changed\n")
    assert source_files(user_experiment)["mechanism"].sha256 == sha256(path) != expected.sha256


def test_files_of_kernels_that_are_partial_calls_are_found(user_experiment, tmp_path):
    cls = MECHANISMS["of_a_user"]
    run = KERNELS[cls]["of_a_user"].run
    register_kernel(cls, "partial", lambda *inputs: [], automatic=False)(functools.partial(run))
    found = source_files(user_experiment)["kernel partial"]
    assert found == SourceFile(name="of_a_user.py", sha256=sha256(tmp_path / "of_a_user.py"))


def test_code_without_a_file_is_named(user_experiment, monkeypatch):
    monkeypatch.delattr(sys.modules["of_a_user"], "__file__")
    found = source_files(user_experiment)["mechanism"]
    assert (found, found.is_external) == (SourceFile(name=None, sha256=None), True)


def test_files_of_the_package_are_named_by_their_path_in_it():
    found = run_identity(tiny.experiment("linear"), "cpu")["source_files"]
    package = provenance.PACKAGE
    names = {"mechanism": "attention/mechanisms/linear.py", "task": "tasks/lra/listops.py"}
    for part, name in names.items():
        expected = SourceFile(name=f"longspan/{name}", sha256=sha256(package / name))
        assert (found.pop(part), expected.is_external) == (expected, False)
    assert found == {}


def test_registered_files_belong_to_all_runs_or_to_those_of_a_protocol(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_LOADED", {})
    for name in ("plug_in.py", "own.toml", "other.toml"):
        (tmp_path / name).write_text(name)
    register_source_file("plug-in plug_in", tmp_path / "plug_in.py")
    register_source_file("protocol own", tmp_path / "own.toml", protocol="smoke")
    register_source_file("protocol other", tmp_path / "other.toml", protocol="other")
    found = source_files(tiny.experiment("linear"))
    assert list(found)[2:] == ["plug-in plug_in", "protocol own"]
    digest = sha256(tmp_path / "own.toml")
    assert found["protocol own"] == SourceFile(name="own.toml", sha256=digest)
