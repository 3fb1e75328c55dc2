"""Files of a folder, a tar (plain, gzip, bzip2 or xz) or a zip, read without being extracted.

The first bytes of an archive tell its format, whatever the suffix. Every archive is read to its
end, so a truncated one never passes for a small one.

An archive may be hostile. Python's own extraction filter (`tarfile.data_filter`) rejects paths
that lead outside and devices, links are rejected altogether, and `Limits` bounds the number of
members and their unpacked bytes.
"""

import contextlib
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

from longspan.errors import DataError, reason_of
from longspan.files import check_file, open_file

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
_MOST_HEADER_BYTES = 1 << 20  # of a long name or of extended attributes in a tar
_BUFFER = 1 << 18
_BLOCK = 1 << 20  # bytes that `Member.blocks` yields

NameFilter = Callable[[str], object]


class Limits(NamedTuple):
    """The most that may be read from one folder or archive."""

    member: int  # unpacked bytes of a wanted member
    total: int  # unpacked bytes of all wanted members
    members: int = 1 << 23  # number of members, wanted or not; lra_release has 2,400,000


class Member:
    """One file of a folder or an archive; read it once, before asking for the next one."""

    def __init__(self, name: str, where: str, file: io.BufferedIOBase, most: int, size: int):
        """Use `read_members` or `open_member` instead."""
        self.size = size  # bytes, unpacked
        self.name = name  # path inside the folder or archive, with slashes
        self.where = where  # path on this machine, for messages
        self._file, self._most = file, most

    def read(self) -> bytes:
        """Return the whole content.

        Raises:
            DataError: the file is truncated or damaged.
        """
        with _explain_read_errors(self.where):
            return self._file.read()

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks, as it is stored.

        Raises:
            DataError: the file is truncated or damaged.
        """
        with _explain_read_errors(self.where):
            yield from iter(lambda: self._file.read(_BLOCK), b"")

    def lines(self, longest: int) -> Iterator[tuple[str, bytes]]:
        """Yield the location of each line and the line without its end; unpack a `.gz` member.

        Raises:
            DataError: a line is longer than `longest` bytes, or the file is truncated, damaged or
                too large.
        """
        is_packed = self.name.endswith(".gz")
        file = gzip.GzipFile(fileobj=self._file) if is_packed else self._file
        count = 0
        with _explain_read_errors(self.where):
            for number, line in enumerate(iter(lambda: file.readline(longest + 2), b""), start=1):
                where = f"{self.where}: line {number}"
                text = line.removesuffix(b"\n").removesuffix(b"\r")
                count += len(line)
                if len(text) > longest:
                    raise DataError(f"{where} has more than {_format_size(longest)}")
                if count > self._most:
                    raise DataError(f"{self.where} unpacks to more than {_format_size(self._most)}")
                yield where, text


def read_members(path: Path, name_filter: NameFilter, limits: Limits) -> Iterator[Member]:
    """Yield the members of a folder or an archive whose name passes a filter, in one pass.

    Raises:
        DataError: the archive is truncated, hostile or of an unknown format, or a file cannot be
            read; the message names the archive and the member.
    """
    usage = _Usage(path, limits)
    if path.is_dir():
        for name in list_names(path, name_filter):
            with _open_file(path, name, usage) as member:
                yield member
        return
    with _explain_read_errors(str(path)):
        with open_file(path) as file:
            head = file.read(4)
        if not head:
            raise DataError(f"{path} is empty; expected a tar or zip archive")
        names: set[str] = set()
        for member in (_read_zip if head in _ZIP_SIGNATURES else _read_tar)(name_filter, usage):
            if member.name in names:
                raise DataError(f"{path} contains {member.name} twice; expected it once")
            names.add(member.name)
            yield member


def is_archive(path: Path) -> bool:
    """Return whether a file is a tar, plain or packed, or a zip.

    Raises:
        DataError: it is no regular file.
    """
    return zipfile.is_zipfile(check_file(path)) or tarfile.is_tarfile(path)


def may_contain(path: Path, name_filter: NameFilter, limits: Limits) -> bool:
    """Return whether an archive has a member whose name passes a filter.

    True as well for an archive above 1 GiB, whose headers take minutes to read.

    Raises:
        DataError: as `read_members`.
    """
    if check_file(path).stat().st_size > 1 << 30:
        return True
    return any(True for _ in read_members(path, name_filter, limits))


def list_names(folder: Path, name_filter: NameFilter) -> Iterator[str]:
    """Yield the names below a folder that pass a filter, sorted within each folder.

    Raises:
        DataError: a folder below is a symbolic link or cannot be read.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for one in (Path(parent, name) for name in folders):
            if one.is_symlink():
                raise DataError(f"{one} is a link to a folder; put the folder itself there")
        subfolder = Path(parent).relative_to(folder)
        yield from filter(name_filter, ((subfolder / name).as_posix() for name in sorted(names)))


def open_member(
    folder: Path, name: str, limits: Limits
) -> contextlib.AbstractContextManager[Member]:
    """Open one file of a folder by its relative path.

    Raises:
        DataError: the file is missing, not a regular file, too large or outside the folder.
    """
    return _open_file(folder, name, _Usage(folder, limits))


