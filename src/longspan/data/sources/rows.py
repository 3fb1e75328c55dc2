"""Rows of tables: CSV, JSON, parquet and Arrow files, and data sets of the Hugging Face hub.

CSV and JSON have readers of their own: those of the `datasets` library guess types (007 becomes 7,
a date a time, 1 beside 1.0 a float), fill short rows, choose one of two columns of a name, and name
no line.
"""

import codecs
import csv
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.hub import import_datasets
from longspan.data.parquet import explain_parquet_errors
from longspan.data.sources import text as texts
from longspan.data.sources.folders import ARROW, DELIMITERS, JSON, table_suffix
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.errors import DataError, OptionError, reason_of
from longspan.files import LARGE, check_file, unique_keys
from longspan.space import format_bytes
from longspan.wording import counted

HUB = "hf:"
Row = tuple[str, dict[str, Any]]  # place and values
EXPECTED_JSON = "expected a JSON object in each line, or an array of them"
_HUB_NAME = re.compile(r"hf:(?P<name>[^:#]+)(?::(?P<config>[^#]+))?(?:#(?P<split>.+))?")
_ROWS = 64  # of parquet, in memory at a time: one may have a book
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)


def read_rows(
    path: Path, form: FileFormat, report: ReadingReport, column: str | None = None
) -> Iterator[Row]:
    """Yield place and values of each row of a table, some in memory at a time.

    Args:
        path: file with a suffix of a table.
        form: its format.
        report: takes objects of JSON that cannot be read.
        column: the only column that is needed; None: all.

    Raises:
        DataError: the file is missing, malformed or in another encoding, or lacks the column.
        OptionError: the encoding or the delimiter is unknown.
    """
    suffix = table_suffix(path)
    if suffix in JSON:
        return read_json(path, form.encodings[0], report)
    if suffix in ARROW:
        return _read_arrow(path, column)
    lines = read_delimited(path, form)
    _, names = next(lines, ("", []))
    if column is not None and names.count(column) != 1:
        has = f"several columns {column!r}" if column in names else f"no column {column!r}"
        report.add_bad(str(path), f"{has}, there are {', '.join(names)} (--text)")
        return iter(())
    return ((place, dict(zip(names, fields, strict=True))) for place, fields in lines)


def read_delimited(path: Path, form: FileFormat) -> Iterator[tuple[str, list[str]]]:
    """Yield the header and the rows of a CSV or TSV file, each with its first line.

    All have as many fields. Quoted fields may contain line breaks; blank lines are skipped.

    Raises:
        DataError: the file is malformed or in another encoding.
        OptionError: the encoding or the delimiter is unknown.
    """
    default = DELIMITERS[table_suffix(path)]
    delimiter = default if form.delimiter is None else form.delimiter
    if len(delimiter) != 1:
        raise OptionError(f"--delimiter must be one character, got {delimiter!r}")
    csv.field_size_limit(sys.maxsize)  # 131,072 characters are too few for a document
    width, line = None, 1
    with texts.open_encoded(path, form.encodings[0], newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                width = width or len(row)
                if row and len(row) != width:
                    raise DataError(
                        f"{path}, line {reader.line_num}: {counted(len(row), 'field|fields')}, but "
                        f"the header has {width}; quote fields that contain a delimiter or a line "
                        "break"
                    )
                texts.refuse_zero_byte(row, f"{path}, line {line}")
                if row:
                    yield f"line {line}", row
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error}; double the quotes inside quoted fields"
            ) from error


def read_json(path: Path, encoding: str, report: ReadingReport) -> Iterator[Row]:
    """Yield the objects of a JSON file: one in each line, over several lines, or an array.

    Blank lines are skipped. A file of one object in each line is read line by line, another one
    whole.

    Raises:
        DataError: a line is too long, or has something else than an object, and such rows are not
            to be left out; or the file is not in the encoding, or an array has no end.
        OptionError: the encoding is unknown.
    """
    if texts.is_wide(encoding) or not _has_lines(path):
        yield from _read_values(path, encoding, report)
        return
    with texts.open_packed(path) as file, texts.explain_damage(path):
        for number in itertools.count(1):
            if not (line := file.readline(texts.LONGEST)):
                return
            try:
                if (value := _parse_line(line, encoding, is_first=number == 1)) is not None:
                    yield f"line {number}", value
            except UnicodeError as error:
                if not report.skip_bad:
                    raise texts.explain_encoding(path, encoding) from error
                report.add_bad(f"{path}, line {number}", f"not {encoding}")
            except (ValueError, RecursionError) as error:
                report.add_bad(f"{path}, line {number}", _json_reason(error))
            while len(line) == texts.LONGEST and not line.endswith(b"\n"):
                line = file.readline(texts.LONGEST)  # the rest of a line that is too long


