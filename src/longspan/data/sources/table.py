"""Tables of texts: the columns of a file or folder, read whole, as strings."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.data.sources import rows as readers
from longspan.data.sources.folders import (
    ARROW,
    DELIMITERS,
    JSON,
    SUFFIXES,
    find_tables,
    has_columns,
    matching_files,
    table_suffix,
    visible_entries,
)
from longspan.data.sources.text import (
    PACKED,
    FileFormat,
    ReadingReport,
    open_encoded,
    refuse_zero_byte,
)
from longspan.errors import DataError, OptionError
from longspan.files import LARGE, check_file, explain_read_error, file_sha256
from longspan.wording import first_of

FILE, TEXT, LABEL = COLUMNS = ("file", "text", "label")  # of a folder of texts
Source = Path | tuple[Path, ...] | str  # file, folder or pattern; shards of a table; "hf:NAME"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of a file or folder.

    Attributes:
        path: file or folder.
        names: names of the columns.
        rows: values of each row.
        places: location of each row, such as "line 3".
        nested: first row of each column that has a list or an object, by name.
        shards: files of a table that has several.
        values: values of each row as JSON or parquet has them; of other files none, they have text.
    """

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    places: Sequence[str]
    nested: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shards: tuple["Table", ...] = ()
    values: Sequence[Mapping[str, Any]] = ()

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

    def typed(self, name: str) -> list[Any]:
        """Return a column with its numbers, booleans and nulls, as JSON writes them.

        Args:
            name: one of `names`.
        """
        place = self.names.index(name)
        texts = [row[place] for row in self.rows]
        if not self.values:
            return texts
        return [_as_json(row.get(name), text) for row, text in zip(self.values, texts, strict=True)]

    def show_rows(self, rows: Sequence[int]) -> str:
        """Return the first locations of some rows, and how many more there are."""
        return first_of(self.places[row] for row in rows)

    def locate(self, row: int) -> str:
        """Return file and location of a row, such as "mine.csv line 3"."""
        return self.places[row] if self.shards else f"{self.path.name} {self.places[row]}"

    def content_sha256(self) -> str:
        """Return the sha256 of the file, or of the rows of a folder of texts or a data set."""
        if self.path.is_file():
            return file_sha256(self.path)
        digest = hashlib.sha256()
        order = [self.names.index(x) for x in (FILE, TEXT)] if FILE in self.names else None
        for row in self.rows:
            name, *rest = row if order is None else (row[n] for n in order)
            text = hashlib.sha256("\0".join(rest).encode()).hexdigest()
            digest.update(f"{name} {text}\n".encode())
        return digest.hexdigest()

    def _delimiter_hint(self) -> str:
        delimiters = [x for x in (";", "\t", "|") if len(self.names) == 1 and x in self.names[0]]
        return f" (pass --delimiter {delimiters[0]!r} if that separates them)" if delimiters else ""


def read_table(source: Source, form: FileFormat | None = None) -> Table:
    """Read a CSV, TSV, JSON, parquet or Arrow file, a folder, files of a pattern, or "hf:NAME".

    Text files may be packed. A folder has tables, which are joined, or a subfolder for each class.

    Raises:
        DataError: the file is missing, malformed or in another encoding, or has no rows.
        OptionError: the name of the file or the format is unknown.
    """
    file_format = form or FileFormat()
    if isinstance(source, str):
        table = _collect(Path(source), readers.read_hub(source))
    elif isinstance(source, tuple):
        table = _join([_read(path, file_format) for path in source])
    else:
        tables = matching_files(source)
        if source.is_dir():
            tables = [path for paths in find_tables(source).values() for path in paths]
        if tables:
            return read_table(tuple(tables), file_format)
        is_folder = source.is_dir()
        table = _read_classes(source, file_format) if is_folder else _read(source, file_format)
    if not table.rows:
        raise DataError(f"{table.path} has no rows; expected {_expected(table.path)}")
    return table


def read_new_texts(path: Path, form: FileFormat) -> Table:
    """Read texts that may have no classes: as `read_table`, or a folder without subfolders.

    Raises:
        DataError, OptionError: as `read_table`.
    """
    if has_columns(path) or any(x.is_dir() for x in visible_entries(path)):
        return read_table(path, form)
    rows = [[x.name, _read_text(x, form)] for x in visible_entries(path)]
    if not rows:
        raise DataError(f"{path} has no files; expected a file for each text")
    return Table(path=path, names=(FILE, TEXT), rows=rows, places=[row[0] for row in rows])


