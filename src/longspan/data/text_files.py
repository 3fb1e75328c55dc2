"""Tables of texts: CSV, TSV, JSON Lines, parquet or a folder, read whole, as columns of strings."""

import csv
import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from longspan.data import json_lines
from longspan.data.class_folders import (
    COLUMNS,
    FILE,
    TEXT,
    read_class_folder,
    read_flat,
    visible_entries,
)
from longspan.data.corpora.text import PACKED
from longspan.data.parquet_table import read_parquet_table
from longspan.data.table_folders import (
    DELIMITERS,
    PARQUET,
    SUFFIXES,
    find_tables,
    has_columns,
    table_suffix,
)
from longspan.data.text_encoding import UTF8, find_codec, open_encoded, refuse_zero_byte
from longspan.errors import DataError, OptionError
from longspan.files import file_sha256
from longspan.wording import counted, first_of

Source = Path | tuple[Path, ...]  # file or folder, or the shards of a table


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
        shards: files of a table that has several.
    """

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    places: Sequence[str] = ()
    nested: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shards: tuple["TextFile", ...] = ()

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
        place = self.places[row] if self.places else f"row {row + 1}"
        return place if self.shards else f"{self.path.name} {place}"

    def content_sha256(self) -> str:
        """Return the sha256 of the file, or of the names and texts of a folder of texts."""
        if self.path.is_file():
            return file_sha256(self.path)
        digest = hashlib.sha256()
        names, texts = (self.names.index(name) for name in (FILE, TEXT))
        for row in self.rows:
            text = hashlib.sha256(row[texts].encode()).hexdigest()
            digest.update(f"{row[names]} {text}\n".encode())
        return digest.hexdigest()

    def _delimiter_hint(self) -> str:
        found = [x for x in (";", "\t", "|") if len(self.names) == 1 and x in self.names[0]]
        return f" (pass --delimiter {found[0]!r} if that separates them)" if found else ""


def read_text_file(source: Source, file_format: FileFormat | None = None) -> TextFile:
    """Read a CSV, TSV, JSON or parquet file, possibly packed, or a folder.

    Quoted fields of CSV may contain line breaks. A folder has tables, which are joined, or a
    subfolder for each class.

    Raises:
        DataError: the file is missing, malformed or in another encoding, or has no rows.
        OptionError: the name of the file or the format is unknown.
    """
    chosen = file_format or FileFormat()
    if isinstance(source, Path) and source.is_dir():
        tables = tuple(path for paths in find_tables(source).values() for path in paths)
        source = tables or source
    if isinstance(source, tuple):
        found = _join([_read(path, chosen) for path in source])
    elif source.is_dir():
        rows = read_class_folder(source, find_codec(chosen.encoding))
        found = _of_folder(source, rows, COLUMNS)
    else:
        found = _read(source, chosen)
    if not found.rows:
        raise DataError(f"{found.path} has no rows; expected {_expected(found.path)}")
    return found


def read_new_texts(path: Path, file_format: FileFormat) -> TextFile:
    """Read texts that may have no classes: as `read_text_file`, or a folder without subfolders.

    Raises:
        DataError, OptionError: as `read_text_file`.
    """
    if has_columns(path) or any(x.is_dir() for x in visible_entries(path)):
        return read_text_file(path, file_format)
    rows = read_flat(path, find_codec(file_format.encoding))
    if not rows:
        raise DataError(f"{path} has no files; expected a file for each text")
    return _of_folder(path, rows, (FILE, TEXT))


def _read(path: Path, chosen: FileFormat) -> TextFile:
    """Read one table."""
    suffix = table_suffix(path)
    if suffix not in SUFFIXES:
        raise OptionError(
            f"{path} must end in {', '.join(SUFFIXES)}, possibly with {' or '.join(PACKED)} behind "
            f"all but {PARQUET}, or be a folder; {'unpack' if suffix in PACKED else 'rename'} it"
        )
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if suffix in json_lines.SUFFIXES:
        names, rows, places, nested = json_lines.read_json_lines(path, chosen.encoding)
        return TextFile(path=path, names=tuple(names), rows=rows, places=places, nested=nested)
    if suffix == PARQUET:
        names, rows, nested = read_parquet_table(path)
        return TextFile(path=path, names=tuple(names), rows=rows, nested=nested)
    return _read_delimited(path, chosen.encoding, chosen.delimiter or DELIMITERS[suffix])


def _join(shards: Sequence[TextFile]) -> TextFile:
    """Return the rows of all shards, with the columns that all have."""
    if len(shards) == 1:
        return shards[0]
    filled = [shard for shard in shards if shard.rows] or shards[:1]
    names = [name for name in filled[0].names if all(name in shard.names for shard in filled)]
    rows: list[list[str]] = []
    places: list[str] = []
    nested: dict[str, int] = {}
    for shard in filled:
        for name in shard.nested.keys() - nested.keys():
            nested[name] = len(rows) + shard.nested[name]
        order = [shard.names.index(name) for name in names]
        rows += [[row[n] for n in order] for row in shard.rows]
        places += [shard.locate(number) for number in range(len(shard.rows))]
    return TextFile(
        path=shards[0].path.parent,
        names=tuple(names),
        rows=rows,
        places=places,
        nested=nested,
        shards=tuple(shards),
    )


def _of_folder(path: Path, rows: list[list[str]], names: tuple[str, ...]) -> TextFile:
    return TextFile(path=path, names=names, rows=rows, places=[row[0] for row in rows])


def _expected(path: Path) -> str:
    if path.is_dir():
        return "a subfolder for each class, with a file for each text"
    if table_suffix(path) in json_lines.SUFFIXES:
        return "a JSON object in each line, or an array of objects"
    return "a header, and a row for each text"


def show_rows(rows: Sequence[int], places: Sequence[str] = ()) -> str:
    """Return the first locations of some rows, and how many more there are.

    Args:
        rows: rows, counted from 0.
        places: location of every row, such as "line 3"; none: rows are counted from 1.
    """
    if places:
        return first_of(places[row] for row in rows)
    return f"row{'s' if len(rows) > 1 else ''} {first_of(str(row + 1) for row in rows)}"


def _read_delimited(path: Path, encoding: str, delimiter: str) -> TextFile:
    """Read a CSV or TSV file."""
    if len(delimiter) != 1:
        raise OptionError(f"--delimiter must be one character, got {delimiter!r}")
    csv.field_size_limit(sys.maxsize)  # 131,072 characters are too few for a document
    with open_encoded(path, encoding, newline="") as file:
        lines = _checked_rows(path, csv.reader(file, delimiter=delimiter, strict=True))
        _, names = next(lines, (0, []))
        found = list(lines)
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
