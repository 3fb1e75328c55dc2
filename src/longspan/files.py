"""Atomic writes of files and folders, checked JSON, checksums and the cache folder.

Files that a user names are opened by `open_file` and `read_file` alone, or checked by `check_file`
before a library opens them. A link to a device has no end, and a FIFO without a writer
blocks, so both are refused.
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from longspan.errors import DataError, OptionError, RunError, UnreadableError
from longspan.space import format_bytes
from longspan.temporaries import EARLIER, locked_folder, locked_temporary

_CHECKSUM = "sha256"  # first field of a JSON file; the sha256 of the other fields
# Most bytes of a file that is read whole: one that a person writes, such as a protocol or a
# plug-in, and one of data or results.
SMALL, LARGE = 1 << 26, 1 << 33
WRITE_REMEDY = "free space or choose another folder"


_KINDS = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


class JsonFile(NamedTuple):
    """JSON file that was read: its path, its text and the parsed content, without a checksum."""

    path: Path
    text: str
    content: Any


def check_file(path: Path, most: int | None = None) -> Path:
    """Return the path of a file if it is a regular one, after links are followed.

    Args:
        path: path of the file.
        most: most bytes that it may have; None: any number.

    Raises:
        DataError: it is a FIFO, a device or a socket, or too large.
        OSError: it is missing, a folder, or cannot be read.
    """
    _check_status(path, path.stat(), most)
    return path


def check_folder(folder: Path) -> Path:
    """Return the path of a folder if a library can open every file in it.

    Raises:
        DataError: one is a FIFO, a device or a socket.
        OSError: the folder is missing or cannot be read.
    """
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_dir():
            check_file(path)
    return folder


def open_file(path: Path, most: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading, as bytes.

    Raises:
        DataError, OSError: as `check_file`.
    """
    check_file(path, most)  # before the open, which a device may act on
    file = open(path, "rb", opener=_open_unblocked)  # noqa: SIM115
    try:
        _check_status(path, os.fstat(file.fileno()), most)
    except BaseException:
        file.close()
        raise
    return file


def read_file(path: Path, most: int = LARGE) -> bytes:
    """Return the content of a regular file.

    Raises:
        DataError, OSError: as `check_file`.
    """
    with open_file(path, most) as file:
        return file.read()


def _open_unblocked(path: str, flags: int) -> int:
    """Open a file; a FIFO without a writer, which replaced it, does not block."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_status(path: Path, status: os.stat_result, most: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "a device")
        raise DataError(
            f"{path} is {kind}; expected a regular file. Write the content to a file first"
        )
    if most is not None and status.st_size > most:
        raise DataError(
            f"{path} has {format_bytes(status.st_size)}; expected at most {format_bytes(most)}"
        )


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise `RunError` naming `path` when writing to it fails.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"cannot write {path}: {reason}; {WRITE_REMEDY}") from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success, move that file to `path` atomically.

    Temporary files that killed processes left in the folder are removed.

    Raises:
        RunError: the disk is full, the folder cannot be written, or `path` is a folder or a device;
            the temporary file is removed.
    """
    with explain_write_errors(path):
        # A rename would replace a device such as /dev/null.
        if not path.name or (path.exists() and not path.is_file()):
            raise RunError(f"cannot write {path}: it is not a regular file; choose another path")
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked_temporary(path) as temporary:
            yield temporary
            flush_to_disk(temporary)
            temporary.replace(path)


def check_new_file(path: Path) -> Path:
    """Return the path of a file that can be created.

    Raises:
        OptionError: there is such a file or folder.
    """
    if path.exists() or path.is_symlink():
        raise OptionError(f"{path} exists; remove it, or choose another file")
    return path


