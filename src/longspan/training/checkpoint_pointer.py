"""Pointer file of a run's checkpoints; readable without torch.

`last.json` names the last checkpoint and the one before it, for resumption, each with the best
model at that time. It is replaced atomically, so a checkpoint counts from the moment the pointer
names it.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.files import read_json, write_json

POINTER = "last.json"
FIELDS = ("last", "best")
_NAMES = {"last": re.compile(r"step-\d+"), "best": re.compile(r"best-\d+")}


@dataclasses.dataclass(frozen=True)
class SavedNames:
    """Names of the folders of a checkpoint and of the best model at its time.

    Attributes:
        last: `step-<step>`; None for a finished run.
        best: `best-<step>`; None before the first evaluation.
    """

    last: str | None
    best: str | None

    @property
    def names(self) -> set[str]:
        """Names that are not None."""
        return {name for name in (self.last, self.best) if name is not None}


@dataclasses.dataclass(frozen=True)
class Pointer:
    """Content of the pointer file.

    Attributes:
        current: last checkpoint and best model.
        previous: the checkpoint before it; None for the first one and for a finished run.
    """

    current: SavedNames
    previous: SavedNames | None = None

    @property
    def last(self) -> str | None:
        """Name of the last checkpoint."""
        return self.current.last

    @property
    def best(self) -> str | None:
        """Name of the best model so far."""
        return self.current.best

    @property
    def names(self) -> set[str]:
        """Names of all folders in use."""
        return self.current.names | (self.previous.names if self.previous else set())


def read_pointer(run_dir: Path) -> Pointer:
    """Read the pointer file of a run.

    Raises:
        DataError: the file is missing, damaged or malformed.
    """
    path = run_dir / POINTER
    content = read_json(path)
    if not isinstance(content, dict) or content.keys() != {*FIELDS, "previous"}:
        raise DataError(f"{path} does not name checkpoints")
    previous = content["previous"]
    return Pointer(
        current=_names(content, path),
        previous=None if previous is None else _names(previous, path),
    )


def write_pointer(run_dir: Path, pointer: Pointer) -> None:
    """Replace the pointer file of a run, atomically.

    Raises:
        RunError: the file cannot be written.
    """
    previous = pointer.previous and dataclasses.asdict(pointer.previous)
    write_json(run_dir / POINTER, {**dataclasses.asdict(pointer.current), "previous": previous})


def saved_step(run_dir: Path) -> int | None:
    """Return the step of the last checkpoint in a run's folder; None without a checkpoint.

    Raises:
        DataError: the pointer is damaged.
    """
    last = read_pointer(run_dir).last if (run_dir / POINTER).exists() else None
    return None if last is None else int(last.removeprefix("step-"))


def _names(content: Any, path: Path) -> SavedNames:
    """Return the names in a part of the pointer file.

    Raises:
        DataError: one is not the name of a checkpoint.
    """
    for field in FIELDS:
        name = content.get(field, ...) if isinstance(content, dict) else ...
        if name is not None and not (isinstance(name, str) and _NAMES[field].fullmatch(name)):
            raise DataError(f"{path}: {field} should be the name of a checkpoint, got {name!r:.40}")
    return SavedNames(last=content["last"], best=content["best"])
