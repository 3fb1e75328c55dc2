"""Tasks: metadata, data, layout, metrics.

A task never yields test examples for training or selection, and evaluation covers every example.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from longspan.config import TaskConfig
from longspan.data.cache import BuiltDataset
from longspan.errors import OptionError, check_name
from longspan.metrics import Metric, get_metric
from longspan.shapes import Bool, Float, Int
from longspan.tasks.layout import Layout
from longspan.tasks.scoring import LOGIT_STATISTICS, cross_entropy

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
# Called with (description, done, total) while data is built; total is 0 where unknown.
ProgressCallback = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """Score reported elsewhere, with the protocol that produced it."""

    mechanism: str
    value: float  # as stored in records: accuracy is a fraction
    protocol: str
    source: str
    metric: str = "accuracy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """Metadata of a task.

    Attributes:
        name: key in the registry.
        version: raised whenever examples, splits or metrics change.
        title: name for readers.
        summary: one sentence that says what the model predicts.
        source: origin of the data.
        checksum: sha256 of the published source files, if there are any.
        license: license of the data.
        sizes: examples by split, at the default options.
        vocab_size: number of token ids, padding (id 0) included.
        num_classes: number of classes.
        layout: form of the examples, at the default options.
        metrics: names of the metrics, the main one first.
        chance: expected main metric of a uniform guess; None where undefined.
        published: scores reported elsewhere.
        hub: name of the data set on the Hugging Face hub.
        notes: caveats for readers of scores.
    """

    name: str
    version: int
    title: str
    summary: str
    source: str
    checksum: str | None
    license: str
    sizes: dict[str, int]
    vocab_size: int
    num_classes: int
    layout: Layout
    metrics: tuple[str, ...]
    chance: float | None
    published: tuple[Published, ...]
    hub: str | None = None
    notes: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded examples.

    Attributes:
        inputs: token ids, or F numbers at each position.
        key_mask: True at real tokens.
        targets: one class per example, or one per token (`IGNORE` where unscored).
        rows: row of each example in its split.
        inputs_b: second sequences of pairs.
        key_mask_b: True at real tokens of the second sequences.
    """

    inputs: Int[Tensor, "B T"] | Float[Tensor, "B T F"]
    key_mask: Bool[Tensor, "B T"]
    targets: Int[Tensor, " B"] | Int[Tensor, "B T"]
    rows: Int[Tensor, " B"]
    inputs_b: Int[Tensor, "B U"] | None = None
    key_mask_b: Bool[Tensor, "B U"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouping:
    """Examples of a split grouped by a property, for scores by slice.

    Attributes:
        name: property, such as length or depth.
        labels: labels of the groups, in their natural order.
        group: group of each row, (N,); -1 for none.
    """

    name: str
    labels: tuple[str, ...]
    group: np.ndarray


class Task(ABC):
    """A task with its options; `open` prepares the data, `batches` yields it."""

    info: ClassVar[TaskInfo]
    Options: ClassVar[type]  # settings class with a help text for each field

    def __init__(self, options: object | None = None):
        """Store the given options, or the defaults."""
        self.options: Any = self.Options() if options is None else options

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; equal ones share a data set."""
        return {f.name: getattr(self.options, f.name) for f in dataclasses.fields(self.Options)}

    @property
    @abstractmethod
    def length(self) -> int:
        """Maximum number of tokens of an example."""

    @property
    def layout(self) -> Layout:
        """Form of the examples under these options."""
        return self.info.layout

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task, the main one first."""
        return tuple(get_metric(name) for name in self.info.metrics)

    @property
    def training_metrics(self) -> tuple[Metric, ...]:
        """Metrics computed from every training batch; override where the main one is slow."""
        return self.metrics[:1]

    @property
    def vocab_size(self) -> int:
        """Number of token ids under these options."""
        return self.info.vocab_size

    @property
    def num_classes(self) -> int:
        """Number of classes under these options."""
        return self.info.num_classes

    @property
    def chance(self) -> float | None:
        """Expected main metric of a uniform guess under these options."""
        return self.info.chance

    @property
    def input_features(self) -> int | None:
        """Numbers at each position of continuous inputs; None for token ids."""
        return None

    @property
    def validation_is_test(self) -> bool:
        """True if the validation split is the test split, as in some papers."""
        return False

    @property
    @abstractmethod
    def source(self) -> str:
        """Origin of the examples, for readers; requires an open task."""

    @property
    @abstractmethod
    def checksum(self) -> str:
        """sha256 over the built splits; requires an open task."""

    @abstractmethod
    def describe_missing_data(self, data: Path | None, cache: Path | None = None) -> str | None:
        """Return one line that names the missing source and the remedy.

        None if the data is available, from its source or already built in `cache`.
        """

    @abstractmethod
    def open(
        self, cache: Path, data: Path | None = None, progress: ProgressCallback | None = None
    ) -> None:
        """Build the splits into `cache`, or verify and map those already built.

        Raises:
            DataError: the source is absent, truncated or foreign.
        """

    @abstractmethod
    def open_built(self, cache: Path) -> bool:
        """Open the data set built earlier with these options, from any source; build nothing.

        Returns:
            Whether there is one.
        """

    @abstractmethod
    def built_checksum(self, cache: Path, data: Path | None = None) -> str | None:
        """Return the checksum of the data set that `open` would map, read from its manifest.

        None if it is not built, or its source is unknown.
        """

    @property
    @abstractmethod
    def dataset(self) -> BuiltDataset:
        """Built data set on disk; requires an open task."""

    @abstractmethod
    def size(self, split: Split) -> int:
        """Return the number of examples of a split."""

    @abstractmethod
    def labels(self, split: Split) -> Int[Tensor, " N"]:
        """Return all scored targets of a split, in row order."""

    @abstractmethod
    def batches(
        self, split: Split, *, batch_size: int, seed: int = 0, start: int = 0
    ) -> Iterator[Batch]:
        """Yield batches, beginning with number `start`.

        `train` is endless: each epoch is a permutation drawn from (seed, epoch), the last partial
        batch of an epoch is dropped, and batch n depends on (seed, n) alone, so a resumed run
        sees the batches of an uninterrupted one. Other splits are yielded once, every example
        exactly once, sorted by length to minimize padding.
        """

    def losses(
        self, logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
    ) -> Float[Tensor, "*B"]:
        """Return the training loss of each target: cross entropy in nats, 0 where `IGNORE`."""
        return cross_entropy(logits, targets)

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "*B C"],
        targets: Int[Tensor, "*B"],
    ) -> dict[str, Tensor]:
        """Return the per-example statistics (B, K) of some of the task's metrics, by name.

        Override for metrics that need more than logits and targets, such as reference texts.

        Args:
            metrics: metrics to compute.
            split: split of the examples.
            rows: rows of the examples, to look up references that are no targets.
            logits: predictions.
            targets: classes, `IGNORE` where unscored.
        """
        return {metric.name: LOGIT_STATISTICS[metric.name](logits, targets) for metric in metrics}

    def majority_baseline(self, split: Split) -> float | None:
        """Return the main metric of always predicting the most frequent class.

        None where the main metric is not accuracy.
        """
        if self.info.metrics[0] != "accuracy":
            return None
        labels = self.labels(split)
        return int(labels.bincount().max()) / len(labels)

    def groupings(self, split: Split) -> list[Grouping]:
        """Return groupings of the examples, for scores by slice."""
        return []

    @abstractmethod
    def show(self, split: Split, row: int) -> str:
        """Return an example as text."""

    def svg(self, split: Split, row: int) -> str | None:
        """Return an example as an SVG picture; None where text suffices."""
        return None


