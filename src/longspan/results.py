"""The typed record of a run: the only door between running and reporting.

A record is written once, atomically, as soon as its run ends:
`runs/<protocol>/<task>/<mechanism>-<hash of the configuration>-<seed>.json`.
This module needs no torch, so a report can be drawn anywhere.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from longspan.errors import DataError, mistyped
from longspan.files import read_json, write_json

SCHEMA = 2
T = TypeVar("T", "Score", "Point", "Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What a split was scored: over every one of its examples."""

    accuracy: float
    loss: float
    examples: int
    majority: float  # accuracy of always answering the split's most frequent class


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One point of the learning curve; `None` where nothing was measured."""

    step: int
    seconds: float  # of training so far, evaluation not counted
    learning_rate: float
    train_loss: float | None  # mean since the point before
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One run: (mechanism, task, protocol, seed), what it scored and what it cost."""

    protocol: str
    overrides: dict[str, Any]  # experiment fields that differ from the protocol's own
    task: str
    task_version: int
    task_options: dict[str, Any]
    data_source: str  # where the examples came from, in words
    data_checksum: str  # sha256 over the built splits
    chance: float  # expected accuracy of a uniform guess
    mechanism: str
    options: dict[str, Any]  # of the mechanism, defaults included
    backend: str  # the body that ran
    model: dict[str, Any]
    training: dict[str, Any]
    seed: int
    config_hash: str
    parameters: int
    flops: int  # one example of `length` tokens, forward, multiply and add counted apart
    attended_pairs: int | None  # query-key pairs per head (mean) and example; None: no such notion
    length: int  # most tokens of an example
    selection: str  # which checkpoint was tested: "best validation" or "last"
    scores: dict[str, Score]  # by split: validation and test, of the selected checkpoint
    steps: int
    curve: list[Point]
    seconds: float  # training, evaluation not counted
    waiting: float | None  # of the seconds, waiting for batches; None: nobody counted (schema 1)
    tokens_per_second: float  # real tokens, training
    peak_memory: int | None  # bytes needed by the run: above the process's own on CPU
    device: str
    dtype: str
    versions: dict[str, str]
    git_commit: str | None
    date: str  # ISO 8601, UTC
    schema: int = SCHEMA

    @property
    def filename(self) -> str:
        """Name of the record's file inside `<protocol>/<task>/`."""
        return f"{self.mechanism}-{self.config_hash}-{self.seed}.json"

    def save(self, runs: Path) -> Path:
        """Write the record below the folder `runs`, atomically, and return its path."""
        path = runs / self.protocol / self.task / self.filename
        write_json(path, dataclasses.asdict(self))
        return path


def config_hash(config: dict[str, Any]) -> str:
    """Ten hex digits that name a configuration, the same in every process."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def load(path: Path) -> Result:
    """Read one record.

    Raises:
        DataError: the file is no record of a known schema; the message says what is wrong with it.
    """
    record = read_json(path)
    if not isinstance(record, dict) or "schema" not in record:
        raise DataError(f"{path} is not a longspan result (no 'schema' field)")
    record = _upgraded(record)
    if record["schema"] != SCHEMA:
        raise DataError(f"{path} has schema {record['schema']}, this version reads 1 to {SCHEMA}")
    if isinstance(scores := record.get("scores"), dict):
        record["scores"] = {split: _made(Score, score, path) for split, score in scores.items()}
    if isinstance(curve := record.get("curve"), list):
        record["curve"] = [_made(Point, point, path) for point in curve]
    return _made(Result, record, path)


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """A record of schema 1 as one of schema 2, which also knows the time spent waiting."""
    if record["schema"] != 1:
        return record
    return {"waiting": None, **record, "schema": 2}


def _made(kind: type[T], values: Any, path: Path) -> T:
    """Build a part of a record; all of its fields must be there, with their types."""
    hints = {field.name: field.type for field in dataclasses.fields(kind)}
    names = hints.keys()
    if not isinstance(values, dict):
        raise DataError(f"{path}: a {kind.__name__} has named fields, got {values!r:.60}")
    if values.keys() != names:
        missing, foreign = sorted(names - values.keys()), sorted(values.keys() - names)
        raise DataError(
            f"{path}: {kind.__name__} with missing fields {missing}, unknown fields {foreign}"
        )
    if reasons := mistyped(values, hints):
        raise DataError(f"{path}: {kind.__name__} is malformed: {'; '.join(reasons)}")
    # JSON writers may leave out the point of a whole number.
    real = {name for name, hint in hints.items() if hint in (float, float | None)}
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
        paths = sorted(path for path in folder.rglob("*.json") if _is_record(path, folder))
        if not paths:
            raise DataError(f"{folder} holds no results; run `longspan arena` first")
        results += [load(path) for path in paths]
    return results


def _is_record(path: Path, folder: Path) -> bool:
    """Whether a file below a folder of results is not hidden, and not a run's working file."""
    return not path.name.startswith(".") and "work" not in path.relative_to(folder).parts[:-1]
