"""Source files as a user has them: a folder, a folder above it, or an archive of either.

Readers of published data sets search the usual places of a folder. What they do not find there is
looked for in the folders below. An archive that a reader does not read itself is unpacked into a
temporary folder for the time of the build.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longspan.data import archives
from longspan.data.cache import ProgressCallback
from longspan.errors import DataError, MissingSourceError
from longspan.files import explain_write_errors, file_sha256
from longspan.space import check_disk
from longspan.temporaries import locked_folder

logger = logging.getLogger(__name__)

Identify = Callable[[Path | None], dict[str, Any]]

_DEPTH = 3  # levels of folders that are searched
_MOST_FOLDERS = 1000
_FOREIGN = "__MACOSX"  # folder that a Mac adds to its archives
_LIMITS = archives.Limits(member=1 << 36, total=1 << 37)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenSource:
    """Place of the source files.

    Attributes:
        path: folder, file or archive; None: the reader searches the usual places.
        identity: identity of the files.
        is_packed: whether `path` is an archive that the reader does not read itself.
    """

    path: Path | None
    identity: dict[str, Any]
    is_packed: bool = False


def locate(data: Path | None, identify: Identify) -> GivenSource:
    """Find the source files in what a user has named.

    Args:
        data: folder, file or archive; None: the reader searches the usual places.
        identify: returns the identity of the files in a folder or file.

    Raises:
        MissingSourceError: they are not there.
        DataError: they are malformed, or several folders have such files.
    """
    try:
        return GivenSource(path=data, identity=identify(data))
    except MissingSourceError:
        if data is None:
            raise
        source = (_search_below if data.is_dir() else _describe_archive)(data, identify)
        if source is None:
            raise
        return source


@contextlib.contextmanager
def unpacked(
    source: GivenSource, location: Path, identify: Identify, progress: ProgressCallback
) -> Iterator[Path | None]:
    """Yield the path that a reader takes; an archive is unpacked as long as it is read.

    Messages of errors name the archive in place of the temporary folder.

    Args:
        source: what `locate` found.
        location: path beside which the temporary folder is.
        identify: as for `locate`.
        progress: called with each file that is unpacked.

    Raises:
        DataError: the archive is damaged or hostile, or lacks the files.
        RunError: the disk is full.
    """
    archive = source.path
    if archive is None or not source.is_packed:
        yield archive
        return
    location.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(location) as temporary:
        folder = temporary / "files"
        _unpack(archive, folder, progress)
        try:
            yield locate(folder, identify).path
        except DataError as error:
            raise type(error)(str(error).replace(str(folder), str(archive))) from error


def _search_below(data: Path, identify: Identify) -> GivenSource | None:
    """Return the source in the folders below; of several levels, in the first one that has it.

    Raises:
        DataError: several folders have such files; or one, and they are malformed.
    """
    malformed: list[DataError] = []
    for folders in _levels(data):
        sources: list[GivenSource] = []
        for folder in folders:
            try:
                sources.append(GivenSource(path=folder, identity=identify(folder)))
            except MissingSourceError:
                continue
            except DataError as error:
                malformed.append(error)
        if len(sources) > 1:
            names = ", ".join(str(one.path) for one in sources)
            raise DataError(f"{data} has several folders with such files, {names}; pass one")
        if sources:
            logger.info("reading %s", sources[0].path)
            return sources[0]
    if len(malformed) == 1:
        raise malformed[0]
    return None


def _levels(data: Path) -> Iterator[list[Path]]:
    """Yield the folders below a folder, level by level.

    Hidden ones are left out, and those that cannot be read.
    """
    level, count = _subfolders(data) or [], 0
    for _ in range(_DEPTH):
        count += len(level)
        if not level or count > _MOST_FOLDERS:
            return
        subfolders_by_folder = {folder: _subfolders(folder) for folder in level}
        yield [
            folder for folder, subfolders in subfolders_by_folder.items() if subfolders is not None
        ]
        level = [
            folder for subfolders in subfolders_by_folder.values() for folder in subfolders or ()
        ]


def _subfolders(folder: Path) -> list[Path] | None:
    """Return the visible folders in a folder by name; None if it cannot be read."""
    try:
        return [
            path
            for path in sorted(folder.iterdir())
            if path.is_dir() and not path.name.startswith(".") and path.name != _FOREIGN
        ]
    except OSError as error:
        logger.warning("leaving out %s, which cannot be read: %s", folder, error.strerror)
        return None


def _describe_archive(path: Path, _: Identify) -> GivenSource | None:
    """Return an archive as a source, known by its content; None if it is none."""
    if not archives.is_archive(path):
        return None
    status = path.stat()
    sha256 = _sha256(path.absolute(), status.st_size, status.st_mtime_ns)
    return GivenSource(path=path, identity={"form": "unpacked", "sha256": sha256}, is_packed=True)


@functools.lru_cache(maxsize=32)
def _sha256(path: Path, size: int, mtime: int) -> str:
    """Return the sha256 of a file, computed once for each size and time of change."""
    return file_sha256(path)


def _unpack(archive: Path, folder: Path, progress: ProgressCallback) -> None:
    """Unpack the files of an archive, with the checks of `archives`.

    Raises:
        DataError: the archive is damaged or hostile.
        RunError: the disk is full.
    """
    for done, member in enumerate(archives.read_members(archive, _is_wanted, _LIMITS)):
        progress(f"unpacking {archive.name}", done, 0)
        check_disk(
            member.size, folder.parent, f"unpacking {archive}", "free space, or set LONGSPAN_CACHE"
        )
        path = folder / member.name
        with explain_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for block in member.blocks():
                    file.write(block)
    folder.mkdir(exist_ok=True)


def _is_wanted(name: str) -> bool:
    parts = Path(name).parts
    return _FOREIGN not in parts and not any(part.startswith(".") for part in parts)
