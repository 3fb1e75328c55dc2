"""Published datasets on this machine: where to search, which copy to read, its identity."""

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from longspan.data import hub
from longspan.data.parquet import SOURCE_SPLITS, SourceSplit
from longspan.errors import DataError
from longspan.files import file_sha256

VARIABLES = ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA")


class SourceFiles(ABC):
    """The files of one copy of a dataset."""

    @property
    @abstractmethod
    def paths(self) -> list[Path]:
        """Files that identify the copy."""

    @property
    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """Identity of the copy, the same wherever it is stored; part of the cache key."""

    def sizes(self) -> dict[str, int]:
        """Return the size of each of `paths` in bytes, by file name."""
        return {path.name: path.stat().st_size for path in self.paths}

    def checksums(self) -> dict[str, str]:
        """Return the sha256 of each of `paths`, by file name."""
        return {path.name: file_sha256(path) for path in self.paths}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitFiles(SourceFiles):
    """One copy of a dataset that is published as a training and a test split."""

    form: str
    files: dict[SourceSplit, tuple[Path, ...]]  # an archive contains both splits
    rows: int | None  # in both splits; None if counting them takes seconds

    @property
    def paths(self) -> list[Path]:
        """Files of both splits, sorted; a folder is left out."""
        paths = {path for split in SOURCE_SPLITS for path in self.files[split]}
        return sorted(path for path in paths if path.is_file())

    @property
    def origin(self) -> dict[str, Any]:
        """Form, number of rows, file names and sizes."""
        return {"form": self.form, "rows": self.rows, "bytes": self.sizes()}


C = TypeVar("C", bound=SplitFiles)


def search_paths(data: Path | None, expected: str, hub_name: str | None = None) -> list[Path]:
    """Return the paths to search for source files.

    Args:
        data: a folder or file to search alone. None: search the folders that the environment
            names, then the cache of the Hugging Face hub.
        expected: what `data` should hold, for the message.
        hub_name: name of the dataset on the Hugging Face hub, if it is there.

    Raises:
        DataError: `data` does not exist.
    """
    if data is not None:
        if not data.exists():
            raise DataError(f"{data} does not exist; expected {expected}")
        return [data]
    named = [Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)]
    return [*named, *(hub.cached_folders(hub_name) if hub_name else ())]


def format_paths(paths: list[Path]) -> str:
    """Format the searched paths for a message."""
    return ", ".join(map(str, paths)) or "nothing, since $LONGSPAN_DATA is not set"


def find_copy(
    title: str,
    folder: str,
    copies_in: Callable[[Path], Iterator[C]],
    *,
    data: Path | None,
    hub_name: str,
    remedy: str,
) -> C:
    """Return the first copy of a dataset in the search paths.

    In a folder `FOLDER/full` is searched first, then `FOLDER`, then the folder itself.

    Args:
        title: the dataset, for messages.
        folder: usual name of its folder.
        copies_in: yields the copies in a folder, or in an archive, the preferred form first.
        data: as for `search_paths`.
        hub_name: as for `search_paths`.
        remedy: how to get the dataset, for the message.

    Raises:
        DataError: there is no copy, or one is malformed.
    """
    paths = search_paths(data, f"the folder that holds {title}", hub_name)
    for path in paths:
        for place in (path / folder / "full", path / folder, path):
            for copy in copies_in(place):
                return copy
    raise DataError(f"{title} is not here (searched {format_paths(paths)}); {remedy}")


def find_archives(place: Path, pattern: str) -> list[Path]:
    """Return the place itself if it is a file, or the archives in the folder."""
    return [place] if place.is_file() else sorted(place.glob(pattern))
