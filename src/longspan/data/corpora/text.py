"""Text files of a corpus, plain or packed: decoded in blocks, so that a file of any size fits."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from longspan.data.corpora.documents import (
    LONGEST,
    UTF8,
    CorpusFormat,
    Document,
    ReadingReport,
    split_parts,
)
from longspan.errors import DataError, OptionError
from longspan.files import check_file, explain_read_error, open_file

PACKED = (".gz", ".zst")
_BLOCK = 1 << 20  # bytes decoded at a time
_BLANK_LINE = re.compile(r"\n[^\S\n]*(?=\n)")


class _BadTextError(Exception):
    """A file is not text in an encoding; the message has the line."""


def read_text(path: Path, form: CorpusFormat, report: ReadingReport) -> Iterator[Document]:
    """Yield the documents of a text file; line ends become line feeds.

    Raises:
        DataError: the file is binary or in none of the encodings, or a line is too long, and such
            documents are not to be left out.
        OptionError: an encoding is unknown.
    """
    encoding = _find_encoding(path, form.encodings, report)
    if encoding is None:
        return
    report.encodings[encoding] += 1
    blocks = _decode(path, encoding)
    if form.document == "file":
        yield Document(str(path), split_parts(blocks))
        return
    for line, text in _split_units(path, blocks, form.document == "line", report):
        if text.strip():
            yield Document(f"{path}, line {line}", split_parts([text]))


def unpacked_path(path: Path) -> Path:
    """Return the path of a file without the suffix of packing, in any letter case."""
    return path.with_suffix("") if path.suffix.lower() in PACKED else path


def open_packed(path: Path) -> BinaryIO:
    """Open a file that may be packed with gzip or Zstandard.

    Raises:
        DataError: the file is missing.
        UnreadableError: the system does not read it now.
    """
    try:
        if path.suffix.lower() == ".gz":
            return cast("BinaryIO", gzip.open(check_file(path), "rb"))
        if path.suffix.lower() == ".zst":
            stream = pa.input_stream(str(check_file(path)), compression="zstd")
            return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", stream)))
        return open_file(path)
    except OSError as error:
        raise explain_read_error(path, error) from error


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the unpacked content of a file in blocks.

    Raises:
        DataError: the file is missing, or packed and damaged.
        UnreadableError: the system does not read it now.
    """
    with open_packed(path) as file:
        try:
            while block := file.read(_BLOCK):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException) as error:
            raise DataError(f"{path} is truncated or damaged ({error}); fetch it again") from error
        except OSError as error:
            raise explain_read_error(path, error) from error


def _find_encoding(path: Path, encodings: tuple[str, ...], report: ReadingReport) -> str | None:
    """Return the first encoding that decodes a file; None if it is left out."""
    reasons = []
    for encoding in encodings:
        try:
            for _ in _decode(path, encoding):
                pass
        except _BadTextError as error:
            reasons.append(str(error))
            continue
        return encoding
    expected = f"expected text in {' or '.join(encodings)}"
    if len(encodings) == 1:
        expected += f" (another encoding is added as --encoding {encodings[0]},latin-1)"
    report.add_bad(f"{path}, {reasons[0]}", expected)
    return None


def _decode(path: Path, encoding: str) -> Iterator[str]:
    """Yield a file's text in blocks, without byte order mark; line ends are line feeds."""
    try:
        codec = "utf-8-sig" if codecs.lookup(encoding).name == UTF8 else encoding
    except LookupError:
        raise OptionError(
            f"--encoding {encoding!r} is unknown; use encodings of Python, such as latin-1"
        ) from None
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(codec)(), translate=True)
    line = 1
    for content, is_last in _with_last(read_blocks(path)):
        try:
            text = decoder.decode(content, is_last)
        except UnicodeError as error:
            start = error.start if isinstance(error, UnicodeDecodeError) else 0
            line += content.count(b"\n", 0, start)
            raise _BadTextError(f"line {line}: not {encoding}") from None
        if "\0" in text:
            line += text.count("\n", 0, text.index("\0"))
            raise _BadTextError(f"line {line}: binary (a zero byte)")
        line += text.count("\n")
        yield text


def _with_last(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each block, and an empty last one, which ends the decoding."""
    for block in blocks:
        yield block, False
    yield b"", True


def _split_units(
    path: Path, blocks: Iterable[str], is_line: bool, report: ReadingReport
) -> Iterator[tuple[int, str]]:
    """Yield lines, or paragraphs between blank lines, with the number of their first line."""
    what, rest, line, is_dropping = "line" if is_line else "paragraph", "", 1, False
    for block in blocks:
        *whole, rest = _split(rest + block, is_line)
        for text in whole:
            if not is_dropping:
                yield line + _leading_lines(text), text.strip("\n")
            line += text.count("\n") + 1
            is_dropping = False
        if len(rest) > LONGEST and not is_dropping:
            where = f"{path}, line {line + _leading_lines(rest)}"
            report.add_bad(where, f"a {what} of more than {LONGEST:,} characters")
            is_dropping = True
        if is_dropping:
            dropped = rest.removesuffix("\n")  # which may begin the end of the paragraph
            line, rest = line + dropped.count("\n"), rest[len(dropped) :]
    if not is_dropping:
        yield line + _leading_lines(rest), rest.strip("\n")


def _leading_lines(text: str) -> int:
    return len(text) - len(text.lstrip("\n"))


def _split(text: str, is_line: bool) -> list[str]:
    return text.split("\n") if is_line else _BLANK_LINE.split(text)
