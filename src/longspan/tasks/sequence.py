"""Tasks over token sequences: opening a built data set, and batches from it.

A subclass defines how the splits are built (`build_splits`) and, unless they are generated, which
source files they come from (`identify_source`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.data import cache as cached
from longspan.data.cache import BuildOutput, BuiltDataset, DatasetSpec
from longspan.data.store import Examples, Ragged
from longspan.errors import DataError, OptionError, RunError, check_name
from longspan.shapes import Float, Int
from longspan.tasks.base import SPLITS, Batch, Grouping, ProgressCallback, Split, Task
from longspan.tasks.scoring import IGNORE

# oneDNN keeps up to 1,024 kernels, one for each shape: gigabytes if every batch has a width of its
# own (docs/decisions.md).
PAD_TO_MULTIPLE_OF = 64


class SequenceTask(Task):
    """A task whose examples are one or two token sequences and labels; id 0 is padding."""

    def __init__(self, options: object | None = None):
        """Store the given options, or the defaults."""
        super().__init__(options)
        self._dataset: BuiltDataset | None = None
        # Groupings of a split, for the data set they were computed from.
        self._groupings: tuple[BuiltDataset | None, dict[Split, list[Grouping]]] = (None, {})

    @abstractmethod
    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback | None
    ) -> BuildOutput:
        """Build the splits; `scratch` is a folder for `Spool` and `BuildShards`.

        Raises:
            DataError: the source is absent, truncated or foreign.
        """

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the source files; empty for generated data.

        Raises:
            DataError: they are absent or malformed.
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
            DataError: the source is absent, truncated or foreign.
            RunError: the cache cannot be written.
        """
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
            lambda scratch: self.build_splits(data, scratch, progress),
        )

    def open_built(self, cache: Path) -> bool:
        """Open the data set built earlier with these options, from any source; build nothing.

        Returns:
            Whether there is one.
        """
        self._dataset = self._find_built(cache)
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

    def labels(self, split: Split) -> Int[Tensor, " N"]:
        """Return all scored targets of a split, in row order."""
        examples = self._examples(split)
        if examples.targets is None:
            return torch.from_numpy(examples.labels.astype(np.int64))
        # Stored targets are a class plus 1, or 0 where unscored.
        scored = examples.targets.values[examples.targets.values > 0]
        return torch.from_numpy(scored.astype(np.int64) - 1)

    def to_inputs(self, padded: np.ndarray) -> Int[Tensor, "B T"] | Float[Tensor, "B T F"]:
        """Return the model's inputs for padded tokens (B, T): their ids."""
        return torch.from_numpy(padded.astype(np.int64))

    def groupings(self, split: Split) -> list[Grouping]:
        """Return groupings of the examples, computed once for each split of an open data set."""
        if self._groupings[0] is not self.dataset:
            self._groupings = (self.dataset, {})
        found = self._groupings[1]
        if split not in found:
            found[split] = self.compute_groupings(self._examples(split))
        return found[split]

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Return groupings of the examples of a split; none by default."""
        return []

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example as text; by default its id."""
        return [str(token) for token in ids.tolist()]

    def batches(
        self, split: Split, *, batch_size: int, seed: int = 0, start: int = 0
    ) -> Iterator[Batch]:
        """Yield batches, beginning with number `start`; see `Task.batches`.

        Raises:
            OptionError: batch_size, seed or start is out of range.
        """
        examples = self._examples(split)
        if batch_size < 1 or seed < 0 or start < 0:
            raise OptionError(
                f"expected batch_size >= 1, seed >= 0 and start >= 0; got batch_size={batch_size}, "
                f"seed={seed}, start={start}"
            )
        if split != "train":
            return self._collate(examples, _evaluation_rows(examples, batch_size, start))
        if batch_size > len(examples):
            raise OptionError(
                f"batch_size={batch_size} is larger than the train split ({len(examples)} "
                f"examples); use {len(examples)} or less"
            )
        return self._collate(examples, _training_rows(len(examples), batch_size, seed, start))

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


def _training_rows(count: int, batch_size: int, seed: int, start: int) -> Iterator[np.ndarray]:
    """Yield the rows of endless epochs; batch n depends on (seed, n) alone."""
    per_epoch = count // batch_size
    epoch, first = divmod(start, per_epoch)
    while True:
        stream = np.random.SeedSequence([seed, epoch])
        order = np.random.Generator(np.random.PCG64(stream)).permutation(count)
        for number in range(first, per_epoch):
            yield order[number * batch_size : (number + 1) * batch_size]
        epoch, first = epoch + 1, 0


def _evaluation_rows(examples: Examples, batch_size: int, start: int) -> Iterator[np.ndarray]:
    """Yield every row once, sorted by length."""
    order = np.argsort(examples.tokens.lengths, kind="stable")
    for first in range(start * batch_size, len(examples), batch_size):
        yield order[first : first + batch_size]


def collate(
    examples: Examples,
    rows: np.ndarray,
    to_inputs: Callable[[np.ndarray], Tensor],
    max_length: int,
) -> Batch:
    """Return a batch as wide as its longest example, rounded up to `PAD_TO_MULTIPLE_OF`.

    Args:
        examples: examples of a split.
        rows: rows of the batch.
        to_inputs: maps padded ids to the model's inputs.
        max_length: maximum number of tokens of an example, and of a batch's width.

    Raises:
        DataError: a row has changed on disk since it was written.
    """
    examples.check(rows)
    tokens, key_mask = _pad(examples.tokens, rows, max_length)
    second = None if examples.second is None else _pad(examples.second, rows, max_length)
    if examples.targets is None:
        targets = examples.labels[rows].astype(np.int64)
    else:
        targets = _pad(examples.targets, rows, max_length)[0].astype(np.int64) - 1
        targets[targets < 0] = IGNORE
    return Batch(
        inputs=to_inputs(tokens),
        key_mask=torch.from_numpy(key_mask),
        targets=torch.from_numpy(targets),
        rows=torch.from_numpy(rows),
        inputs_b=None if second is None else to_inputs(second[0]),
        key_mask_b=None if second is None else torch.from_numpy(second[1]),
    )


def _pad(sequences: Ragged, rows: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences of some rows, padded with zeros, and the mask of their real tokens."""
    starts, ends = sequences.offsets[rows], sequences.offsets[rows + 1]
    lengths = ends - starts
    longest = int(lengths.max())
    rounded = -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    width = max(longest, min(rounded, max_length))
    if width == lengths.min():
        windows = np.lib.stride_tricks.sliding_window_view(sequences.values, width)
        return windows[starts], np.ones((len(rows), width), bool)
    padded = np.zeros((len(rows), width), sequences.values.dtype)
    for line, start, end in zip(padded, starts.tolist(), ends.tolist(), strict=True):
        line[: end - start] = sequences.values[start:end]
    return padded, np.arange(width) < lengths[:, None]
