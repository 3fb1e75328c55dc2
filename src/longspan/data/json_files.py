"""JSON files of published data sets, plain or gzip: where they are, and their checked fields."""

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from longspan.data import archives
from longspan.data.parquet import SUFFIX, read_records, split_files
from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.data.sources.rows import has_surrogate
from longspan.data.sources.text import explain_damage
from longspan.errors import DataError, MissingSourceError
from longspan.files import LARGE, explain_json_errors, open_file, parse_json
from longspan.space import format_bytes

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_HALF_PAIR = re.compile(
    r"\\u[dD][89abAB]\w{2}(?!\\u[dD][c-fC-F])|(?<!(?<!\\)\\u[dD][89abAB]\w{2})\\u[dD][c-fC-F]\w{2}"
)


def load_json(path: Path) -> Any:
    """Return the content of a JSON file, plain or compressed by gzip.

    A parquet file is a list of its rows, and of those of the further files of its split.

    Raises:
        DataError: the file is missing, truncated or not JSON, or a text of it has no encoding; the
            message names the line.
        UnreadableError: the system does not read it now.
    """
    if path.suffix == SUFFIX:
        return list(read_records(path))
    raw = _read(path)
    with explain_json_errors(path):
        text = raw.decode("utf-8-sig")
        content = parse_json(text)
    # The pattern takes 25 ms per megabyte (AMD EPYC), and few files have such escapes.
    half = _HALF_PAIR.search(text) if "\\ud" in text or "\\uD" in text else None
    if half and has_surrogate(json.dumps(content, ensure_ascii=False)):
        line = text.count("\n", 0, half.start()) + 1
        raise DataError(
            f"{path}, line {line}: {half[0]} is half of a surrogate pair, which is no character; "
            "complete or remove it"
        )
    return content


def load_list(path: Path) -> list[Any]:
    """Return the questions of a file that is a list of them.

    Raises:
        DataError: as `load_json`, or the content is no list, or empty.
    """
    content = load_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a list of questions, got {type(content).__name__}")
    if not content:
        raise DataError(f"{path} has no question; download it again")
    return content


def find_lines(files: SourceFiles, name: str) -> dict[str, int]:
    """Return the line of each record, by its id: the first one where there are several.

    Records of parquet files have no lines.

    Args:
        files: JSON files.
        name: name of the field of an id.
    """
    pattern = re.compile(rb'"%s"\s*:\s*"((?:[^"\\]|\\.)*)"' % re.escape(name.encode()))
    lines: dict[str, int] = {}
    for path in files.paths:
        if path.suffix == SUFFIX:
            continue
        for number, line in enumerate(_read(path).splitlines(), start=1):
            for value in pattern.findall(line):
                lines.setdefault(json.loads(b'"%s"' % value), number)
    return lines


def field(record: Any, name: str, kind: type[T], where: str) -> T:
    """Return a field of a JSON object.

    Args:
        record: parsed JSON.
        name: name of the field.
        kind: expected type.
        where: file and place of the record, for the message.

    Raises:
        DataError: `record` is no object, the field is missing, or its type is another.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, got {type(record).__name__}")
    if name not in record:
        raise DataError(f"{where} has no field {name!r}; its fields are {', '.join(record)}")
    value = record[name]
    # True is an int in Python, not in JSON.
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise DataError(
            f"{where}: field {name!r} must be of type {kind.__name__}, got {type(value).__name__}"
        )
    return value


def zip_columns(record: Any, names: Sequence[str], where: str) -> list[tuple[Any, ...]]:
    """Return the rows of an object of parallel lists, as the hub has them.

    Args:
        record: parsed JSON.
        names: names of the lists, which are the columns of the rows.
        where: file and place of the record, for the message.

    Raises:
        DataError: as `field`, or the lists have different lengths.
    """
    columns = [field(record, name, list, where) for name in names]
    if len({len(column) for column in columns}) > 1:
        sizes = ", ".join(f"{x!r} has {len(y):,}" for x, y in zip(names, columns, strict=True))
        raise DataError(
            f"{where}: expected lists of one length, got others ({sizes}); download the file again"
        )
    return list(zip(*columns, strict=True))


def _read(path: Path) -> bytes:
    """Return the bytes of a file, decompressed."""
    with explain_damage(path), open_file(path, LARGE) as file:
        is_packed = file.peek(len(_GZIP)).startswith(_GZIP)
        raw = (gzip.GzipFile(fileobj=file) if is_packed else file).read(LARGE + 1)
    if len(raw) > LARGE:
        raise DataError(f"{path} unpacks to more than {format_bytes(LARGE)}; download it again")
    return raw


def find_json_files(
    data: Path | None, names: Sequence[str], task: str, form: str, splits: Sequence[str] = ()
) -> SourceFiles:
    """Find JSON files by their names, with or without the suffix .gz, or parquet files of the hub.

    Args:
        data: folder of the files, or the file itself if there is one name. None: $LONGSPAN_DATA,
            then $LONGSPAN_TEST_DATA. In a folder, its subfolders `qa` and that of the task's name
            are searched too.
        names: names of the files.
        task: name of the task.
        form: name of the format.
        splits: splits of the hub that have the content of the files; none: not read.

    Raises:
        DataError: a file is missing; the message says how to pass it.
    """
    paths = search_paths(data, f"the files {' and '.join(names)}")
    for path in paths:
        if len(names) == 1 and path.is_file() and not archives.is_archive(path):
            return SourceFiles(form=form, path=path)
        for folder in (path, path / task, path / "qa"):
            files = {name: _plain_or_gzip(folder / name) for name in names}
            if all(files.values()):
                return SourceFiles(form=form, path=folder, files=files)
        # Other data sets have files of these names.
        shards = {split: split_files(path, split) for split in splits if data is not None}
        if shards and all(shards.values()):
            return SourceFiles(form=f"{form} parquet", path=path, files=shards)
    or_parquet = f", nor parquet files of {' and '.join(splits)}" if splits else ""
    missing = f"{names[0]} is" if len(names) == 1 else f"{' and '.join(names)} are"
    raise MissingSourceError(
        f"{missing} not here{or_parquet} (searched {format_paths(paths)}); "
        f"download them to FOLDER and run `longspan data build {task} --data FOLDER`"
    )


def _plain_or_gzip(path: Path) -> tuple[Path, ...]:
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return tuple(one for one in candidates if one.is_file())[:1]
