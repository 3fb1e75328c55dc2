"""Encoding of text files: codecs, and the line of a file that is not in its encoding."""

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from longspan.data.corpora.text import open_packed
from longspan.errors import DataError, OptionError
from longspan.files import LARGE, check_file, explain_read_error

UTF8 = "utf-8"


def find_codec(encoding: str) -> str:
    """Return the codec of an encoding; a byte order mark of UTF-8 is no part of the text.

    Raises:
        OptionError: the encoding is unknown.
    """
    try:
        return "utf-8-sig" if codecs.lookup(encoding).name == UTF8 else encoding
    except LookupError:
        raise OptionError(
            f"--encoding {encoding!r} is unknown; use one of Python's, such as latin-1 or utf-16"
        ) from None


@contextlib.contextmanager
def open_encoded(path: Path, encoding: str, newline: str | None = None) -> Iterator[io.TextIOBase]:
    """Open a file of text, which may be packed with gzip or Zstandard.

    Args:
        path: file.
        encoding: encoding of the text.
        newline: as for `open`.

    Raises:
        DataError: the file is missing, not in the encoding (the message names the line), or packed
            and damaged.
        OptionError: the encoding is unknown.
        UnreadableError: the system does not read it now.
    """
    codec = find_codec(encoding)
    try:
        check_file(path, LARGE)
        with (
            open_packed(path) as file,
            io.TextIOWrapper(file, encoding=codec, newline=newline) as text,
        ):
            yield text
    except UnicodeError as error:
        raise explain_encoding(path, encoding) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException) as error:
        raise DataError(f"{path} is truncated or damaged ({error}); write it again") from error
    except OSError as error:
        raise explain_read_error(path, error) from error


def explain_encoding(path: Path, encoding: str) -> DataError:
    """Return the error of a file that is not in an encoding; it names the first such line."""
    with open_packed(path) as file:
        start = file.read(2)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return DataError(f"{path} is not {encoding} text; pass --encoding utf-16")
    line = _undecodable_line(path, encoding)
    where = f"{path}, line {line}," if line else f"{path}"
    return DataError(
        f"{where} is not {encoding} text; pass the encoding of the file, such as --encoding "
        "latin-1, cp1252 or utf-16, or correct the line if other lines are in another encoding"
    )


def refuse_zero_byte(texts: Iterable[str], where: str) -> None:
    """Refuse texts with a zero byte, which a binary file has.

    Raises:
        DataError: there is one.
    """
    if any("\0" in text for text in texts):
        raise DataError(
            f"{where} has a zero byte: the file is binary, or in another encoding; convert it, or "
            "pass --encoding utf-16"
        )


def _undecodable_line(path: Path, encoding: str) -> int | None:
    """Return the number of the first line that an encoding cannot read.

    None: there is none, or the encoding has several bytes for a line break.
    """
    codec = find_codec(encoding)
    if codecs.lookup(codec).name.startswith(("utf-16", "utf-32")):
        return None
    with open_packed(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode(codec)
            except UnicodeError:
                return number
    return None