class _Usage:
    """Members and bytes of one folder or archive so far, checked against the limits."""

    def __init__(self, path: Path, limits: Limits):
        self.path, self.limits = path, limits
        self.members = self.bytes = 0

    def count_member(self) -> None:
        self.members += 1
        if self.members > self.limits.members:
            raise DataError(f"{self.path} has more than {self.limits.members:,} members; refused")

    def check_file(self, where: str, is_regular: bool, size: int) -> None:
        """Reject a wanted member that is no regular file or exceeds a limit."""
        if not is_regular or size > self.limits.member:
            description = f"{size} bytes" if is_regular else "a link, a folder or a device"
            raise DataError(
                f"{where} is {description}; expected a regular file of at most "
                f"{_format_size(self.limits.member)}"
            )
        self.bytes += size
        if self.bytes > self.limits.total:
            total = _format_size(self.limits.total)
            raise DataError(f"{self.path}: the files to read have more than {total} in total")


@contextlib.contextmanager
def _open_file(folder: Path, name: str, usage: _Usage) -> Iterator[Member]:
    path = folder / name
    with contextlib.ExitStack() as stack:
        with _explain_read_errors(str(path)):
            real = path.resolve()
            if not real.is_relative_to(folder.resolve()):
                raise DataError(f"{path} leads outside {folder}; put the file itself there")
            status = real.stat()
            usage.check_file(str(path), stat.S_ISREG(status.st_mode), status.st_size)
            file = stack.enter_context(open_file(real))
        yield Member(name, str(path), file, usage.limits.member, status.st_size)


class _StrictTarInfo(tarfile.TarInfo):
    """A tar header; a damaged, missing or huge one raises an error.

    `TarFile` itself takes a damaged header for the end of the archive. It reads a long name, or
    the map of a sparse file, into memory whatever its size.
    """

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_StrictTarInfo":
        try:
            return super().fromtarfile(tarfile)
        except _EndOfTar:
            raise
        except _DamagedHeader as error:
            raise EOFError(str(error)) from error

    def _proc_member(self, tarfile: tarfile.TarFile) -> "_StrictTarInfo":
        if self.type in _LONG_HEADERS and self.size > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {self.size} bytes")
        return super()._proc_member(tarfile)  # type: ignore[misc]

    def _reject_sparse(self, *_: object) -> NoReturn:
        raise ValueError(f"{self.name} is a sparse file")

    _proc_sparse = _proc_gnusparse_10 = _reject_sparse


_DamagedHeader = tarfile.HeaderError
_EndOfTar = tarfile.EOFHeaderError  # type: ignore[attr-defined]
_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


def _read_tar(name_filter: NameFilter, usage: _Usage) -> Iterator[Member]:
    with tarfile.open(usage.path, "r:*", tarinfo=_StrictTarInfo) as archive:
        while (info := archive.next()) is not None:
            usage.count_member()
            # `TarFile` keeps every header: 2,400,000 for lra_release
            archive.members.clear()  # type: ignore[attr-defined]
            if info.isdir() or not name_filter(os.path.normpath(info.name)):
                continue
            name = _filter_name(usage.path, info)
            where, is_regular = f"{usage.path}: {name}", info.isreg() and not info.issparse()
            usage.check_file(where, is_regular, info.size)
            with _explain_read_errors(where):
                content = cast(io.BufferedIOBase, archive.extractfile(info))
            yield Member(name, where, content, usage.limits.member, info.size)
        # compressed files have their checksum at the end
        while archive.fileobj.read(_BUFFER):
            pass


def _read_zip(name_filter: NameFilter, usage: _Usage) -> Iterator[Member]:
    with zipfile.ZipFile(usage.path) as archive:
        for info in archive.infolist():
            usage.count_member()
            if info.is_dir() or not name_filter(os.path.normpath(info.filename)):
                continue
            name = _filter_name(usage.path, tarfile.TarInfo(info.filename))
            where, kind = f"{usage.path}: {name}", stat.S_IFMT(info.external_attr >> 16)
            usage.check_file(where, kind in (0, stat.S_IFREG), info.file_size)
            with _explain_read_errors(where), archive.open(info) as content:
                stream = cast(io.BufferedIOBase, content)
                yield Member(name, where, stream, usage.limits.member, info.file_size)


def _filter_name(path: Path, info: tarfile.TarInfo) -> str:
    """Return the normalized name of a member.

    Raises:
        DataError: Python refuses to extract it.
    """
    try:
        return os.path.normpath(tarfile.data_filter(info, str(path.parent)).name)
    except tarfile.FilterError as error:
        raise DataError(f"{path} contains {info.name!r}, which is unsafe ({error})") from error


def _format_size(count: int) -> str:
    """Format a limit: 1 MiB, or 1000 bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


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
        reason = reason_of(error)
        raise DataError(
            f"{where} is truncated, damaged or no archive ({reason}); fetch it again"
        ) from error
