"""Text of files, plain or packed: decoded in blocks, so that a file of any size fits."""

import codecs
import contextlib
import dataclasses
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from longspan.errors import DataError, OptionError
from longspan.files import LARGE, check_file, explain_read_error, open_file

DocumentUnit = Literal["file", "line", "paragraph"]
UTF8 = "utf-8"
PACKED = (".gz", ".zst")
LONGEST = 1 << 26  # characters of a line, paragraph, field or object that is read whole
_SKIP_REMEDY = "correct it, or pass --skip-bad to leave such documents out and count them"
PIECE = 1 << 20  # bytes, or characters, decoded at a time
_MAX_REASONS = 5  # reasons that are kept for the report
_BLANK_LINE = re.compile(r"\n[^\S\n]*(?=\n)")
# Codecs without byte order mark; those with one are named without the suffix.
_MARKS = {
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, pa.ArrowException)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFormat:
    """Format of files of texts.

    Attributes:
        text: column, or field, of the documents of a corpus.
        document: the text of a text file that is one document.
        encodings: encodings of text files; the first one that decodes the whole file counts. A
            table has the first one.
        delimiter: character between two fields; None: a comma, and a tab in .tsv files.
        limit: most documents of a source; None: all.
        skip_bad: leave unreadable documents out, and count them, in place of an error.
    """

    text: str = "text"
    document: DocumentUnit = "file"
    encodings: tuple[str, ...] = (UTF8,)
    delimiter: str | None = None
    limit: int | None = None
    skip_bad: bool = False


class ReadingReport:
    """Documents that were left out, with the first reasons, and the encodings that were found."""

    def __init__(self, *, skip_bad: bool = False, remedy: str = _SKIP_REMEDY):
        """Start without any.

        Args:
            skip_bad: that of the format.
            remedy: end of the error of a document that is not left out.
        """
        self.skip_bad, self.remedy = skip_bad, remedy
        self.num_bad, self.num_empty = 0, 0
        self.reasons: list[str] = []
        self.empty: list[str] = []  # places of the first empty documents
        self.encodings: Counter[str] = Counter()

    def add_bad(self, where: str, reason: str) -> None:
        """Count a document that cannot be read.

        Raises:
            DataError: such documents are not to be left out; the message has the place.
        """
        if not self.skip_bad:
            raise DataError(f"{where}: {reason}; {self.remedy}")
        self.num_bad += 1
        self.reasons += [f"{where}: {reason}"][: _MAX_REASONS - len(self.reasons)]

    def add_empty(self, where: str) -> None:
        """Count a document without text."""
        self.num_empty += 1
        self.empty += [where][: _MAX_REASONS - len(self.empty)]

    def left_out(self) -> str:
        """Return what was left out, with the first places, in brackets; empty if nothing was."""
        counts = {"empty": (self.num_empty, self.empty), "unreadable": (self.num_bad, self.reasons)}
        clauses = [
            f"{number:,} {kind}: {'; '.join(places)}{', ...' if number > len(places) else ''}"
            for kind, (number, places) in counts.items()
            if number
        ]
        return f" (left out: {'; '.join(clauses)})" if clauses else ""


class _BadTextError(Exception):
    """A file is not text in an encoding; the message has the line."""


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


