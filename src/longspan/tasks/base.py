"""Tasks: metadata, data, layout, metrics.

A task never yields test examples for training or selection, and evaluation covers every example.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from longspan.data import cache as cached
from longspan.data.cache import BuildOutput, BuildSize, BuiltDataset, DatasetSpec
from longspan.data.store import Examples
from longspan.errors import DataError, OptionError, RunError, check_name
from longspan.metrics import Metric, get_metric
from longspan.shapes import Float, Int
from longspan.tasks._grouping import Grouping
from longspan.tasks.batching import Batch, collate, evaluation_rows, scored_targets, training_rows
from longspan.tasks.info import TaskInfo
from longspan.tasks.layout import Layout
from longspan.tasks.rules import Rule
from longspan.tasks.scoring import LOGIT_STATISTICS, cross_entropy

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
HELD_OUT: tuple[Split, ...] = ("validation", "test")  # that rules are scored on
# Called with (description, done, total) while data is built; total is 0 where unknown.
ProgressCallback = Callable[[str, int, int], None]


class Task(ABC):
    """A task with its options; `open` prepares the data, `batches` yields it.

    Examples are one or two token sequences and labels; id 0 is padding. A subclass defines how the
    splits are built (`build_splits`) and, unless they are generated, which source files they come
    from (`identify_source`).
    """

    info: ClassVar[TaskInfo]
    Options: ClassVar[type]  # settings class with a help text for each field

    def __init__(self, options: object | None = None):
        """Store the given options, or the defaults."""
        self.options: Any = self.Options() if options is None else options
        self._dataset: BuiltDataset | None = None
        self._groupings: dict[Split, list[Grouping]] = {}
        self._rule_scores: dict[Split, dict[str, float]] = {}

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
    def sizes(self) -> dict[Split, int | None]:
        """Examples by split under these options; None where the build alone tells.

        Sizes that no option sets are those of the published files; override where others follow.
        """
        chosen = {split: getattr(self.options, split, None) for split in SPLITS}
        known = self.info.sizes
        return {split: x if isinstance(x, int) else known[split] for split, x in chosen.items()}

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
    def is_regression(self) -> bool:
        """True if targets are numbers, of which the model predicts one for each example."""
        return False

    @property
    def chance(self) -> float | None:
        """Expected main metric of a uniform guess under these options."""
        return self.info.chance

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Predictions without a model under these options, to compare scores with."""
        return ()

    @property
    def input_features(self) -> int | None:
        """Numbers at each position of continuous inputs; None for token ids."""
        return None

    @property
    def validation_is_test(self) -> bool:
        """True if the validation split is the test split, as in some papers."""
        return False

    @abstractmethod
    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Build the splits; `scratch` is a folder for spools and shards.

        Raises:
            DataError: the source is missing, truncated or malformed.
        """

    def estimate_build(self) -> BuildSize | None:
        """Return the estimated size of a build; None: the source files bound it."""
        return None

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the source files; empty for generated data.

        Raises:
            DataError: they are missing or malformed.
        """
        return {}

    @property
    def source(self) -> str:
        """Origin of the examples, for readers; requires an open task."""
        return self.dataset.manifest.source

    @property
    def checksum(self) -> str:
        """sha256 over the built splits; requires an open task."""
        return self.dataset.manifest.checksum

    @property
    def facts(self) -> dict[str, Any]:
        """Counts and checksums recorded when the data set was built; requires an open task."""
        return self.dataset.manifest.facts

    @property
    def dataset(self) -> BuiltDataset:
        """Built data set on disk; requires an open task."""
        if self._dataset is None:
            raise RunError(f"task {self.info.name!r} is not open; call open(cache) first")
        return self._dataset

    def describe_missing_data(self, data: Path | None, cache: Path | None = None) -> str | None:
        """Return one line that names the missing source and the remedy.

        None if the data is available, from its source or already built in `cache`.
        """
        try:
            self.identify_source(data)
        except DataError as error:
            built = cache and data is None and self._find_built(cache)
            return None if built else str(error)
        return None

    def open(
        self, cache: Path, data: Path | None = None, progress: ProgressCallback | None = None
    ) -> None:
        """Build the splits into `cache`, or verify and map those already built.

        A source named by `data` must be readable. Without it, a data set built earlier is opened
        even if its source is gone.

        Raises:
            DataError: the source is missing, truncated or malformed.
            RunError: the cache cannot be written.
        """
        self._groupings, self._rule_scores = {}, {}
        try:
            identity = self.identify_source(data)
        except DataError:
            self._dataset = None if data is not None else self._find_built(cache)
            if self._dataset is None:
                raise
            return
        self._dataset = cached.open_dataset(
            cache,
            self._dataset_spec(identity),
            lambda scratch: self.build_splits(data, scratch, progress or _ignore),
            self.estimate_build,
        )

    def open_built(self, cache: Path) -> bool:
        """Open the data set built earlier, from any source; return whether there is one."""
        self._dataset, self._groupings, self._rule_scores = self._find_built(cache), {}, {}
        return self._dataset is not None

    def built_checksum(self, cache: Path, data: Path | None = None) -> str | None:
        """Return the checksum of the data set that `open` would map, read from its manifest.

        None if it is not built, or its source is unknown.
        """
        try:
            manifest = cached.find_manifest(cache, self._dataset_spec(self.identify_source(data)))
        except DataError:
            return None
        return manifest.checksum if manifest else None

    def size(self, split: Split) -> int:
        """Return the number of examples of a split."""
        return len(self._examples(split))

    def labels(
        self, split: Split, rows: np.ndarray | None = None
    ) -> Int[Tensor, " N"] | Float[Tensor, " N"]:
        """Return all scored targets of some rows of a split, in their order; None: of all rows."""
        return torch.from_numpy(scored_targets(self._examples(split), rows))

    def to_inputs(self, padded: np.ndarray) -> Int[Tensor, "B T"] | Float[Tensor, "B T F"]:
        """Return the model's inputs for padded tokens (B, T): their ids."""
        return torch.from_numpy(padded.astype(np.int64))

    def batches(
        self,
        split: Split,
        *,
        batch_size: int,
        seed: int = 0,
        start: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[Batch]:
        """Yield batches, beginning with number `start`.

        `train` is endless: each epoch is a permutation drawn from (seed, epoch), the last partial
        batch of an epoch is dropped, and batch n depends on (seed, n) alone, so a resumed run
        sees the batches of an uninterrupted one. Other splits are yielded once, every example
        exactly once, sorted by length to minimize padding. So are the given rows of any split.

        Args:
            split: split.
            batch_size: examples per batch; the last one of an evaluation may have fewer.
            seed: seed of the permutations of `train`.
            start: number of the first batch.
            rows: rows to yield once; None: see above.

        Raises:
            OptionError: batch_size, seed or start is out of range.
        """
        examples = self._examples(split)
        if batch_size < 1 or seed < 0 or start < 0:
            raise OptionError(
                f"expected batch_size >= 1, seed >= 0 and start >= 0; got batch_size={batch_size}, "
                f"seed={seed}, start={start}"
            )
        if split != "train" or rows is not None:
            return self._collate(examples, evaluation_rows(examples, batch_size, start, rows))
        if batch_size > len(examples):
            raise OptionError(
                f"batch_size={batch_size} is larger than the train split ({len(examples)} "
                f"examples); use {len(examples)} or less"
            )
        return self._collate(examples, training_rows(len(examples), batch_size, seed, start))

    def losses(
        self, logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"] | Float[Tensor, "*B"]
    ) -> Float[Tensor, "*B"]:
        """Return the training loss of each target: cross entropy in nats, 0 where `IGNORE`.

        Override for other losses, such as the squared error of a regression.
        """
        return cross_entropy(logits, targets)

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "*B C"],
        targets: Int[Tensor, "*B"] | Float[Tensor, "*B"],
    ) -> dict[str, Tensor]:
        """Return the per-example statistics (B, K) of some of the task's metrics, by name.

        Override for metrics that need more than logits and targets, such as reference texts.

        Args:
            metrics: metrics to compute.
            split: split of the examples.
            rows: rows of the examples, to look up references that are no targets.
            logits: predictions.
            targets: classes, `IGNORE` where unscored; or numbers.
        """
        return {metric.name: LOGIT_STATISTICS[metric.name](logits, targets) for metric in metrics}

    def majority_baseline(self, split: Split, rows: np.ndarray | None = None) -> float | None:
        """Return the main metric of always predicting the most frequent class.

        None where the main metric is not accuracy.

        Args:
            split: split.
            rows: scored rows; None: all.
        """
        if self.info.metrics[0] != "accuracy":
            return None
        labels = self.labels(split, rows)
        return int(labels.bincount().max()) / len(labels)

    def rule_scores(self, split: Split) -> dict[str, float]:
        """Return the accuracy of each rule on a split, computed once for an open data set.

        Rules are fitted on the training split. Empty where the main metric is not accuracy.

        Raises:
            DataError: an example has changed on disk since it was written.
        """
        if self.info.metrics[0] != "accuracy":
            return {}
        if split not in self._rule_scores:
            train, examples = self._examples("train"), self._examples(split)
            scores = {rule.name: rule.correct(train, examples).mean() for rule in self.rules}
            for part in (train, examples) if scores else ():
                part.check(np.arange(len(part)))
            self._rule_scores[split] = {name: float(score) for name, score in scores.items()}
        return self._rule_scores[split]

    def groupings(self, split: Split) -> list[Grouping]:
        """Return groupings of the examples, computed once for each split of an open data set."""
        examples = self._examples(split)
        if split not in self._groupings:
            self._groupings[split] = self.compute_groupings(examples)
        return self._groupings[split]

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Return groupings of the examples of a split; none by default."""
        return []

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example as text; by default its id."""
        return [str(token) for token in ids.tolist()]

    def class_name(self, label: int) -> str:
        """Return the name of a class; by default its number."""
        return str(label)

    @abstractmethod
    def show(self, split: Split, row: int) -> str:
        """Return an example as text."""

    def svg(self, split: Split, row: int) -> str | None:
        """Return an example as an SVG picture; None where text suffices."""
        return None

    def _collate(self, examples: Examples, batches: Iterator[np.ndarray]) -> Iterator[Batch]:
        return (collate(examples, rows, self.to_inputs, self.length) for rows in batches)

    def _dataset_spec(self, identity: dict[str, Any]) -> DatasetSpec:
        return DatasetSpec(
            task=self.info.name,
            version=self.info.version,
            options=self.data_options(),
            origin=identity,
        )

    def _find_built(self, cache: Path) -> BuiltDataset | None:
        return cached.find_built(cache, self.info.name, self.info.version, self.data_options())

    def _examples(self, split: str) -> Examples:
        return self.dataset.splits[check_name(split, SPLITS, "split")]

    def _example(self, split: Split, row: int) -> tuple[np.ndarray, int]:
        """Return the tokens and the label of one example."""
        examples = self._examples(split)
        if not 0 <= row < len(examples):
            raise OptionError(f"row {row} of {split!r}: expected 0 to {len(examples) - 1}")
        return examples.tokens[row], int(examples.labels[row])


def _ignore(*progress: object) -> None:
    """Do nothing with the progress of a build."""
