"""What a task is: a metadata record, its batches, and its metric.

A task never hands out test examples for training or selection, and every example of an
evaluation split is counted.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from longspan.data.cache import BuiltDataset
from longspan.errors import OptionError, check_name
from longspan.shapes import Bool, Float, Int

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
ProgressCallback = Callable[[str, int, int], None]  # (what, done, total): progress of a build
IGNORE = -100  # target of a token that is not scored; what torch's cross entropy leaves out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A score that somebody else reported, with the protocol it was obtained under."""

    mechanism: str
    accuracy: float  # a fraction, as everywhere
    protocol: str
    source: str


def published(protocol: str, source: str, percent: dict[str, float]) -> tuple[Published, ...]:
    """The records of one column of somebody's table, given in percent as printed there."""
    return tuple(
        Published(mechanism=name, accuracy=round(score / 100, 6), protocol=protocol, source=source)
        for name, score in percent.items()
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """The metadata record of a task."""

    name: str
    version: int  # raised whenever examples, splits or metric change
    title: str
    summary: str  # one sentence: what is asked of the model
    source: str  # where the data comes from
    checksum: str | None  # sha256 of the published source files, where there is one
    license: str
    sizes: dict[str, int]  # examples per split at the default options
    vocabulary: int  # token ids, padding (id 0) included
    classes: int
    metric: str
    higher_is_better: bool
    chance: float
    pair: bool  # two sequences per example (two-tower tasks)
    published: tuple[Published, ...]
    per_token: bool = False  # tokens are scored, not examples
    hub: str | None = None  # name of the set on the Hugging Face hub, for `data.hub.fetch_parquet`
    notes: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded examples; `key_mask` is True at real tokens. A pair has a second sequence.

    Inputs are token ids, or `features` numbers at each position. Targets are one class for each
    example, or one for each token (`IGNORE` where none is asked for).
    """

    inputs: Int[Tensor, "B T"] | Float[Tensor, "B T F"]
    key_mask: Bool[Tensor, "B T"]
    targets: Int[Tensor, " B"] | Int[Tensor, "B T"]
    rows: Int[Tensor, " B"]  # which examples of the split these are
    inputs_b: Int[Tensor, "B U"] | None = None
    key_mask_b: Bool[Tensor, "B U"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouping:
    """The examples of a split by a property, for scores by slice: length, depth, ..."""

    name: str
    labels: tuple[str, ...]  # of the groups, in their natural order
    group: np.ndarray  # (N,) whole numbers: the group of each row; -1: none


class Task(ABC):
    """A task with its options; `open` makes its data ready, then `batches` yields it."""

    info: ClassVar[TaskInfo]
    Options: ClassVar[type]  # frozen dataclass, a help string in each field's metadata

    def __init__(self, options: object | None = None):
        """Use the given options, or the defaults."""
        self.options = self.Options() if options is None else options

    def data_options(self) -> dict[str, Any]:
        """The options that decide what is built: those that agree in them share one set."""
        return {f.name: getattr(self.options, f.name) for f in dataclasses.fields(self.Options)}

    @property
    @abstractmethod
    def length(self) -> int:
        """The most tokens that an example can have."""

    @property
    def vocabulary(self) -> int:
        """Token ids that these options need."""
        return self.info.vocabulary

    @property
    def class_count(self) -> int:
        """Classes that a model tells apart with these options."""
        return self.info.classes

    @property
    def chance(self) -> float:
        """The score of a guess with these options."""
        return self.info.chance

    @property
    def features(self) -> int | None:
        """Numbers at each position of continuous inputs; None: inputs are token ids."""
        return None

    @property
    def validation_is_test(self) -> bool:
        """Whether the validation split is the test split, as some papers have it."""
        return False

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the examples came from, in words; known once the task is open."""

    @property
    @abstractmethod
    def checksum(self) -> str:
        """sha256 over the built splits; known once the task is open."""

    @abstractmethod
    def available(self, data: Path | None, cache: Path | None = None) -> str | None:
        """None when the data can be had, from its source or already built in `cache`.

        Otherwise one line: what is missing and the remedy.
        """

    @abstractmethod
    def open(
        self, cache: Path, data: Path | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Build the splits into `cache`, or verify and map those already there.

        Raises:
            DataError: the source is absent, truncated or foreign.
        """

    @abstractmethod
    def open_built(self, cache: Path) -> bool:
        """Open the set built earlier with these options, from whatever source; build nothing.

        Returns:
            Whether there is one.
        """

    @abstractmethod
    def built_checksum(self, cache: Path, data: Path | None = None) -> str | None:
        """The checksum of the set that `open` would map, from its record alone.

        None when the set is not there or its source cannot be told.
        """

    @property
    @abstractmethod
    def built(self) -> BuiltDataset:
        """The set on the disk; known once the task is open."""

    @abstractmethod
    def size(self, split: Split) -> int:
        """How many examples the split has."""

    @abstractmethod
    def labels(self, split: Split) -> Int[Tensor, " N"]:
        """All targets of a split, in row order; one for each example unless tokens are scored."""

    @abstractmethod
    def batches(
        self, split: Split, *, batch: int, seed: int = 0, start: int = 0
    ) -> Iterator[Batch]:
        """Yield batches from the `start`-th on.

        `train` never ends: each epoch is a permutation drawn from (seed, epoch), the last
        partial batch of an epoch is dropped, and batch number n depends on (seed, n) alone, so a
        resumed run sees what an uninterrupted one would. Other splits are yielded once, every
        example exactly once, in order of length (the cheapest padding).
        """

    def losses(
        self, logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
    ) -> Float[Tensor, "*B"]:
        """What training minimises, at each target: cross-entropy in nats, 0 where `IGNORE`."""
        return F.cross_entropy(
            logits.float().movedim(-1, 1), targets, reduction="none", ignore_index=IGNORE
        )

    def hits(self, logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]) -> Bool[Tensor, "*B"]:
        """What is scored, at each target: whether the most likely class is the right one."""
        return logits.argmax(-1) == targets

    def groupings(self, split: Split) -> list[Grouping]:
        """Properties of the examples by which a score is worth being told apart."""
        return []

    @abstractmethod
    def show(self, split: Split, row: int) -> str:
        """An example as text, for people."""

    def svg(self, split: Split, row: int) -> str | None:
        """An example as a picture, SVG; None where text says it all."""
        return None


TASKS: dict[str, type[Task]] = {}


def check_whole(options: object, least: dict[str, int]) -> None:
    """Check that options are whole numbers, each at least its `least`; None where that is allowed.

    Raises:
        OptionError: one is not; the message names it and its value.
    """
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        value = getattr(options, field.name)
        if field.name not in least or (value is None and field.default is None):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least[field.name]:
            raise OptionError(
                f"{field.name}={value!r}; expected a whole number, {least[field.name]} or more"
            )


def register(cls: type[Task]) -> type[Task]:
    """Class decorator: make a task known by the name in its metadata."""
    name = cls.info.name
    if name in TASKS:
        raise OptionError(f"task {name!r} is already {TASKS[name].__qualname__}")
    TASKS[name] = cls
    return cls


def build(name: str, options: dict[str, object] | None = None) -> Task:
    """Build a task by name; every option is checked, none is dropped.

    Raises:
        UnknownNameError: no such task or option (the message suggests near names).
    """
    cls = TASKS[check_name(name, TASKS, "task")]
    fields = [field.name for field in dataclasses.fields(cls.Options)]
    for option in options or {}:
        check_name(option, fields, f"option of task {name!r}")
    return cls(cls.Options(**(options or {})))