@contextlib.contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Raise `DataError` naming the file in place of the errors of reading and unpacking.

    Raises:
        DataError: the file is packed and damaged.
        UnreadableError: the system does not read it now.
    """
    try:
        yield
    except _DAMAGED as error:
        raise DataError(f"{path} is truncated or damaged ({error}); fetch it again") from error
    except OSError as error:
        raise explain_read_error(path, error) from error


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


def _file_codec(path: Path, encoding: str) -> str:
    """Return the codec of a file; a byte order mark is no part of the text.

    Raises:
        DataError: the file is missing or damaged.
        OptionError: the encoding is unknown.
        UnreadableError: the system does not read it now.
    """
    codec = find_codec(encoding)
    name = codecs.lookup(codec).name
    if (mark := _MARKS.get(name)) is None:
        return codec
    with open_packed(path) as file, explain_damage(path):
        return name[:-3] if file.read(len(mark)) == mark else name


def is_wide(encoding: str) -> bool:
    """Return whether an encoding has several bytes for a line break."""
    return codecs.lookup(find_codec(encoding)).name.startswith(("utf-16", "utf-32"))


@contextlib.contextmanager
def open_encoded(
    path: Path, encoding: str, newline: str | None = None, most: int | None = LARGE
) -> Iterator[io.TextIOBase]:
    """Open a file of text that may be packed.

    Args:
        path: file.
        encoding: encoding of the text.
        newline: as for `open`.
        most: most bytes of the file; None: it is read in pieces, and may have any number.

    Raises:
        DataError: the file is missing, too large, not in the encoding (the message names the line),
            or packed and damaged.
        OptionError: the encoding is unknown.
        UnreadableError: the system does not read it now.
    """
    try:
        with explain_damage(path):
            check_file(path, most)
            codec = _file_codec(path, encoding)
            with (
                open_packed(path) as file,
                io.TextIOWrapper(file, encoding=codec, newline=newline) as text,
            ):
                yield text
    except UnicodeError as error:
        raise explain_encoding(path, encoding) from error


def explain_encoding(path: Path, encoding: str) -> DataError:
    """Return the error of a file that is not in an encoding; it names the first such line."""
    with open_packed(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return DataError(f"{path} is not {encoding} text; pass --encoding utf-16")
    line = None
    if not is_wide(encoding):
        with open_packed(path) as file:
            line = next((n for n, x in enumerate(file, 1) if not _is_text(x, encoding)), None)
    where = f"{path}, line {line}," if line else f"{path}"
    return DataError(
        f"{where} is not {encoding} text; pass the encoding of the file, such as --encoding "
        "latin-1, cp1252 or utf-16, or correct the line if other lines are in another encoding"
    )


def _is_text(line: bytes, encoding: str) -> bool:
    try:
        return line.decode(encoding) is not None
    except UnicodeError:
        return False


def decode_utf8(raw: bytes, where: str | Path) -> str:
    """Return bytes as text.

    Raises:
        DataError: they are not UTF-8; the message has the place.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text (byte {error.start})") from error


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


def read_units(
    path: Path, form: FileFormat, report: ReadingReport
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield place and blocks of each document of a text file; line ends become line feeds.

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
        yield str(path), blocks
        return
    for line, text in _split_units(path, blocks, form.document == "line", report):
        if text.strip():
            yield f"{path}, line {line}", [text]


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
    codec = _file_codec(path, encoding)
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(codec)(), translate=True)
    line, content = 1, b"-"
    with open_packed(path) as file, explain_damage(path):
        while content:
            content = file.read(PIECE)  # the empty last one ends the decoding
            try:
                text = decoder.decode(content, not content)
            except UnicodeError as error:
                start = error.start if isinstance(error, UnicodeDecodeError) else 0
                line += content.count(b"\n", 0, start)
                raise _BadTextError(f"line {line}: not {encoding}") from None
            if "\0" in text:
                line += text.count("\n", 0, text.index("\0"))
                raise _BadTextError(f"line {line}: binary (a zero byte)")
            line += text.count("\n")
            yield text


def _split_units(
    path: Path, blocks: Iterable[str], is_line: bool, report: ReadingReport
) -> Iterator[tuple[int, str]]:
    """Yield lines, or paragraphs between blank lines, with the number of their first line."""
    unit, rest, line, is_dropping = "line" if is_line else "paragraph", "", 1, False
    for block in blocks:
        *whole, rest = (rest + block).split("\n") if is_line else _BLANK_LINE.split(rest + block)
        for text in whole:
            if not is_dropping:
                yield line + _leading_lines(text), text.strip("\n")
            line += text.count("\n") + 1
            is_dropping = False
        if len(rest) > LONGEST and not is_dropping:
            where = f"{path}, line {line + _leading_lines(rest)}"
            report.add_bad(where, f"a {unit} of more than {LONGEST:,} characters")
            is_dropping = True
        if is_dropping:
            prefix = rest.removesuffix("\n")  # which may begin the end of the paragraph
            line, rest = line + prefix.count("\n"), rest[len(prefix) :]
    if not is_dropping:
        yield line + _leading_lines(rest), rest.strip("\n")


def _leading_lines(text: str) -> int:
    return len(text) - len(text.lstrip("\n"))