def _parse_line(line: bytes, encoding: str, *, is_first: bool) -> dict[str, Any] | None:
    """Return the object of a line; None if it is blank.

    Raises:
        UnicodeError: it is not in the encoding.
        ValueError, RecursionError: it is too long, no object, or nested too deeply.
    """
    if len(line) == texts.LONGEST and not line.endswith(b"\n"):
        raise ValueError(f"more than {texts.LONGEST:,} bytes")
    if not line.strip():
        return None
    text = line.decode(texts.find_codec(encoding) if is_first else encoding)
    return _check_object(json.loads(text, object_pairs_hook=unique_keys))


def _has_lines(path: Path) -> bool:
    """Return whether a file has an object in each line: its first one does not go on below."""
    with texts.open_packed(path) as file, texts.explain_damage(path):
        lines = iter(lambda: file.readline(texts.LONGEST), b"")
        nonblank_lines = (x for line in lines if (x := line.removeprefix(codecs.BOM_UTF8).strip()))
        first, second = next(nonblank_lines, b"{}"), next(nonblank_lines, b"")
    try:
        return isinstance(json.loads(first), dict) or not first.startswith(b"[")
    except json.JSONDecodeError as error:
        is_open = error.pos >= len(error.doc) and not second.startswith(b"{")
        return not (is_open or first.startswith(b"["))
    except (ValueError, RecursionError):
        return True


def _read_values(path: Path, encoding: str, report: ReadingReport) -> Iterator[Row]:
    """Yield the objects of a file, or of the array that it is, each with its first line."""
    text = _read_whole(path, encoding)
    place = _skip_space(text, 0)
    is_array = text.startswith("[", place)
    place = _skip_space(text, place + is_array)
    line, previous = 1, 0
    while place < len(text) and not (is_array and text[place] == "]"):
        line, previous = line + text.count("\n", previous, place), place
        try:
            value, place = _DECODER.raw_decode(text, place)
            yield f"line {line}", _check_object(value)
        except (ValueError, RecursionError) as error:
            report.add_bad(f"{path}, line {line}", _json_reason(error))
            return
        place = _skip_space(text, place)
        if is_array and text.startswith(",", place):
            place = _skip_space(text, place + 1)
        elif is_array and not text.startswith("]", place):
            raise _no_end(text, place, path)
    if is_array and place >= len(text):
        raise _no_end(text, place, path)
    if is_array and _skip_space(text, place + 1) < len(text):
        raise DataError(f"{path} has text after its array; write all objects in one array")


def _read_whole(path: Path, encoding: str) -> str:
    """Return the text of a file, read in pieces: `read` would reserve the most that it may have."""
    pieces, length = [], 0
    with texts.open_encoded(path, encoding) as file:
        while piece := file.read(texts.PIECE):
            pieces.append(piece)
            length += len(piece)
            if length > LARGE:
                raise DataError(f"{path} has more than {format_bytes(LARGE)} of text; split it")
    return "".join(pieces)


def _no_end(text: str, place: int, path: Path) -> DataError:
    """Return the error of an array that has something else, or nothing more, at a place."""
    actual = repr(text[place]) if place < len(text) else "the end of the file"
    return DataError(
        f"{path}, line {text.count(chr(10), 0, place) + 1}: the array has no end; expected a comma "
        f"or ] after an object, got {actual}; correct the file, or fetch it again"
    )


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _check_object(value: Any) -> dict[str, Any]:
    """Return a value that is an object of text.

    Raises:
        ValueError: it is none, or has half of a surrogate pair.
    """
    if not isinstance(value, dict):
        raise ValueError(
            f"not a JSON object but a {type(value).__name__}, expected one such as "
            '{"text": "...", "label": "..."}'
        )
    if has_surrogate(json.dumps(value, ensure_ascii=False)):
        raise ValueError("half of a surrogate pair, which is no character")
    return value


