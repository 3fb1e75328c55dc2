"""Files: written so that a reader sees the old content or the new, and read with refusals."""

import contextlib
import glob
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.errors import DataError, RunError

REMEDY = "free space or choose another folder"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes `path`'s place atomically.

    Raises:
        RunError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; {REMEDY}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file is on the disk itself."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sweep(path: Path) -> None:
    """Remove the temporary files of writes to `path` whose process was killed."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically.

    Raises:
        RunError: the disk is full, or a number is not finite (what was not measured is `None`).
    """
    try:
        text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise RunError(f"cannot write {path}: it would hold a number that is not one") from error
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: it is absent or not JSON; the message names the file and the place.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from error
    except (RecursionError, ValueError) as error:
        # nested without end, or a number that is none or has thousands of digits
        raise DataError(f"{path} cannot be read as JSON ({error})") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from error


def parse_json(text: str) -> Any:
    """The value of a JSON text, all of its numbers finite.

    Raises:
        ValueError: it is not JSON (`json.JSONDecodeError`), or a number is NaN or too large.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text} is no finite number")


def sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Where things are kept that can be made again: `$LONGSPAN_CACHE`, or `~/.cache/longspan`."""
    return Path(os.environ.get("LONGSPAN_CACHE") or Path.home() / ".cache" / "longspan")


def plain(value: Any) -> Any:
    """As JSON reads it back: tuples are lists."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value
