"""Provenance of records: the commit of the package, and files from outside it."""

import dataclasses
import hashlib
import importlib.util
import subprocess
import sys

import pytest

import tiny
from longspan.arena import provenance
from longspan.arena.provenance import external_sources, git_commit, run_identity
from longspan.attention import MECHANISMS
from longspan.attention.registry import KERNELS

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


@pytest.fixture
def user_config(tmp_path, monkeypatch):
    """Return a configuration whose mechanism is in a file of its own."""
    path = tmp_path / "of_a_user.py"
    path.write_text(MECHANISM)
    spec = importlib.util.spec_from_file_location("of_a_user", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "of_a_user", module)
    spec.loader.exec_module(module)
    config = tiny.experiment("linear").config
    mechanism = dataclasses.replace(config.mechanism, name="of_a_user")
    yield dataclasses.replace(config, mechanism=mechanism)
    KERNELS.pop(MECHANISMS.pop("of_a_user"))


def test_files_outside_the_package_are_identified(user_config, tmp_path):
    digest = hashlib.sha256((tmp_path / "of_a_user.py").read_bytes()).hexdigest()
    expected = {"mechanism": digest, "kernel of_a_user": digest}
    assert external_sources(user_config) == expected
    (tmp_path / "of_a_user.py").write_text(f"{MECHANISM}# changed\n")
    assert external_sources(user_config)["mechanism"] != digest


def test_code_without_a_file_is_named(user_config, monkeypatch):
    monkeypatch.delattr(sys.modules["of_a_user"], "__file__")
    assert external_sources(user_config)["mechanism"] is None


def test_files_of_the_package_are_not_external():
    experiment = tiny.experiment("linear")
    assert run_identity(experiment, "cpu")["external_sources"] == {}
