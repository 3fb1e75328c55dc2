"""Provenance of records: identity of the run, versions, sources, device, date.

A file has one name in all records: its path from the folder of the package (`longspan/...`), or
outside the package its own name.
"""

import datetime
import functools
import importlib.metadata
import inspect
import itertools
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from longspan import __version__
from longspan.arena.experiment import Experiment
from longspan.attention import MECHANISMS
from longspan.attention.registry import KERNELS
from longspan.files import file_sha256
from longspan.results import CodeVersion, SourceFile
from longspan.tasks import TASKS

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
PACKAGE = Path(__file__).resolve().parents[1]  # folder of longspan

_DIRTY = "-dirty"  # as git appends it
_DIFF = ("diff", "--name-only", "--relative", "--no-renames", "-z", "HEAD")
# Files that users loaded, by part, and the protocol whose runs they define; None: all runs.
_LOADED: dict[str, "_LoadedFile"] = {}


def run_identity(experiment: Experiment, device: str) -> dict[str, Any]:
    """Return the fields that results and failures share."""
    return {
        "protocol": experiment.protocol,
        "config": experiment.config,
        "overrides": experiment.overrides,
        "seed": experiment.seed,
        "config_hash": experiment.hash,
        "device": device,
        **vars(code_version(experiment)),
        "date": now(),
    }


def code_version(experiment: Experiment) -> CodeVersion:
    """Return the code that runs an experiment in this process."""
    return CodeVersion(
        versions=versions(),
        git_commit=git_commit(),
        source_files=source_files(experiment),
        changed_files=changed_files(),
        added_files=added_files(),
    )


def code_differences(there: CodeVersion, here: CodeVersion) -> list[str]:
    """Return what differs between recorded code and that of this process, by name.

    Commits differ only where Python files of the package do.
    """
    parts = _entry_differences(there.versions, here.versions)
    if there.source_files is not None:
        parts += _entry_differences(there.source_files, here.source_files or {})
    return parts + _package_differences(there, here)


def _entry_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the entries that differ, as `torch: 2.11.0 there, 2.12.0 here`."""
    return [
        f"{name}: {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
        for name in dict.fromkeys((*there, *here))
        if there.get(name) != here.get(name)
    ]


def _package_differences(there: CodeVersion, here: CodeVersion) -> list[str]:
    """Return the Python files of the package that differ; or the commits, if those are unknown."""
    commits = [(x.git_commit or "").removesuffix(_DIRTY) for x in (there, here)]
    if commits[0] == commits[1]:
        committed: set[str] = set()
    elif all(commits):
        try:
            paths = _list_files("diff", "--name-only", "--relative", "--no-renames", "-z", *commits)
        except (OSError, subprocess.SubprocessError):
            return _entry_differences({"commit": commits[0]}, {"commit": commits[1]})
        committed = {_name(path) for path in paths}
    else:
        return _entry_differences({"commit": there.git_commit}, {"commit": here.git_commit})
    old, new = ({**(x.changed_files or {}), **(x.added_files or {})} for x in (there, here))
    part_files = [str(x.name) for x in (there.source_files or {}).values() if not x.is_external]
    return [
        f"{name} changed"
        for name in sorted(committed | {*old, *new})
        # Named above, with its part.
        if name not in part_files
        # A file may change after this process has imported it.
        and (name not in old or old[name] != (new[name] if name in new else _sha256(name)))
    ]


def _sha256(name: str) -> str | None:
    """Return the sha256 of a file of the package by its name in records; None: absent."""
    path = PACKAGE.parent / name
    return file_sha256(path) if path.is_file() else None


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"longspan": __version__, "python": platform.python_version(), **packages}


def device_name(device: str) -> str:
    """Return the name of a torch device for records."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


def measured_on(device: str) -> dict[str, Any]:
    """Return device, versions and date, as fields of a record of a measurement."""
    return {"device": device_name(device), "versions": versions(), "date": now()}


