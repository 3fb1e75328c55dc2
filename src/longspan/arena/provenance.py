"""Provenance of records: identity of the run, versions, sources, device, date."""

import datetime
import functools
import importlib.metadata
import inspect
import platform
import subprocess
from pathlib import Path
from typing import Any

from longspan import __version__
from longspan.arena.experiment import Experiment
from longspan.attention import MECHANISMS
from longspan.attention.registry import KERNELS
from longspan.config import RunConfig
from longspan.files import file_sha256
from longspan.tasks import TASKS

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
PACKAGE = Path(__file__).resolve().parents[1]  # folder of longspan

_DIRTY = "-dirty"  # as git appends it


def run_identity(experiment: Experiment, device: str) -> dict[str, Any]:
    """Return the fields that results and failures share."""
    return {
        "protocol": experiment.protocol,
        "config": experiment.config,
        "overrides": experiment.overrides,
        "seed": experiment.seed,
        "config_hash": experiment.hash,
        "device": device,
        "versions": versions(),
        "git_commit": git_commit(),
        "external_sources": external_sources(experiment.config),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"longspan": __version__, "python": platform.python_version(), **found}


def device_name(device: str) -> str:
    """Return the name of a torch device for records."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


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


def external_sources(config: RunConfig) -> dict[str, str | None]:
    """Return the sha256 of the files outside the package that define a part of a run, by part.

    Parts are the mechanism, its kernels and the task. The commit says nothing about these files.
    None: the part has no file, as in a notebook.
    """
    mechanism = MECHANISMS[config.mechanism.name]
    parts: dict[str, Any] = {"mechanism": mechanism, "task": TASKS[config.task.name]}
    for name, kernel in KERNELS.get(mechanism, {}).items():
        parts[f"kernel {name}"] = kernel.run
    paths = {name: _source_file(part) for name, part in parts.items()}
    return {
        name: file_sha256(path) if path else None
        for name, path in paths.items()
        if path is None or not path.is_relative_to(PACKAGE)
    }


def _source_file(part: Any) -> Path | None:
    try:
        path = Path(inspect.getsourcefile(part) or "").resolve()
    except (OSError, TypeError):
        return None
    return path if path.is_file() else None
