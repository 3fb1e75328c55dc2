"""Atomic writes, checked JSON, checksums and the cache folder."""

import contextlib
import glob
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from longspan.errors import DataError, RunError

WRITE_REMEDY = "free space or choose another folder"


class JsonFile(NamedTuple):
    """JSON file that was read: its path, its text and the parsed content."""

    path: Path
    text: str
    content: Any


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

    Raises:
        RunError: the disk is full or the folder cannot be written; the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with explain_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch(exist_ok=False)
            yield temporary
            flush_to_disk(temporary)
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Block until the content of a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def remove_temporaries(path: Path) -> None:
    """Remove the temporary files that killed processes left when writing to `path`."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically.

    Raises:
        RunError: the disk is full, or `value` contains NaN or infinity.
    """
    try:
        text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise RunError(
            f"cannot write {path}: a value is NaN or infinite; write null for a missing number"
        ) from error
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing or not JSON; the message names the file and the line.
    """
    return read_json_file(path).content


def read_json_file(path: Path) -> JsonFile:
    """Read a JSON file with its text.

    Raises:
        DataError: the file is missing or not JSON; the message names the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return JsonFile(path, text, parse_json(text))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from error
    except (RecursionError, ValueError) as error:
        # too deeply nested, a number that is not finite, or one with thousands of digits
        raise DataError(f"{path} cannot be read as JSON ({error})") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from error


def parse_json(text: str) -> Any:
    """Parse JSON, accepting finite numbers and integers of 64 bits only.

    Raises:
        ValueError: the text is not JSON (`json.JSONDecodeError`), or a number is NaN or too large.
        RecursionError: the text is nested too deeply.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_integer)


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
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from error


def cache_folder() -> Path:
    """Return the folder for files that can be rebuilt: `$LONGSPAN_CACHE` or `~/.cache/longspan`."""
    return Path(os.environ.get("LONGSPAN_CACHE") or Path.home() / ".cache" / "longspan")


def to_json_types(value: Any) -> Any:
    """Return `value` as a JSON round trip returns it: tuples become lists."""
    if isinstance(value, dict):
        return {name: to_json_types(part) for name, part in value.items()}
    return [to_json_types(part) for part in value] if isinstance(value, tuple | list) else value