def has_surrogate(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, which is no character."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}, column {error.colno})"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _read_arrow(path: Path, column: str | None) -> Iterator[Row]:
    """Yield the rows of a parquet or Arrow file; numbers of classes have their names."""
    row = 0
    with explain_parquet_errors(path):
        file = _open_arrow(path)
        schema = file.schema_arrow if isinstance(file, pq.ParquetFile) else file.schema
        if doubled := next((x for x in schema.names if schema.names.count(x) > 1), None):
            raise DataError(f"{path} has several columns {doubled!r}; rename all but one")
        if column is not None and column not in schema.names:
            raise DataError(f"{path} lacks column {column}; it has {', '.join(schema.names)}")
        classes = class_names(schema)
        with file:
            for batch in _batches(file, column):
                for values in batch.to_pylist():
                    row += 1
                    yield f"row {row}", _name_classes(values, classes)


def _open_arrow(path: Path) -> Any:
    """Open a parquet file, or an Arrow file or stream, as `save_to_disk` writes them."""
    if path.suffix.lower() != ".arrow":
        return pq.ParquetFile(path, pre_buffer=False)
    check_file(path)
    try:
        return pa.ipc.open_stream(pa.memory_map(str(path)))
    except pa.ArrowInvalid:
        return pa.ipc.open_file(pa.memory_map(str(path)))


def _batches(file: Any, column: str | None) -> Iterator[pa.RecordBatch]:
    names = None if column is None else [column]
    if isinstance(file, pq.ParquetFile):
        yield from file.iter_batches(batch_size=_ROWS, columns=names)
    elif isinstance(file, pa.ipc.RecordBatchFileReader):
        yield from map(file.get_batch, range(file.num_record_batches))
    else:
        yield from file


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of the classes by column, as the Hugging Face libraries store them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names_by_column = {
            name: x["names"] for name, x in features.items() if x["_type"] == "ClassLabel"
        }
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
    return {name: names for name, names in names_by_column.items() if isinstance(names, list)}


def _name_classes(values: dict[str, Any], classes: dict[str, list[str]]) -> dict[str, Any]:
    """Return values with names of classes in place of their numbers; -1 is a missing one."""
    for name, names in classes.items():
        number = values.get(name)
        if type(number) is int:
            values[name] = names[number] if 0 <= number < len(names) else None
    return values


def hub_splits(name: str) -> list[str]:
    """Return the splits of a data set; one that is named is the only one.

    Raises:
        OptionError: the name has another form.
        DataError: the library is not installed, or the data set is not reachable.
    """
    match = _parse_hub(name)
    return [match["split"]] if match["split"] else list(_load_hub(name, None))


def read_hub(name: str) -> Iterator[Row]:
    """Yield the examples of a data set of the `datasets` library, streamed.

    Args:
        name: "hf:NAME", "hf:NAME:CONFIGURATION", each with "#SPLIT" in place of train.

    Raises:
        OptionError: the name has another form.
        DataError: the library is not installed, or the data set is not reachable.
    """
    rows = _load_hub(name, _parse_hub(name)["split"] or "train")
    features = rows.features or {}
    classes = {x: y.names for x, y in features.items() if type(y).__name__ == "ClassLabel"}
    iterator = iter(rows)
    for number in itertools.count():
        try:
            values = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # of the network and of many file formats
            raise _unreadable(name, error) from error
        yield f"example {number}", _name_classes(values, classes)


def _load_hub(name: str, split: str | None) -> Any:
    match = _parse_hub(name)
    datasets = import_datasets(f"reading {name}")
    try:
        return datasets.load_dataset(match["name"], match["config"], split=split, streaming=True)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> DataError:
    reason = reason_of(error)
    return DataError(
        f"{name} cannot be read ({reason}); check its name, configuration and split, and the "
        "network"
    )


def _parse_hub(name: str) -> re.Match[str]:
    if not (match := _HUB_NAME.fullmatch(name)):
        raise OptionError(f"{name!r} is no data set; write hf:NAME, hf:NAME:CONFIGURATION#SPLIT")
    return match
