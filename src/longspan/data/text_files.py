"""Tables of texts: CSV, TSV, JSON Lines, parquet or a folder, read whole, as columns of strings."""

import csv
import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from longspan.data import json_lines
from longspan.data.class_folders import COLUMNS, read_class_folder
from longspan.data.parquet_table import read_parquet_table
from longspan.data.text_encoding import UTF8, explain_encoding, find_codec, refuse_zero_byte
from longspan.errors import DataError, OptionError
from longspan.files import LARGE, explain_read_error, file_sha256, open_text
from longspan.wording import counted

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = ".parquet"
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
    """Columns of a file or folder.

    Attributes:
        path: file or folder.
        names: names of the columns.
        rows: values of each row.
        places: location of each row, such as "line 3"; none: rows are counted from 1.
        nested: first row of each column that has a list or an object, by name.
    """

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    places: Sequence[str] = ()
    nested: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def column(self, name: str) -> list[str]:
        """Return a column, without white space around its values.

        Raises:
            DataError: there is no such column, there are several, or a value is no text.
        """
        if self.names.count(name) == 1:
            place = self.names.index(name)
            if name in self.nested:
                raise DataError(
                    f"{self.path}: column {name!r} has a list or an object in "
                    f"{self.show_rows([self.nested[name]])}; expected text or numbers"
                )
            return [row[place].strip() for row in self.rows]
        if name in self.names:
            raise DataError(f"{self.path} has several columns {name!r}; rename all but one")
        raise DataError(
            f"{self.path} has no column {name!r}; its columns are {', '.join(self.names)}"
            f"{self._delimiter_hint()}"
        )

    def show_rows(self, rows: Sequence[int]) -> str:
        """Return the first locations of some rows, and how many more there are."""
        return show_rows(rows, self.places)

    def locate(self, row: int) -> str:
        """Return file and location of a row, such as "mine.csv line 3"."""
        return f"{self.path.name} {self.places[row] if self.places else f'row {row + 1}'}"

    def content_sha256(self) -> str:
        """Return the sha256 of the file, or of the names and texts of a folder."""
        if self.path.is_file():
            return file_sha256(self.path)
        digest = hashlib.sha256()
        for place, row in zip(self.places, self.rows, strict=True):
            text = hashlib.sha256(str(row[0]).encode()).hexdigest()
            digest.update(f"{place} {text}\n".encode())
        return digest.hexdigest()

    def _delimiter_hint(self) -> str:
        found = [x for x in (";", "\t", "|") if len(self.names) == 1 and x in self.names[0]]
        return f" (pass --delimiter {found[0]!r} if that separates them)" if found else ""


def read_text_file(path: Path, file_format: FileFormat | None = None) -> TextFile:
    """Read a CSV, TSV, JSON Lines or parquet file, or a folder with a subfolder for each class.

    Quoted fields of CSV may contain line breaks.

    Raises:
        DataError: the file is missing, malformed or in another encoding, or has no rows.
        OptionError: the name of the file or the format is unknown.
    """
    chosen = file_format or FileFormat()
    suffix = path.suffix.lower()
    known = (*DELIMITERS, *json_lines.SUFFIXES, PARQUET)
    if not path.is_dir() and suffix not in known:
        raise OptionError(f"{path} must end in {', '.join(known)}, or be a folder; rename it")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.is_dir():
        found = _read_folder(path, find_codec(chosen.encoding))
    elif suffix in json_lines.SUFFIXES:
        names, rows, places, nested = json_lines.read_json_lines(path, chosen.encoding)
        found = TextFile(path=path, names=tuple(names), rows=rows, places=places, nested=nested)
    elif suffix == PARQUET:
        names, rows, nested = read_parquet_table(path)
        found = TextFile(path=path, names=tuple(names), rows=rows, nested=nested)
    else:
        found = _read_delimited(path, chosen.encoding, chosen.delimiter or DELIMITERS[suffix])
    if not found.rows:
        raise DataError(f"{path} has no rows; expected {_expected(path)}")
    return found


def _read_folder(path: Path, encoding: str) -> TextFile:
    rows, places = read_class_folder(path, encoding)
    return TextFile(path=path, names=COLUMNS, rows=rows, places=places)


def _expected(path: Path) -> str:
    if path.is_dir():
        return "a subfolder for each class, with a file for each text"
    if path.suffix.lower() in json_lines.SUFFIXES:
        return "a JSON object in each line"
    return "a header, and a row for each text"


def show_rows(rows: Sequence[int], places: Sequence[str] = ()) -> str:
    """Return the first locations of some rows, and how many more there are.

    Args:
        rows: rows, counted from 0.
        places: location of every row, such as "line 3"; none: rows are counted from 1.
    """
    more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
    if places:
        return ", ".join(places[row] for row in rows[:_SHOWN]) + more
    numbers = ", ".join(str(row + 1) for row in rows[:_SHOWN])
    return f"row{'s' if len(rows) > 1 else ''} {numbers}{more}"


def _read_delimited(path: Path, encoding: str, delimiter: str) -> TextFile:
    """Read a CSV or TSV file."""
    if len(delimiter) != 1:
        raise OptionError(f"--delimiter must be one character, got {delimiter!r}")
    csv.field_size_limit(sys.maxsize)  # 131,072 characters are too few for a document
    try:
        with open_text(path, find_codec(encoding), "", LARGE) as file:
            lines = _checked_rows(path, csv.reader(file, delimiter=delimiter, strict=True))
            _, names = next(lines, (0, []))
            found = list(lines)
    except UnicodeError as error:
        raise explain_encoding(path, encoding) from error
    except OSError as error:
        raise explain_read_error(path, error) from error
    rows, places = [row for _, row in found], [f"line {line}" for line, _ in found]
    return TextFile(path=path, names=tuple(names), rows=rows, places=places)


def _checked_rows(path: Path, reader) -> Iterator[tuple[int, list[str]]]:
    """Yield the header and the rows, each with its first line; all have as many fields.

    Blank lines are skipped.
    """
    width, line = None, 1
    try:
        for row in reader:
            width = width or len(row)
            if row and len(row) != width:
                raise DataError(
                    f"{path}, line {reader.line_num}: {counted(len(row), 'field|fields')}, but the "
                    f"header has {width}; quote fields that contain a delimiter or a line break"
                )
            refuse_zero_byte(row, f"{path}, line {line}")
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; double the quotes inside quoted fields"
        ) from error
