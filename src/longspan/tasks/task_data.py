"""Data of a task: its source, the built splits, and what is computed from them once."""

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan.config.base import decides_data
from longspan.data import cache as cached
from longspan.data.cache import BuildOutput, BuildSize, BuiltDataset, DatasetSpec, ProgressCallback
from longspan.data.given_sources import GivenSource, locate, unpacked
from longspan.data.own_splits import SPLITS, Split
from longspan.data.source_files import SourceFiles
from longspan.data.store import Examples
from longspan.errors import DataError, OptionError, RunError, check_name
from longspan.tasks.grouping import Grouping
from longspan.tasks.info import TaskInfo

HELD_OUT: tuple[Split, ...] = ("validation", "test")  # that rules are scored on


class TaskData(ABC):
    """Options and data of a task; `open` builds or maps the splits.

    A subclass defines how the splits are built (`build_splits`) and, unless they are generated,
    which source files they come from (`find_source`).
    """

    info: ClassVar[TaskInfo]
    Options: ClassVar[type]  # settings class with a help text for each field

    def __init__(self, options: object | None = None):
        """Store the given options, or the defaults."""
        self.options: Any = self.Options() if options is None else options
        self._dataset: BuiltDataset | None = None
        self._groupings: dict[Split, list[Grouping]] = {}
        self._rule_scores: dict[Split, dict[str, float]] = {}

    @property
    def data_name(self) -> str:
        """Name of the task whose data set is read."""
        return self.info.name

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; equal ones share a data set."""
        names = [field.name for field in dataclasses.fields(self.Options)]
        return {x: getattr(self.options, x) for x in names if decides_data(self.Options, x)}

    @abstractmethod
    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Build the splits; `scratch` is a folder for files and shards.

        Raises:
            DataError: the source is missing, truncated or malformed.
        """

    def estimate_build(self) -> BuildSize | None:
        """Return the estimated size of a build; None: the source files bound it."""
        return None

    def find_source(self, data: Path | None) -> SourceFiles | None:
        """Return the source files; None for generated data.

        Raises:
            DataError: they are missing or malformed.
        """
        return None

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the source files; empty for generated data.

        Raises:
            DataError: they are missing or malformed.
        """
        source = self.find_source(data)
        return {} if source is None else source.origin

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
    def build_notes(self) -> list[str]:
        """Remarks on the built data set, for those who import it; requires an open task."""
        return []

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
            locate(data, self.identify_source)
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
        try:
            source = locate(data, self.identify_source)
        except DataError:
            built = None if data is not None else self._find_built(cache)
            self._use_dataset(built)
            if built is None:
                raise
            return
        dataset = cached.open_dataset(
            cache,
            self._dataset_spec(source.identity),
            lambda scratch: self._build(source, scratch, progress or _ignore),
            self.estimate_build,
        )
        self._use_dataset(dataset)

    def open_built(self, cache: Path) -> bool:
        """Open the data set built earlier, from any source; return whether there is one."""
        self._use_dataset(self._find_built(cache))
        return self._dataset is not None

    def share_data(self, other: "TaskData") -> None:
        """Use the data set that another task has opened, if it has.

        Raises:
            OptionError: the options of the two tasks need different data.
        """
        if (self.data_name, self.data_options()) != (other.data_name, other.data_options()):
            raise OptionError(
                f"options of {self.data_name} differ that decide the examples themselves; change "
                "those that choose among them, such as the length of a stream"
            )
        self._use_dataset(other._dataset)

    def built_checksum(self, cache: Path, data: Path | None = None) -> str | None:
        """Return the checksum of the data set that `open` would map, read from its manifest.

        None if it is not built, or its source is unknown.
        """
        try:
            identity = locate(data, self.identify_source).identity
            manifest = cached.find_manifest(cache, self._dataset_spec(identity))
        except DataError:
            return None
        return manifest.checksum if manifest else None

    def size(self, split: Split) -> int:
        """Return the number of examples of a split; 0: there is no such split."""
        return len(self._examples(split)) if split in self.dataset.splits else 0

    def sequence_lengths(self, split: Split) -> dict[str, np.ndarray]:
        """Return the lengths of the sequences of each example, by name: tokens, and second ones.

        Override where examples are no rows of the data set.
        """
        lists = self._examples(split).lists
        return {name: lists[name].lengths for name in ("tokens", "second") if name in lists}

    @property
    def present_splits(self) -> tuple[Split, ...]:
        """Splits of the open data set: imported texts may have no test split, or none held out."""
        return tuple(split for split in SPLITS if split in self.dataset.splits)

    def groupings(self, split: Split) -> list[Grouping]:
        """Return groupings of the examples, computed once for each split of an open data set."""
        examples = self._examples(split)
        if split not in self._groupings:
            self._groupings[split] = self.compute_groupings(examples)
        return self._groupings[split]

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Return groupings of the examples of a split; none by default."""
        return []

    def _build(self, source: GivenSource, scratch: Path, progress: ProgressCallback) -> BuildOutput:
        """Build the splits; an archive is unpacked meanwhile, beside the data sets of the task."""
        location = scratch.parent.with_name("source")
        with unpacked(source, location, self.identify_source, progress) as data:
            built = self.build_splits(data, scratch, progress)
        return dataclasses.replace(
            built,
            source=built.source or self.info.source,
            license=built.license or self.info.license,
        )

    def _use_dataset(self, dataset: BuiltDataset | None) -> None:
        """Replace the open data set, and forget what was computed from the last one."""
        self._dataset, self._groupings, self._rule_scores = dataset, {}, {}

    def _dataset_spec(self, identity: dict[str, Any]) -> DatasetSpec:
        return DatasetSpec(
            task=self.data_name,
            version=self.info.version,
            options=self.data_options(),
            origin=identity,
        )

    def _find_built(self, cache: Path) -> BuiltDataset | None:
        return cached.find_built(cache, self.data_name, self.info.version, self.data_options())

    def _examples(self, split: str) -> Examples:
        """Return the examples of a split.

        Raises:
            UnknownNameError: there is no such split.
            OptionError: the data set was built without it.
        """
        if check_name(split, SPLITS, "split") not in (splits := self.dataset.splits):
            raise OptionError(
                f"{self.info.name} has the splits {', '.join(splits)}, got {split}; name one of "
                "them"
            )
        return splits[split]

    def _example(self, split: Split, row: int) -> tuple[np.ndarray, int]:
        """Return the tokens and the label of one example."""
        examples = self._examples(split)
        if not 0 <= row < len(examples):
            raise OptionError(f"row {row} of {split!r}: expected 0 to {len(examples) - 1}")
        return examples.tokens[row], int(examples.labels[row])


def _ignore(*progress: object) -> None:
    """Do nothing with the progress of a build."""
