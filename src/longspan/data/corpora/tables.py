"""Tables of a corpus: JSONL and parquet files, and data sets of the `datasets` library."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.corpora.documents import (
    LONGEST,
    CorpusFormat,
    Document,
    ReadingReport,
    split_parts,
)
from longspan.data.corpora.text import open_packed
from longspan.data.parquet import check_columns, explain_parquet_errors
from longspan.errors import DataError, OptionError
from longspan.files import unique_keys

HUB = "hf:"
_HUB_NAME = re.compile(r"hf:(?P<name>[^:#]+)(?::(?P<config>[^#]+))?(?:#(?P<split>.+))?")
_ROWS = 64  # of parquet, in memory at a time
# Lists of paragraphs or sentences are one document.
_JOINT = "\n"
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_jsonl(path: Path, form: CorpusFormat, report: ReadingReport) -> Iterator[Document]:
    """Yield a document for each line of JSON objects, from their field `form.text`.

    Raises:
        DataError: a line is too long, no JSON object, or has no such text, and such documents are
            not to be left out.
    """
    with open_packed(path) as file:
        for number in itertools.count(1):
            where = f"{path}, line {number}"
            line = file.readline(LONGEST)
            if not line:
                return
            if len(line) == LONGEST and not line.endswith(b"\n"):
                report.add_bad(where, f"more than {LONGEST:,} bytes")
                _skip_line(file)
            elif line.strip():
                yield from _from_field(where, _parse_field, line, form, report)


def read_parquet(path: Path, form: CorpusFormat, report: ReadingReport) -> Iterator[Document]:
    """Yield a document for each row of a parquet file, from its column `form.text`.

    Raises:
        DataError: the file is damaged, or has no such column of texts.
    """
    row = 0
    with explain_parquet_errors(path), pq.ParquetFile(path) as file:
        check_columns(path, file.schema_arrow, text=(), other=form.text)
        for batch in file.iter_batches(batch_size=_ROWS, columns=[form.text]):
            for value in batch.column(0):
                row += 1
                where = f"{path}, row {row}"
                yield from _from_field(where, _as_text, value.as_py(), form, report)


def read_dataset(name: str, form: CorpusFormat, report: ReadingReport) -> Iterator[Document]:
    """Yield a document for each example of a data set of the `datasets` library, streamed.

    Args:
        name: "hf:NAME", "hf:NAME:CONFIGURATION", each with "#SPLIT" in place of train.
        form: its field `text` is the column.
        report: takes what is left out.

    Raises:
        OptionError: the name has another form.
        DataError: the library is not installed, or the data set is not reachable.
    """
    if not (named := _HUB_NAME.fullmatch(name)):
        raise OptionError(f"{name!r} is no data set; write hf:NAME, hf:NAME:CONFIGURATION#SPLIT")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"reading {name} needs the library datasets ({error}); pip install 'longspan[hub]'"
        ) from error
    # Errors of the network and of many file formats.
    failures = (OSError, ValueError, RuntimeError, pa.ArrowException)
    try:
        rows: Any = datasets.load_dataset(
            named["name"], named["config"], split=named["split"] or "train", streaming=True
        )
        for number, row in enumerate(rows):
            where = f"{name}, example {number}"
            yield from _from_field(where, _field_of, row, form, report)
    except (*failures, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, DataError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{name} cannot be read ({reason}); check its name, configuration and split, and the "
            "network"
        ) from error


class _BadFieldError(Exception):
    """A row has no text; the message says why."""


def _from_field(
    where: str, parse: Any, content: Any, form: CorpusFormat, report: ReadingReport
) -> Iterator[Document]:
    """Yield the document of a row, or report that it has none."""
    try:
        text = parse(content, form.text)
    except _BadFieldError as error:
        report.add_bad(where, str(error))
        return
    yield Document(where, split_parts([text]))


def _parse_field(line: bytes, field: str) -> str:
    """Return the text in a field of a JSON object."""
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        raise _BadFieldError(f"not utf-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise _BadFieldError(f"not JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise _BadFieldError("not a JSON object")
    return _field_of(row, field)


def _field_of(row: dict[str, Any], field: str) -> str:
    if field not in row:
        raise _BadFieldError(f"no field {field!r}, there are {', '.join(map(str, row))} (--text)")
    return _as_text(row[field], field)


def _as_text(value: Any, field: str) -> str:
    """Return a string, or a list of strings joined by line ends; null is empty."""
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise _BadFieldError(f"field {field!r} contains {type(parts[0]).__name__}, expected text")
    text = _JOINT.join(parts)
    if not text.isascii() and _SURROGATE.search(text):
        raise _BadFieldError(f"field {field!r} contains half of a surrogate pair, no character")
    return text


def _skip_line(file: BinaryIO) -> None:
    """Read the rest of a line without keeping it."""
    while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
        pass