def now() -> str:
    """Return the date of a record: ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@functools.cache
def git_commit() -> str | None:
    """Return the commit of the library's working tree, marked if dirty; None outside one.

    It is dirty if a tracked file has changed, or if the package contains a Python file that is not
    tracked, ignored ones included: the registries import every file of their folders.
    """
    try:
        tracked = _git("ls-files", "--", "__init__.py")
        commit = _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
        untracked = _git("ls-files", "--others", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return None
    if not tracked:
        return None
    return f"{commit.removesuffix(_DIRTY)}{_DIRTY}" if untracked else commit


def _git(*arguments: str) -> str:
    """Return the output of git in the folder of the package."""
    command = ["git", *arguments]
    done = subprocess.run(
        command, cwd=PACKAGE, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


@functools.cache
def changed_files() -> dict[str, str | None] | None:
    """Return the sha256 of the Python files of the package that differ from the commit, by name.

    None for a deleted file. None: no commit.
    """
    if git_commit() is None:
        return None
    paths = _list_files(*_DIFF, "--diff-filter=a")
    return {_name(path): file_sha256(path) if path.is_file() else None for path in paths}


@functools.cache
def added_files() -> dict[str, str] | None:
    """Return the sha256 of the Python files of the package that the commit lacks, by name.

    They are staged, untracked or ignored. None: no commit.
    """
    if git_commit() is None:
        return None
    paths = [*_list_files(*_DIFF, "--diff-filter=A"), *_list_files("ls-files", "--others", "-z")]
    return {_name(path): file_sha256(path) for path in sorted(paths) if path.is_file()}


def _list_files(*arguments: str) -> list[Path]:
    """Return the Python files of the package that a git command lists, separated by zeros."""
    return [PACKAGE / name for name in _git(*arguments, "--", "*.py").split("\0") if name]


def register_source_file(part: str, path: Path, *, protocol: str | None = None) -> None:
    """Name a file that a user loaded, such as a plug-in or a protocol, for the records of runs.

    Call it where the file is loaded, in every process: the hash is of its content now.

    Args:
        part: name of the part, such as "plug-in mine" or "protocol mine"; of further files with
            this name "plug-in mine 2".
        path: file.
        protocol: protocol whose runs the file defines; None: it may define a part of any run.
    """
    path = path.resolve()
    names = itertools.chain([part], (f"{part} {number}" for number in itertools.count(2)))
    if protocol is None:  # names of protocols are unique
        part = next(x for x in names if x not in _LOADED or _LOADED[x].path == path)
    _LOADED[part] = _LoadedFile(path, _read_file(path), protocol)


def source_files(experiment: Experiment) -> dict[str, SourceFile]:
    """Return the files that define a run, by part.

    Parts are the mechanism and the task, its kernels from outside the package, and the files of
    `register_source_file`.
    """
    mechanism = MECHANISMS[experiment.mechanism]
    always = {"mechanism": mechanism, "task": TASKS[experiment.task]}
    files = {part: _describe(_source_path(value)) for part, value in always.items()}
    for name, kernel in KERNELS.get(mechanism, {}).items():
        file = _describe(_source_path(_function_of(kernel.run)))
        if file.is_external:
            files[f"kernel {name}"] = file
    for part, loaded in _LOADED.items():
        if loaded.protocol in (None, experiment.protocol):
            files[part] = loaded.file
    return files


class _LoadedFile(NamedTuple):
    path: Path
    file: SourceFile
    protocol: str | None


def _describe(path: Path | None) -> SourceFile:
    """Return name and hash of a file; of a file that a user loaded, as it was then."""
    loaded = (x.file for x in _LOADED.values() if path is not None and x.path == path.resolve())
    return next(loaded, None) or _read_file(path)


def _read_file(path: Path | None) -> SourceFile:
    if path is None or not path.is_file():
        return SourceFile(name=None, sha256=None)
    return SourceFile(name=_name(path), sha256=file_sha256(path))


def _name(path: Path) -> str:
    if path.is_relative_to(PACKAGE):
        return f"longspan/{path.relative_to(PACKAGE).as_posix()}"
    return path.name


def _function_of(value: Any) -> Any:
    """Return the function inside wrappers and partial calls."""
    while isinstance(value, functools.partial):
        value = value.func
    return inspect.unwrap(value)


def _source_path(value: Any) -> Path | None:
    try:
        return Path(inspect.getsourcefile(value) or "").resolve()
    except (OSError, TypeError):
        return None