def check_new_folder(folder: Path) -> Path:
    """Return the path of a folder that can be created.

    Raises:
        OptionError: there is such a file or folder.
    """
    if folder.exists() or folder.is_symlink():
        raise OptionError(f"{folder} exists; remove it, or choose another folder")
    return folder


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; on success, move it to `folder`, which appears whole or not at all.

    Raises:
        OptionError: there is such a file or folder.
        RunError: the disk is full or the folder cannot be written.
    """
    check_new_folder(folder)
    with replaced_folder(folder) as part:
        yield part
        check_new_folder(folder)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; on success, move it to `folder` in place of an earlier one.

    The earlier folder is intact until the new one is complete. Folders that killed processes left
    beside it are removed; an earlier folder in one of them goes back to its place.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The outer folder has the permissions of a temporary one.
        with locked_folder(folder) as outer:
            part, earlier = outer / folder.name, outer / EARLIER
            part.mkdir()
            yield part
            if folder.exists():
                folder.rename(earlier)
            try:
                part.rename(folder)
            except OSError:
                if earlier.exists():
                    earlier.rename(folder)
                raise


def flush_to_disk(path: Path) -> None:
    """Block until the content of a file is on the disk."""
    with open_file(path) as file:
        os.fsync(file.fileno())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON with its checksum, atomically.

    Raises:
        RunError: the disk is full, or `content` contains NaN or infinity.
    """
    try:
        # A round trip turns tuples into lists and keys into text, as a reader sees them.
        plain = json.loads(json.dumps(content, allow_nan=False))
    except ValueError as error:
        raise RunError(
            f"cannot write {path}: a value is NaN or infinite; write null for a missing number"
        ) from error
    plain.pop(_CHECKSUM, None)
    text = json.dumps({_CHECKSUM: content_sha256(plain), **plain}, indent=1, ensure_ascii=False)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def content_sha256(content: Any) -> str:
    """Return the sha256 of parsed JSON, independent of the order of fields and of spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file and compare its checksum.

    Raises:
        DataError: the file is missing, damaged or not JSON; the message names it.
        UnreadableError: the system does not read it now.
    """
    return read_json_file(path).content


def read_json_file(path: Path) -> JsonFile:
    """Read a JSON file with its text, and compare its checksum.

    Files of earlier versions, and those edited by hand, may have no checksum.

    Raises:
        DataError: the file is missing, damaged or not JSON; the message names the file, and the
            line where it is not JSON.
        UnreadableError: the system does not read it now.
    """
    try:
        with explain_json_errors(path):
            text = read_file(path).decode("utf-8")
            content = parse_json(text)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except OSError as error:
        raise explain_read_error(path, error) from error
    if not isinstance(content, dict) or _CHECKSUM not in content:
        return JsonFile(path, text, content)
    recorded, actual = content.pop(_CHECKSUM), content_sha256(content)
    if recorded != actual:
        raise DataError(
            f"{path} is damaged: its content has sha256 {actual}, expected {recorded!r:.66}; "
            f"restore it, or remove its field {_CHECKSUM} after an intended edit"
        )
    return JsonFile(path, json.dumps(content), content)


@contextlib.contextmanager
def explain_json_errors(path: Path) -> Iterator[None]:
    """Raise DataError, with the file and the line, where the text inside is not JSON."""
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from error
    except (RecursionError, ValueError) as error:
        # too deeply nested, a number that is not finite, or one with thousands of digits
        raise DataError(f"{path} cannot be read as JSON ({error})") from error


def parse_json(text: str) -> Any:
    """Parse JSON, accepting finite numbers and integers of 64 bits only, and each key once.

    Raises:
        ValueError: the text is not JSON (`json.JSONDecodeError`), a number is NaN or too large, or
            an object has a key twice.
        RecursionError: the text is nested too deeply.
    """
    return json.loads(
        text,
        parse_constant=_finite,
        parse_float=_finite,
        parse_int=_integer,
        object_pairs_hook=unique_keys,
    )


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; `json` alone keeps the last value of a key that is there twice.

    Raises:
        ValueError: a key is there twice.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r:.80} is there twice; keep one of them")
    return members


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text} is not a finite number")


def _integer(text: str) -> int:
    # Arithmetic of larger integers with floats and arrays overflows.
    if -(2**63) <= (number := int(text)) < 2**63:
        return number
    raise ValueError(f"{text:.20}... has more than 64 bits")


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file as hexadecimal digits.

    Raises:
        DataError: the file is missing.
        UnreadableError: the system does not read it now.
    """
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise explain_read_error(path, error) from error


def explain_read_error(path: Path, error: OSError) -> DataError:
    """Return the error of a file that is missing, or one that may pass (`UnreadableError`)."""
    reason = f"{path} cannot be read ({error.strerror or error})"
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return DataError(reason)
    return UnreadableError(f"{reason}; check its permissions and the disk, or try again")


def cache_folder() -> Path:
    """Return the folder for files that can be rebuilt: `$LONGSPAN_CACHE` or `~/.cache/longspan`."""
    return Path(os.environ.get("LONGSPAN_CACHE") or Path.home() / ".cache" / "longspan")


def to_json_types(value: Any) -> Any:
    """Return `value` as a JSON round trip returns it: tuples become lists."""
    if isinstance(value, dict):
        return {name: to_json_types(part) for name, part in value.items()}
    return [to_json_types(part) for part in value] if isinstance(value, tuple | list) else value
