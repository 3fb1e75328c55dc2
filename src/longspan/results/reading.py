"""Reading records: every field must be there with its type, or the file is refused by name."""

import dataclasses
import math
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from longspan.errors import DataError, in_range, mistyped
from longspan.files import read_json
from longspan.results.record import FAILED, SCHEMA, Alarm, Failure, Point, Result, Score, Slice

# Folders below a folder of results that hold other things than records to report.
NO_RECORDS = {"work", "trials", "analysis", "snapshots"}
T = TypeVar("T")  # a dataclass
R = TypeVar("R", Result, Failure)


def load(path: Path) -> Result:
    """Read one record.

    Raises:
        DataError: the file is no record of a known schema; the message says what is wrong with it.
    """
    return result_of(read_json(path), path)


def result_of(record: Any, path: Path) -> Result:
    """The record that the values of a JSON file are.

    Raises:
        DataError: they are none of a known schema; the message names `path` and what is wrong.
    """
    if not isinstance(record, dict) or "schema" not in record:
        raise DataError(f"{path} is not a longspan result (no 'schema' field)")
    record = _upgraded(record)
    if record["schema"] != SCHEMA:
        raise DataError(f"{path} has schema {record['schema']}, this version reads 1 to {SCHEMA}")
    if isinstance(scores := record.get("scores"), dict):
        record["scores"] = {split: _made(Score, score, path) for split, score in scores.items()}
    if isinstance(slices := record.get("slices"), dict):
        record["slices"] = {name: _several(Slice, part, path) for name, part in slices.items()}
    if "curve" in record:
        record["curve"] = _several(Point, record["curve"], path)
    if "alarms" in record:
        record["alarms"] = _several(Alarm, record["alarms"], path)
    return _budgeted(_made(Result, record, path), path)


def load_failure(path: Path) -> Failure:
    """Read the record of a run that failed.

    Raises:
        DataError: the file is none; the message says what is wrong with it.
    """
    return failure_of(read_json(path), path)


def failure_of(record: Any, path: Path) -> Failure:
    """The record of a failed run that the values of a JSON file are.

    Raises:
        DataError: they are none; the message names `path` and what is wrong.
    """
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise DataError(f"{path} is not the record of a failed run of schema {SCHEMA}")
    return _budgeted(_made(Failure, record, path), path)


def _budgeted(record: R, path: Path) -> R:
    """The record, if its budget can be read: what is equal decides which table it stands in."""
    held = {name: record.budget.get(name) for name in ("kind", "limit")}
    if reasons := mistyped(held, {"kind": str, "limit": float}):
        raise DataError(f"{path}: budget is malformed: {'; '.join(reasons)}")
    return record


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """A record of an older schema as one of today: what was not noted then is none or empty."""
    if record["schema"] == 1:
        record = {"waiting": None, **record, "schema": 2}
    if record["schema"] == 2:
        unnoted = dict.fromkeys(("full_parameters", "tuning", "selected_step", "answers"))
        alone = {"processes": 1, "parallelism": "none"}
        budget = {"kind": "steps", "limit": record.get("steps")}
        lists = {"slices": {}, "alarms": [], "budget": budget}
        record = {**unnoted, **alone, **lists, **record, "schema": 3}
    return record


def _several(kind: type[T], values: Any, path: Path) -> Any:
    """The parts of a list; what is no list is left for the record to refuse."""
    if not isinstance(values, list):
        return values
    if _sound(kind, values):
        return [kind(**part) for part in values]
    return [_made(kind, part, path) for part in values]


def _sound(kind: type[T], values: list[Any]) -> bool:
    """Whether all parts are as `_made` would have them, looked at field by field: it is quick.

    No is only a reason to look at each: a learning curve has hundreds of points.
    """
    hints = _hints(kind)
    plain = {name: _PLAIN.get(hint) for name, hint in hints.items()}
    if not all(isinstance(part, dict) and part.keys() == hints.keys() for part in values):
        return False
    for name, allowed in plain.items():
        column = [part[name] for part in values]
        if allowed is None or not allowed.issuperset(map(type, column)):
            return False
        if int in allowed and not all(map(in_range, column)):
            return False
        if float in allowed and not math.isfinite(sum(x for x in column if x is not None)):
            return False
    return True


# Types of values that need no further look; whole numbers for real ones are left to `_made`.
_PLAIN: dict[Any, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({float}),
    str: frozenset({str}),
    float | None: frozenset({float, types.NoneType}),
}


def _hints(kind: type) -> dict[str, Any]:
    """The types of the fields of a part of a record."""
    return {field.name: field.type for field in dataclasses.fields(kind)}


def _real(kind: type) -> frozenset[str]:
    """The fields that hold real numbers."""
    return frozenset(name for name, hint in _hints(kind).items() if hint in (float, float | None))


def _made(kind: type[T], values: Any, path: Path) -> T:
    """Build a part of a record; all of its fields must be there, with their types."""
    hints = _hints(kind)
    if not isinstance(values, dict):
        raise DataError(f"{path}: a {kind.__name__} has named fields, got {values!r:.60}")
    if values.keys() != hints.keys():
        missing, foreign = (
            sorted(hints.keys() - values.keys()),
            sorted(values.keys() - hints.keys()),
        )
        raise DataError(
            f"{path}: {kind.__name__} with missing fields {missing}, unknown fields {foreign}"
        )
    if reasons := mistyped(values, hints):
        raise DataError(f"{path}: {kind.__name__} is malformed: {'; '.join(reasons)}")
    # JSON writers may leave out the point of a whole number.
    real = _real(kind)
    whole = {k: float(x) for k, x in values.items() if k in real and isinstance(x, int)}
    return kind(**{**values, **whole})


def load_all(folders: Iterable[Path]) -> list[Result]:
    """Read every record below the folders, in a stable order.

    Raises:
        DataError: a folder does not exist or holds no record, or a record is malformed.
    """
    results = []
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder of results")
        results += [load(path) for path in runs_below(folder)]
    return results


def records_below(folder: Path) -> list[Path]:
    """The files of results and of failures below a folder, in a stable order; none is hidden."""
    found = (path for path in folder.rglob("*.json") if not path.name.startswith("."))
    return sorted(path for path in found if not aside(path, folder))


def runs_below(folder: Path) -> list[Path]:
    """The files of results below a folder, in a stable order.

    Raises:
        DataError: there is none.
    """
    paths = [path for path in records_below(folder) if not path.name.endswith(FAILED)]
    if not paths:
        raise DataError(f"{folder} holds no results; run `longspan arena` first")
    return paths


def failures_below(folder: Path) -> list[Path]:
    """The files of failures below a folder, in a stable order; a run that ended since is none."""
    paths = [path for path in records_below(folder) if path.name.endswith(FAILED)]
    return [path for path in paths if not _result_beside(path).exists()]


def load_failures(folders: Iterable[Path]) -> list[Failure]:
    """Read what `failures_below` finds.

    Raises:
        DataError: a record is malformed.
    """
    return [load_failure(path) for folder in folders for path in failures_below(folder)]


def _result_beside(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(FAILED) + ".json")


def aside(path: Path, folder: Path) -> set[str]:
    """The folders on the way to a file that hold no records of runs."""
    return NO_RECORDS.intersection(path.relative_to(folder).parts[:-1])
