"""Files of a folder, a tar (plain, gzip, bzip2 or xz) or a zip; nothing is extracted to disk.

The first bytes of an archive tell its format, whatever the suffix. Every archive is read to its
end, so a truncated one never passes for a small one.
"""

import contextlib
import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from longspan.errors import DataError

_READ_ERRORS = (
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # zipfile, for an encrypted member
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
_ZIP_SIGNATURES = (b"PK\3\4", b"PK\5\6")
_BUFFER = 1 << 18

Wanted = Callable[[str], object]


class Member(NamedTuple):
    """One file of a folder or an archive; read it once, before asking for the next one."""

    name: str  # path inside the folder or archive, with slashes
    where: str  # path on this machine, for messages
    file: IO[bytes]

    def read(self, most: int) -> bytes:
        """Return the whole content.

        Raises:
            DataError: the file is truncated, damaged or has more than `most` bytes.
        """
        with _explain_read_errors(self.where):
            content = self.file.read(most + 1)
        if len(content) > most:
            raise DataError(f"{self.where} has more than {most:,} bytes")
        return content

    def lines(self, longest: int) -> Iterator[tuple[str, bytes]]:
        """Yield the location of each line and the line without its end; unpack a `.gz` member.

        Raises:
            DataError: a line is longer than `longest` bytes, or the file is truncated or damaged.
        """
        packed = self.name.endswith(".gz")
        file = gzip.GzipFile(fileobj=self.file) if packed else self.file
        with _explain_read_errors(self.where):
            for number, line in enumerate(iter(lambda: file.readline(longest + 2), b""), start=1):
                where = f"{self.where}: line {number}"
                text = line.removesuffix(b"\n").removesuffix(b"\r")
                if len(text) > longest:
                    raise DataError(f"{where} has more than {longest:,} bytes")
                yield where, text


def read_members(path: Path, wanted: Wanted) -> Iterator[Member]:
    """Yield the members of a folder or an archive whose name is wanted, in one pass.

    Raises:
        DataError: the archive is truncated or of an unknown format, or a file cannot be read; the
            message names the archive and the member.
    """
    if path.is_dir():
        for name in list_names(path, wanted):
            with open_member(path, name) as member:
                yield member
        return
    with _explain_read_errors(str(path)):
        with path.open("rb") as file:
            head = file.read(4)
        if not head:
            raise DataError(f"{path} is empty; expected a tar or zip archive")
        yield from (_read_zip if head in _ZIP_SIGNATURES else _read_tar)(path, wanted)


def list_names(folder: Path, wanted: Wanted) -> Iterator[str]:
    """Yield the names of the wanted files below a folder, sorted within each folder.

    Raises:
        DataError: a folder below cannot be read.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error

    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        folders.sort()
        below = Path(parent).relative_to(folder)
        yield from filter(wanted, ((below / name).as_posix() for name in sorted(names)))


@contextlib.contextmanager
def open_member(folder: Path, name: str) -> Iterator[Member]:
    """Open one file of a folder by its relative path.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    path = folder / name
    with contextlib.ExitStack() as stack:
        with _explain_read_errors(str(path)):
            file = stack.enter_context(path.open("rb"))
        yield Member(name, str(path), file)


class _StrictTarInfo(tarfile.TarInfo):
    """A tar header; a damaged one raises an error, which `TarFile` takes for the end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_StrictTarInfo":
        try:
            return super().fromtarfile(tarfile)
        except _EndOfTar:
            raise
        except _DamagedHeader as error:
            raise EOFError(str(error)) from error


_DamagedHeader = tarfile.HeaderError
_EndOfTar = tarfile.EOFHeaderError  # type: ignore[attr-defined]


def _read_tar(path: Path, wanted: Wanted) -> Iterator[Member]:
    with tarfile.open(path, "r:*", tarinfo=_StrictTarInfo) as archive:
        while (info := archive.next()) is not None:
            # `TarFile` keeps every header: 2,400,000 for lra_release
            archive.members.clear()  # type: ignore[attr-defined]
            name = os.path.normpath(info.name)
            if info.isdir() or not wanted(name):
                continue
            if not info.isreg():
                raise DataError(f"{path}: {name} is a link or a device; expected a regular file")
            with _explain_read_errors(f"{path}: {name}"):
                yield Member(name, f"{path}: {name}", cast(IO[bytes], archive.extractfile(info)))
        # compressed files have their checksum at the end
        while archive.fileobj.read(_BUFFER):
            pass


def _read_zip(path: Path, wanted: Wanted) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = os.path.normpath(info.filename)
            if info.is_dir() or not wanted(name):
                continue
            with _explain_read_errors(f"{path}: {name}"), archive.open(info) as content:
                yield Member(name, f"{path}: {name}", content)


@contextlib.contextmanager
def _explain_read_errors(where: str) -> Iterator[None]:
    """Raise `DataError` naming the file in place of the errors of the reading libraries."""
    try:
        yield
    except DataError:
        raise
    except _READ_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{where} cannot be read ({error.strerror})") from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{where} is truncated, damaged or no archive ({reason}); fetch it again"
        ) from error
