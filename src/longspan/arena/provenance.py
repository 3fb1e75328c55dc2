"""Provenance of records: identity of the run, versions, git commit, device, date."""

import datetime
import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from longspan import __version__
from longspan.arena.experiment import Experiment

PACKAGES = ("torch", "transformers", "accelerate", "numpy")


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
    """Return the commit of the library's working tree, marked if dirty; None outside one."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", str(Path(__file__))],
            cwd=here,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() if tracked.returncode == 0 else None
