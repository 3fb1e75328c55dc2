"""Names of the folders of a run's checkpoints; readable without torch."""

import re
from pathlib import Path

_NAME = re.compile(r"(?:step|best)-(\d+)")


def step_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:06d}"


def best_name(step: int) -> str:
    """Return the name of a best model, by the step of its evaluation."""
    return f"best-{step:06d}"


def find_steps(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, the last one at the end."""
    return _find(run_dir, "step-*")


def find_best(run_dir: Path) -> Path | None:
    """Return the best model of a run so far; None before the first evaluation."""
    best = _find(run_dir, "best-*")
    return best[-1] if best else None


def saved_step(run_dir: Path) -> int | None:
    """Return the step of the last checkpoint of a run; None without one, as of a finished run."""
    steps = find_steps(run_dir)
    return _step_of(steps[-1]) if steps else None


def _find(run_dir: Path, pattern: str) -> list[Path]:
    folders = (path for path in run_dir.glob(pattern) if _NAME.fullmatch(path.name))
    return sorted(folders, key=_step_of)


def _step_of(folder: Path) -> int:
    return int(folder.name.partition("-")[2])
