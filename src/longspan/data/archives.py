"""Members of a folder or an archive, read as a stream: nothing is ever extracted to disk.

An archive is a tar (plain, gzip, bzip2 or xz), a zip, or one file under gzip, bzip2 or xz; its
first bytes say which, whatever its suffix. It is read to its end, or a truncated one would pass
for a small one. What a stranger can put into an archive is refused: a path outside it (whether
that member is wanted or not), a wanted member that is a link, a device or there twice, and more
bytes than were agreed, declared or real.
"""

import bz2
import contextlib
import dataclasses
import gzip
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Protocol, cast, runtime_checkable

from longspan import files
from longspan.errors import DataError

_BROKEN = (
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # of zipfile, for an encrypted member
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
_MAGIC = 6  # bytes that tell the kinds apart
_BUFFER = 1 << 18
# What may pass before a ratio counts, and of headers from one member of a tar to the next.
_SLACK = 1 << 20


class Limits(NamedTuple):
    """The most that is read of what is wanted, in bytes."""

    member: int
    total: int
    ratio: int = 200  # unpacked bytes to a packed one; PNG reach 3, ListOps 10


class Member:
    """One file; to be read once, before the next one is asked for."""

    def __init__(self, name: str, stream: "_Stream") -> None:
        """Members come from `members` and `opened`."""
        self.name = name  # its path inside the folder or archive, with slashes
        self.where = stream.where  # the same for messages, with the archive
        self._stream = stream

    def read(self) -> bytes:
        """The whole content.

        Raises:
            DataError: it is truncated, damaged or too large.
        """
        return io.BufferedReader(self._stream, _BUFFER).read()

    def lines(self, longest: int) -> Iterator[tuple[str, bytes]]:
        """Where each line is, and the line without its end; a file called .gz is unpacked.

        Raises:
            DataError: a line is longer than `longest` bytes, or as for `read`.
        """
        stream = self._stream.unpacked() if self.name.endswith(".gz") else self._stream
        with io.BufferedReader(stream, _BUFFER) as file:
            for number, line in enumerate(iter(lambda: file.readline(longest + 2), b""), start=1):
                where = f"{self.where}: line {number}"
                text = line.removesuffix(b"\n").removesuffix(b"\r")
                if len(text) > longest:
                    raise DataError(f"{where} has more than {_size(longest)}")
                yield where, text


def members(
    path: Path,
    wanted: Callable[[str], object],
    limits: Limits,
    *,
    expect_sha256: str | None = None,
) -> Iterator[Member]:
    """The members of a folder or an archive whose name is wanted, in one pass.

    A single file under gzip, bzip2 or xz is called as itself, without that suffix.

    Raises:
        DataError: the archive is truncated, foreign, hostile or has another sha256, or a file
            cannot be read; the message names archive and member.
    """
    reading = _Pass(path, wanted, limits)
    if path.is_dir():
        for name in names(path, wanted):
            with _opened(reading, name) as member:
                yield member
        return
    if expect_sha256 is not None and (found := sha256(path)) != expect_sha256:
        raise DataError(f"{path} has sha256 {found}, expected {expect_sha256}; fetch it again")
    with _refusing(str(path), "file"), path.open("rb") as raw:
        head = raw.read(_MAGIC)
        if not head:
            raise DataError(f"{path} is empty; expected an archive")
        seen: set[str] = set()
        for member in (_zip if head.startswith((b"PK\3\4", b"PK\5\6")) else _stream)(reading, raw):
            if member.name in seen:
                raise DataError(f"{path} holds {member.name} twice; it is unclear which counts")
            seen.add(member.name)
            yield member


def names(folder: Path, wanted: Callable[[str], object]) -> Iterator[str]:
    """The names of the wanted files below a folder, sorted within each folder.

    Raises:
        DataError: a folder below is a link or cannot be read.
    """
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        with _refusing(str(folder / parent), "folder"):
            entries = sorted(os.scandir(folder / parent), key=lambda entry: entry.name)
        for entry in entries:
            name = f"{parent}/{entry.name}" if parent else entry.name
            if not entry.is_dir():
                yield from [name] if wanted(name) else []
            elif entry.is_symlink():
                raise DataError(f"{entry.path} is a link to a folder; put the folder itself there")
            else:
                waiting.append(name)


def opened(folder: Path, name: str, limits: Limits) -> contextlib.AbstractContextManager[Member]:
    """One file of a folder, by its name there.

    Raises:
        DataError: it is absent, no plain file, too large or a link that leads out of the folder.
    """
    return _opened(_Pass(folder, bool, limits), name)


def sha256(path: Path) -> str:
    """The sha256 of a file, in hex.

    Raises:
        DataError: it cannot be read.
    """
    with _refusing(str(path), "file"):
        return files.file_sha256(path)


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclasses.dataclass
class _Pass:
    """One reading of a folder or an archive."""

    path: Path
    wanted: Callable[[str], object]
    limits: Limits
    count: int = 0  # bytes of all members that were read

    def add(self, count: int) -> None:
        self.count += count
        if self.count > self.limits.total:
            raise DataError(
                f"{self.path}: the files that are read hold more than {_size(self.limits.total)}"
            )

    def check(self, where: str, plain: bool, size: int, packed: int | None = None) -> None:
        """Refuse what is no file, or declares more bytes than are allowed."""
        if packed is not None and size > self.limits.ratio * packed + _SLACK:
            raise DataError(_bomb(where, self.limits.ratio))
        if not plain or size > self.limits.member:
            raise DataError(
                f"{where} is no plain file of at most {_size(self.limits.member)} "
                f"({f'it has {size} bytes' if plain else 'but a link, a folder or a device'})"
            )

    def member(self, name: str, source: _Readable, where: str, kind: str) -> Member:
        stream = _Stream(source, where, kind, most=self.limits.member)
        stream.reading = self
        return Member(name, stream)


class _Stream(io.RawIOBase):
    """Counts what really passes; refuses more than `most`, or than the packed bytes explain."""

    def __init__(
        self, source: _Readable, where: str, kind: str, *, most: int | None = None
    ) -> None:
        super().__init__()
        self.source, self.where, self.kind, self.most = source, where, kind, most
        self.count = 0
        self.reading: _Pass | None = None  # whose total these bytes count for
        self.packed: Callable[[], int] | None = None
        self.ratio = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with _refusing(self.where, self.kind):
            read = self.source.read(len(buffer))
        self.count += len(read)
        if self.most is not None and self.count > self.most:
            raise DataError(
                f"{self.where} holds more than the {_size(self.most)} that may be there"
            )
        if self.reading:
            self.reading.add(len(read))
        if self.packed and self.count > self.ratio * self.packed() + _SLACK:
            raise DataError(_bomb(self.where, self.ratio))
        buffer[: len(read)] = read
        return len(read)

    def unpacked(self) -> "_Stream":
        """The content of this .gz file of a folder or archive."""
        source = gzip.GzipFile(fileobj=io.BufferedReader(self, _BUFFER))
        stream = _Stream(cast(_Readable, source), self.where, "gz", most=self.most)
        # unpacked bytes count, not packed ones
        stream.reading, self.reading = self.reading, None
        if stream.reading:
            stream.ratio, stream.packed = stream.reading.limits.ratio, lambda: self.count
        return stream


@contextlib.contextmanager
def _opened(reading: _Pass, name: str) -> Iterator[Member]:
    folder = reading.path
    path = folder / _inside(folder, name)
    with contextlib.ExitStack() as stack:
        with _refusing(str(path), "file"):
            real = path.resolve()
            if not real.is_relative_to(folder.resolve()):
                raise DataError(f"{path} is a link that leads out of {folder}; put the file there")
            status = real.stat()
            reading.check(str(path), stat.S_ISREG(status.st_mode), status.st_size)
            file = stack.enter_context(real.open("rb"))
        yield reading.member(name, file, str(path), "file")


def _stream(reading: _Pass, raw: IO[bytes]) -> Iterator[Member]:
    """Of a tar or a single file, under whatever compression."""
    path = reading.path
    kind, content = _unpacking(raw)
    with _refusing(str(path), kind):
        # a short read, since a truncated file may have no more
        is_tar = _is_tar(content.read(tarfile.BLOCKSIZE))
    kind = f"tar.{kind}".removesuffix(".") if is_tar else kind
    if not kind:
        raise DataError(f"{path} is no archive; expected tar, tar.gz, tar.bz2, tar.xz, zip or gz")
    stream = _Stream(_unpacking(raw)[1], str(path), kind)
    if kind != "tar":
        stream.packed, stream.ratio = raw.tell, reading.limits.ratio
    file = io.BufferedReader(stream, _BUFFER)
    if is_tar:
        yield from _tar(reading, stream, file)
    elif reading.wanted(path.stem):
        yield reading.member(path.stem, file, str(path), kind)
    while file.read(_BUFFER):
        pass


def _unpacking(raw: IO[bytes]) -> tuple[str, _Readable]:
    """The compression of a file, "" for none, and its content from the start."""
    raw.seek(0)
    head = raw.read(_MAGIC)
    raw.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return "gz", gzip.GzipFile(fileobj=raw)
    if head.startswith(b"BZh"):
        return "bz2", bz2.open(raw)
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz", lzma.open(raw)
    return "", raw


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


class _Strict(tarfile.TarInfo):
    """A damaged header, or none where the archive should end, is an error and not its end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_Strict":
        try:
            return super().fromtarfile(tarfile)
        except _EndOfTar:
            raise
        except _DamagedHeader as error:
            raise EOFError(str(error)) from error


_DamagedHeader = tarfile.HeaderError
_EndOfTar = tarfile.EOFHeaderError  # type: ignore[attr-defined]


def _tar(reading: _Pass, stream: _Stream, file: _Readable) -> Iterator[Member]:
    stream.most = _SLACK
    with (
        _refusing(str(reading.path), stream.kind),
        tarfile.open(
            fileobj=cast(IO[bytes], file), mode="r|", tarinfo=_Strict, bufsize=_BUFFER
        ) as archive,
    ):
        while (info := archive.next()) is not None:
            # or 2,400,000 of them would stay in memory
            archive.members.clear()  # type: ignore[attr-defined]
            # this member may pass, then a header, which could claim to be huge
            stream.most = stream.count + info.size + _SLACK
            name = _inside(reading.path, info.name)
            if info.isdir() or not reading.wanted(name):
                continue
            where = f"{reading.path}: {name}"
            plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()
            reading.check(where, plain, info.size)
            content = cast(_Readable, archive.extractfile(info))
            yield reading.member(name, content, where, stream.kind)


def _zip(reading: _Pass, raw: IO[bytes]) -> Iterator[Member]:
    with _refusing(str(reading.path), "zip"), zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            name = _inside(reading.path, info.orig_filename)
            if info.is_dir() or not reading.wanted(name):
                continue
            where, mode = f"{reading.path}: {name}", info.external_attr >> 16
            plain = stat.S_IFMT(mode) in (0, stat.S_IFREG)
            reading.check(where, plain, info.file_size, info.compress_size)
            with archive.open(info) as content:
                yield reading.member(name, content, where, "zip")


def _inside(path: Path, name: str) -> str:
    """The name without needless dots and slashes.

    Raises:
        DataError: it leads outside.
    """
    if re.match(r"[/\\]|[A-Za-z]:[/\\]", name) or ".." in re.split(r"[/\\]", name):
        raise DataError(f"{path} holds {name!r}, a path outside of it; refused")
    return str(PurePosixPath(name))


def _bomb(where: str, ratio: int) -> str:
    return f"{where} unpacks to more than {ratio} times its size; refused as a bomb"


def _size(count: int) -> str:
    """A limit as it is said: 1 MiB, or 1000 bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


@contextlib.contextmanager
def _refusing(where: str, kind: str) -> Iterator[None]:
    """Say which file is wrong, instead of what the reading library says."""
    try:
        yield
    except DataError:
        raise
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{where} cannot be read ({error.strerror})") from error
        reason = " ".join(str(error).split())
        raise DataError(
            f"{where} is truncated or no {kind} archive ({reason}); fetch it again"
        ) from error