TASKS: dict[str, type[Task]] = {}


def register(cls: type[Task]) -> type[Task]:
    """Register a task class under the name in its metadata.

    Raises:
        OptionError: the name is taken, an option has the name of a field of `TaskConfig`, or the
            per-example statistics of a metric are undefined.
        UnknownNameError: a metric is not registered.
    """
    name = cls.info.name
    if name in TASKS:
        raise OptionError(f"task {name!r} is already registered by {TASKS[name].__qualname__}")
    reserved = {field.name for field in dataclasses.fields(TaskConfig)}
    if taken := reserved & {field.name for field in dataclasses.fields(cls.Options)}:
        raise OptionError(f"task {name!r} may not name an option {', '.join(sorted(taken))}")
    _check_metrics(cls)
    TASKS[name] = cls
    return cls


def _check_metrics(cls: type[Task]) -> None:
    names = [get_metric(name).name for name in cls.info.metrics]
    undefined = [name for name in names if name not in LOGIT_STATISTICS]
    if undefined and cls.example_statistics is Task.example_statistics:
        raise OptionError(
            f"task {cls.info.name!r} has no per-example statistics of {', '.join(undefined)}; "
            "override example_statistics"
        )


def build(name: str, options: dict[str, Any] | None = None) -> Task:
    """Build a task by name.

    Raises:
        UnknownNameError: there is no such task or option; the message suggests near names.
        OptionError: an option has an invalid value.
    """
    cls = TASKS[check_name(name, TASKS, "task")]
    fields = [field.name for field in dataclasses.fields(cls.Options)]
    for option in options or {}:
        check_name(option, fields, f"option of task {name!r}")
    return cls(cls.Options(**(options or {})))


def configure(name: str, options: dict[str, Any] | None = None) -> TaskConfig:
    """Return the configuration of a task, its default options included.

    Raises:
        UnknownNameError: there is no such task or option; the message suggests near names.
        OptionError: an option has an invalid value.
    """
    task = build(name, options)
    return TaskConfig(
        name=name, version=task.info.version, options=dataclasses.asdict(task.options)
    )
