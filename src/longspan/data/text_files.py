"""Tables of texts in a file: CSV, TSV or parquet, read whole, as columns of strings."""

import codecs
import csv
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError, OptionError
from longspan.files import explain_read_error

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = ".parquet"
UTF8 = "utf-8"
_SHOWN = 5  # rows that a message names


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFormat:
    """Format of a file of texts.

    Attributes:
        encoding: encoding of the characters; parquet has none.
        delimiter: character between two fields; None: a comma, and a tab in .tsv files.
    """

    encoding: str = UTF8
    delimiter: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFile:
    """Columns of a file; row 1 is the first one after the header."""

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """Return a column, without white space around its values.

        Raises:
            DataError: there is no such column, or there are several.
        """
        if self.names.count(name) == 1:
            place = self.names.index(name)
            return [row[place].strip() for row in self.rows]
        if name in self.names:
            raise DataError(f"{self.path} has several columns {name!r}; rename all but one")
        raise DataError(
            f"{self.path} has no column {name!r}; its columns are {', '.join(self.names)}"
            f"{self._delimiter_hint()}"
        )

    def _delimiter_hint(self) -> str:
        found = [x for x in (";", "\t", "|") if len(self.names) == 1 and x in self.names[0]]
        return f" (pass --delimiter {found[0]!r} if that separates them)" if found else ""


def read_text_file(path: Path, file_format: FileFormat | None = None) -> TextFile:
    """Read a CSV, TSV or parquet file; quoted fields may contain line breaks.

    Raises:
        DataError: the file is missing, malformed or in another encoding, or has no rows.
        OptionError: the name of the file or the format is unknown.
    """
    chosen = file_format or FileFormat()
    suffix = path.suffix.lower()
    if suffix not in (PARQUET, *DELIMITERS):
        raise OptionError(f"{path} must end in {', '.join(DELIMITERS)} or {PARQUET}; rename it")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if suffix == PARQUET:
        names, rows = _read_parquet(path)
    else:
        delimiter = chosen.delimiter or DELIMITERS[suffix]
        names, rows = _read_delimited(path, chosen.encoding, delimiter)
    if not rows:
        raise DataError(f"{path} has no rows; expected a header, and a row for each text")
    return TextFile(path=path, names=tuple(names), rows=rows)


def show_rows(rows: Sequence[int]) -> str:
    """Return the first numbers of some rows, counted from 1, and how many more there are."""
    numbers = ", ".join(str(row + 1) for row in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {numbers}{more}"


def _read_delimited(path: Path, encoding: str, delimiter: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a CSV or TSV file."""
    if len(delimiter) != 1:
        raise OptionError(f"--delimiter must be one character, got {delimiter!r}")
    try:
        # A byte order mark is no part of the first name.
        codec = "utf-8-sig" if codecs.lookup(encoding).name == UTF8 else encoding
    except LookupError:
        raise OptionError(
            f"--encoding {encoding!r} is unknown; use one of Python's, such as latin-1 or utf-16"
        ) from None
    csv.field_size_limit(sys.maxsize)  # 131,072 characters are too few for a document
    try:
        with path.open(encoding=codec, newline="") as file:
            lines = _checked_rows(path, csv.reader(file, delimiter=delimiter, strict=True))
            return next(lines, []), list(lines)
    except UnicodeError as error:
        remedy = "utf-16" if _starts_as_utf16(path) else "latin-1, cp1252 or utf-16"
        raise DataError(
            f"{path} is not {encoding} text; pass its encoding, such as --encoding {remedy}"
        ) from error
    except OSError as error:
        raise explain_read_error(path, error) from error


def _checked_rows(path: Path, reader) -> Iterator[list[str]]:
    """Yield the header and the rows without blank lines; all have as many fields."""
    width = None
    try:
        for row in reader:
            width = width or len(row)
            if row and len(row) != width:
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(row)} fields, but the header has "
                    f"{width}; quote fields that contain a delimiter or a line break"
                )
            if row:
                yield row
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; double the quotes inside quoted fields"
        ) from error


def _starts_as_utf16(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _read_parquet(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names and the rows of a parquet file; nulls are empty."""
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    columns = [_as_strings(column) for column in table.columns]
    return list(table.column_names), [list(row) for row in zip(*columns, strict=True)]


def _as_strings(column: pa.ChunkedArray) -> list[str]:
    return ["" if value is None else str(value) for value in column.to_pylist()]
