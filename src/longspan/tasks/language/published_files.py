"""Texts that are published as one file, plain or in a zip: text8, enwik8; never from the network.

The first bytes are training, those behind them validation, the last ones test.
"""

import dataclasses
import hashlib
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from longspan.data import archives
from longspan.data.document_rows import DocumentWriter
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.store import Examples
from longspan.errors import DataError, MissingSourceError
from longspan.files import check_file

IMPORT_HINT = "another text becomes a task by `longspan data import corpus PATH --objective next`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedText:
    """A published file.

    Attributes:
        name: name of the file, and of the zip without its suffix.
        url: address of the zip.
        sizes: bytes of each split, in the order of the file.
        sha256: of the unpacked file; None: not checked.
    """

    name: str
    url: str
    sizes: Mapping[str, int]
    sha256: str | None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(self.sizes.values())


def find(text: PublishedText, data: Path | None) -> SourceFiles:
    """Find a copy of a published file that has its size.

    Args:
        text: the published file.
        data: a folder, the file or its zip. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA.

    Raises:
        DataError: there is no copy (the message says how to get one), or it has another size.
    """
    wrong = []
    paths = search_paths(data, f"{text.name}, {text.name}.zip or the folder that holds one of them")
    for path in paths:
        for copy in _copies_in(text.name, path):
            size = _unpacked_size(copy, text.name)
            if size == text.size:
                return copy
            wrong.append(f"{copy.path} has {size:,}")
    if wrong:
        raise DataError(
            f"{text.name} has {text.size:,} bytes, but {'; '.join(wrong)}; fetch {text.url} again. "
            f"As official data, a part of it is refused; {IMPORT_HINT}"
        )
    raise MissingSourceError(
        f"{text.name} is not here (searched {format_paths(paths)}); download {text.url} to FOLDER "
        f"and run `longspan data build {text.name} --data FOLDER`"
    )


def read_splits(
    text: PublishedText, copy: SourceFiles, ids: np.ndarray, scratch: Path
) -> dict[str, Examples]:
    """Return one document for each split, in constant memory.

    Args:
        text: the published file.
        copy: a copy of it.
        ids: id of each byte, (256,); 0 of those that the file lacks.
        scratch: folder of the tokens.

    Raises:
        DataError: the copy has another size, another sha256 or another byte.
        RunError: the disk is full.
    """
    writers = {name: DocumentWriter(scratch / f"{name}.tokens", np.uint8) for name in text.sizes}
    ends = np.cumsum(list(text.sizes.values()))
    digest, done = hashlib.sha256(), 0
    for block in _blocks(copy, text.name):
        digest.update(block)
        tokens = ids[np.frombuffer(block, np.uint8)]
        if not tokens.all():
            place = int(np.argmin(tokens))
            raise DataError(
                f"{copy.path}: byte {done + place:,} is {block[place : place + 1]!r}, which "
                f"{text.name} lacks; fetch {text.url} again"
            )
        bounds = np.clip(np.array([0, *ends]) - done, 0, len(tokens))
        for writer, first, last in zip(writers.values(), bounds, bounds[1:], strict=False):
            writer.add(tokens[first:last])
        done += len(block)
    if done != text.size or text.sha256 not in (None, digest.hexdigest()):
        raise DataError(
            f"{copy.path} is not the published {text.name}: expected {text.size:,} bytes with the "
            f"sha256 {text.sha256}, got {done:,} with {digest.hexdigest()}; fetch {text.url} again"
        )
    for writer in writers.values():
        writer.end_document()
    return {name: writer.examples() for name, writer in writers.items()}


def _copies_in(name: str, path: Path) -> Iterator[SourceFiles]:
    """Yield the copies in a search path, which may be one itself; unpacked ones first."""
    folders = usual_folders(path, name) if path.is_dir() else ()
    files = [path] if path.is_file() else [folder / name for folder in folders]
    for one in (*files, *(folder / f"{name}.zip" for folder in folders)):
        if one.is_file() and not _is_other_archive(one, name, is_search_path=one == path):
            yield SourceFiles(form="zip" if _is_zip(one) else "file", path=one)


def _is_other_archive(path: Path, name: str, *, is_search_path: bool) -> bool:
    """Return whether a file is another archive; of zips, only the search path is checked."""
    if not _is_zip(path):
        return tarfile.is_tarfile(path)
    with zipfile.ZipFile(path) as archive:
        return is_search_path and name not in archive.namelist()


def _is_zip(path: Path) -> bool:
    return zipfile.is_zipfile(check_file(path))


def _unpacked_size(copy: SourceFiles, name: str) -> int:
    """Return the bytes of the file; 0 if a zip lacks it."""
    if copy.form == "file":
        return copy.path.stat().st_size
    try:
        with zipfile.ZipFile(copy.path) as archive:
            return archive.getinfo(name).file_size
    except KeyError:
        return 0
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{copy.path} is damaged ({error}); fetch it again") from error


def _blocks(copy: SourceFiles, name: str) -> Iterator[bytes]:
    """Yield the unpacked file in blocks."""
    limits = archives.Limits(member=1 << 30, total=1 << 30)
    if copy.form == "zip":
        for member in archives.read_members(copy.path, name.__eq__, limits):
            yield from member.blocks()
        return
    with archives.open_member(copy.path.parent, copy.path.name, limits) as member:
        yield from member.blocks()
