"""Published datasets on this machine: where to search, which copy to read, its identity."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from longspan.data import archives, hub
from longspan.errors import DataError, MissingSourceError
from longspan.files import file_sha256

VARIABLES = ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """One copy of a dataset.

    Attributes:
        form: form of the copy, such as "zip".
        path: file, archive or folder.
        files: files of each part, such as a split; none: those of `path`.
    """

    form: str
    path: Path
    files: Mapping[Any, tuple[Path, ...]] = dataclasses.field(default_factory=dict)

    @property
    def paths(self) -> list[Path]:
        """Files of all parts, or the file or archive; a folder is left out."""
        paths = [path for paths in self.files.values() for path in paths] or [self.path]
        return [path for path in paths if not path.is_dir()]

    @property
    def firsts(self) -> dict[Any, Path]:
        """First file of each part, from which readers of parquet find the others."""
        return {part: paths[0] for part, paths in self.files.items()}

    @property
    def origin(self) -> dict[str, Any]:
        """Identity of the copy, the same wherever it is stored; part of the cache key."""
        return {"form": self.form, "bytes": self.sizes()}

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes, by its name."""
        return {path.name: path.stat().st_size for path in self.paths}

    def checksums(self) -> dict[str, str]:
        """Return the sha256 of each file, by its name."""
        return {path.name: file_sha256(path) for path in self.paths}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedFiles(SourceFiles):
    """One copy of a dataset of which copies may be incomplete.

    Attributes:
        rows: in all splits; None if counting them takes seconds.
    """

    rows: int | None

    @property
    def origin(self) -> dict[str, Any]:
        """Form, number of rows, file names and sizes."""
        return {**super().origin, "rows": self.rows}


C = TypeVar("C", bound=CountedFiles)


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
    folders = [Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)]
    return [*folders, *(hub.cached_folders(hub_name) if hub_name else ())]


def format_paths(paths: list[Path]) -> str:
    """Format the searched paths for a message."""
    return ", ".join(map(str, paths)) or "nothing, since $LONGSPAN_DATA is not set"


def usual_folders(path: Path, name: str) -> tuple[Path, ...]:
    """Return the folders in which a copy of the dataset may be, given a search path."""
    return (path, path / name, path / name / "full")


def find_archives(
    path: Path,
    folders: Sequence[Path],
    pattern: str,
    name_filter: archives.NameFilter,
    limits: archives.Limits,
) -> list[Path]:
    """Return the search path if it is an archive with a wanted file, and archives in the folders.

    Raises:
        DataError: the search path is a file that is damaged or no archive.
    """
    if path.is_file():
        return [path] if archives.may_contain(path, name_filter, limits) else []
    return [one for folder in folders for one in folder.glob(pattern)]


def find_most_complete(
    title: str,
    copies_in: Callable[[Path], Iterator[C]],
    *,
    data: Path | None,
    hub_name: str,
    remedy: str,
    whole: int,
    count_rows: Callable[[C], int],
    is_preferred: Callable[[C], bool] = lambda copy: False,
) -> C:
    """Return the copy with the most rows in the first search path that has a copy.

    Of equals it is a preferred one, then the first.

    Args:
        title: the dataset, for messages.
        copies_in: yields the copies in one search path.
        data: as for `search_paths`.
        hub_name: as for `search_paths`.
        remedy: how to get the dataset, for the message.
        whole: number of rows of the published dataset; a copy with as many is not counted.
        count_rows: reads a copy to count its rows.
        is_preferred: tells which of two equal copies to take.

    Raises:
        DataError: there is no copy, or one is malformed.
    """
    paths = search_paths(data, f"the folder that holds {title}", hub_name)
    copies = next((found for path in paths if (found := list(copies_in(path)))), [])
    if not copies:
        raise MissingSourceError(f"{title} is not here (searched {format_paths(paths)}); {remedy}")
    if complete := [copy for copy in copies if copy.rows == whole]:
        return max(complete, key=is_preferred)
    if len(copies) == 1:
        return copies[0]

    def rank(copy: C) -> tuple[int, bool]:
        return (count_rows(copy) if copy.rows is None else copy.rows), is_preferred(copy)

    return max(copies, key=rank)