def _read(path: Path, form: FileFormat) -> Table:
    """Read one table."""
    suffix = table_suffix(path)
    if suffix not in SUFFIXES:
        raise OptionError(
            f"{path} must end in {', '.join(SUFFIXES)}, possibly with {' or '.join(PACKED)} behind "
            f"all but {' and '.join(ARROW)}, or be a folder; "
            f"{'unpack' if suffix in PACKED else 'rename'} it"
        )
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if suffix in DELIMITERS:
        lines = list(readers.read_delimited(path, form))
        names = tuple(lines[0][1]) if lines else ()
        places, rows = [x for x, _ in lines[1:]], [x for _, x in lines[1:]]
        return Table(path=path, names=names, rows=rows, places=places)
    if suffix in JSON:
        try:
            check_file(path, LARGE)
        except OSError as error:
            raise explain_read_error(path, error) from error
    report = ReadingReport(remedy=readers.EXPECTED_JSON)
    return _collect(path, readers.read_rows(path, form, report))


def _collect(path: Path, rows: Iterable[readers.Row]) -> Table:
    """Return the table of some rows; a null, a NaN or a key that a row lacks is empty.

    Raises:
        DataError: the rows are in one field of one object, or bytes are not UTF-8.
    """
    places: list[str] = []
    records: list[dict[str, str]] = []
    typed: list[Mapping[str, Any]] = []
    nested: dict[str, int] = {}
    names: dict[str, None] = {}
    for place, values in rows:
        for name, value in values.items():
            names.setdefault(name)
            if isinstance(value, list | dict):
                nested.setdefault(name, len(records))
        records.append({name: _as_text(x, path, name, place) for name, x in values.items()})
        places.append(place)
        typed.append(values)
    if len(records) == 1:
        _refuse_wrapped(typed[0], path)
    cells = [[row.get(name, "") for name in names] for row in records]
    columns = tuple(names)
    return Table(path=path, names=columns, rows=cells, places=places, nested=nested, values=typed)


def _refuse_wrapped(values: Mapping[str, Any], path: Path) -> None:
    """Refuse a file whose only object has the rows in one of its fields."""
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            raise DataError(
                f"{path} is one object whose field {name!r} has a list of objects; write that list "
                "alone, or one object in each line"
            )


def _as_text(value: Any, path: Path, name: str, place: str) -> str:
    """Return a value as text, as JSON writes it.

    Raises:
        DataError: it is bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN differs from itself
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeError:
            raise DataError(
                f"{path}, {place}: column {name!r} has bytes that are not UTF-8 text; store the "
                "column as strings"
            ) from None
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _as_json(value: Any, text: str) -> Any:
    """Return a value that JSON has as it is, a NaN as null, and of another one its text."""
    if value != value:
        return None
    return value if isinstance(value, str | int | float | list | dict | None) else text


def _join(shards: Sequence[Table]) -> Table:
    """Return the rows of all shards, with the columns that all have."""
    if len(shards) == 1:
        return shards[0]
    nonempty_shards = [shard for shard in shards if shard.rows] or shards[:1]
    names = [
        name
        for name in nonempty_shards[0].names
        if all(name in shard.names for shard in nonempty_shards)
    ]
    rows: list[list[str]] = []
    places: list[str] = []
    nested: dict[str, int] = {}
    for shard in nonempty_shards:
        for name in shard.nested.keys() - nested.keys():
            nested[name] = len(rows) + shard.nested[name]
        order = [shard.names.index(name) for name in names]
        rows += [[row[n] for n in order] for row in shard.rows]
        places += [shard.locate(number) for number in range(len(shard.rows))]
    folder = shards[0].path.parent
    are_typed = all(shard.values for shard in nonempty_shards)
    return Table(
        path=folder,
        names=tuple(names),
        rows=rows,
        places=places,
        nested=nested,
        shards=tuple(shards),
        values=[row for shard in shards for row in shard.values] if are_typed else (),
    )


def _read_classes(folder: Path, form: FileFormat) -> Table:
    """Read the texts of all classes, by class and name of the file.

    Raises:
        DataError: there are no subfolders, a file is binary or in another encoding, or neither a
            file nor a folder of classes.
    """
    groups = list(visible_entries(folder))
    if stray_files := [group.name for group in groups if not group.is_dir()]:
        raise DataError(
            f"{folder} has files in no subfolder: {first_of(stray_files)}; expected one "
            "subfolder for each class, with a file for each text. Move them elsewhere"
        )
    rows = [
        [f"{group.name}/{path.name}", _read_text(path, form), group.name]
        for group in groups
        for path in visible_entries(group)
    ]
    return Table(path=folder, names=COLUMNS, rows=rows, places=[row[0] for row in rows])


def _read_text(path: Path, form: FileFormat) -> str:
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file for each text")
    with open_encoded(path, form.encodings[0], newline="") as file:
        text = file.read()
    refuse_zero_byte([text], str(path))
    return text


def _expected(path: Path) -> str:
    if path.is_dir():
        return "a subfolder for each class, with a file for each text"
    if table_suffix(path) in JSON:
        return "a JSON object in each line, or an array of objects"
    return "a header, and a row for each text"
