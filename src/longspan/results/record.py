"""What is written down of a run: a result, or that it failed and why."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from longspan.files import write_json

SCHEMA = 3
BASELINE = "full"  # what mechanisms are compared with
FAILED = ".failed.json"  # ending of the file of a failure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What a split was scored: over every one of its examples."""

    accuracy: float
    loss: float
    examples: int
    majority: float  # accuracy of always answering the split's most frequent class


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """What the examples with a property were scored: those of depth 3, say."""

    label: str
    accuracy: float
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """Something that whoever watches a run should have been told."""

    kind: Literal["chance", "diverging", "waiting"]
    step: int
    message: str


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
    full_parameters: int | None  # of the same model with `full`; None: not counted (schema 2)
    budget: dict[str, Any]  # what the protocol holds equal: "kind", "limit", and how it was met
    tuning: dict[str, Any] | None  # the grid that the recipe was chosen from, on validation alone
    flops: int  # one example of `length` tokens, forward, multiply and add counted apart
    attended_pairs: int | None  # query-key pairs per head (mean) and example; None: no such notion
    length: int  # most tokens of an example
    selection: str  # which checkpoint was tested: "best validation" or "last"
    selected_step: int | None  # of the checkpoint that was tested; None: not noted (schema 2)
    scores: dict[str, Score]  # by split: validation and test, of the selected checkpoint
    answers: str | None  # which test examples were answered rightly, as `answers.pack` has it
    slices: dict[str, list[Slice]]  # of the test examples, by property: length, depth, ...
    alarms: list[Alarm]
    steps: int
    curve: list[Point]
    seconds: float  # training, evaluation not counted
    waiting: float | None  # of the seconds, waiting for batches; None: nobody counted (schema 1)
    tokens_per_second: float  # real tokens, training
    peak_memory: int | None  # bytes needed by the run: above the process's own on CPU
    device: str
    processes: int  # that trained together
    parallelism: str  # how they shared the work: "none", "ddp", "fsdp", "context"
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
        return write_record(self, runs / self.protocol / self.task / self.filename)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that ended without a score, and why; it stands where the result would."""

    protocol: str
    overrides: dict[str, Any]
    task: str
    task_version: int
    task_options: dict[str, Any]
    mechanism: str
    options: dict[str, Any]
    model: dict[str, Any]
    training: dict[str, Any]
    budget: dict[str, Any]
    seed: int
    config_hash: str
    kind: Literal["memory", "diverged", "died"]  # died: its process ended without a word
    reason: str  # in words, with what to change
    step: int | None  # the last one that is known of
    device: str
    versions: dict[str, str]
    git_commit: str | None
    date: str  # ISO 8601, UTC
    schema: int = SCHEMA

    @property
    def filename(self) -> str:
        """Name of the failure's file inside `<protocol>/<task>/`."""
        return f"{self.mechanism}-{self.config_hash}-{self.seed}{FAILED}"

    def save(self, runs: Path) -> Path:
        """Write the record below the folder `runs`, atomically, and return its path."""
        return write_record(self, runs / self.protocol / self.task / self.filename)


def write_record(record: Result | Failure, path: Path) -> Path:
    """Write a record to a file, atomically, and return its path."""
    write_json(path, dataclasses.asdict(record))
    return path


def config_hash(config: dict[str, Any]) -> str:
    """Ten hex digits that name a configuration, the same in every process."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
