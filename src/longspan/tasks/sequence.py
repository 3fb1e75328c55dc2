"""What tasks over token sequences share: opening a built set, and batches from it.

A subclass says which sequences there are (`make`) and, if they are not generated, what its source
files are (`origin`).
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

# Widths of batches are multiples of it: the libraries below prepare and keep code for each width
# that they meet, gigabytes of it where every batch has its own (docs/decisions.md).
GRAIN = 64


class SequenceTask(Task):
    """A task whose examples are one or two token sequences and a label; id 0 is padding."""

    def __init__(self, options: object | None = None):
        """Use the given options, or the defaults."""
        super().__init__(options)
        self._set: BuiltDataset | None = None
        self._grouped: tuple[BuiltDataset | None, dict[Split, list[Grouping]]] = (None, {})

    @abstractmethod
    def make(
        self, data: Path | None, scratch: Path, report: ProgressCallback | None
    ) -> BuildOutput:
        """Build the splits; `scratch` is a folder for `Spool` and `BuildShards`.

        Raises:
            DataError: the source is absent, truncated or foreign.
        """

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Identity of the source files; empty for generated data.

        Raises:
            DataError: they are absent or malformed.
        """
        return {}

    @property
    def source(self) -> str:
        """Where the examples came from, in words; known once the task is open."""
        return self.built.manifest.source

    @property
    def checksum(self) -> str:
        """sha256 over the built splits; known once the task is open."""
        return self.built.manifest.checksum

    @property
    def facts(self) -> dict[str, Any]:
        """Counts and checksums noted when the set was built; known once the task is open."""
        return self.built.manifest.facts

    def available(self, data: Path | None, cache: Path | None = None) -> str | None:
        """None when the data can be had; else one line: what is missing and the remedy."""
        try:
            self.origin(data)
        except DataError as error:
            built = cache and data is None and self._built_before(cache)
            return None if built else str(error)
        return None

    def open(
        self, cache: Path, data: Path | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Build the splits into `cache`, or verify and map those already there.

        A source named by `data` is used or refused; without it, a set built earlier from a source
        that has since gone is used again.

        Raises:
            DataError: the source is absent, truncated or foreign.
            RunError: the cache cannot be written.
        """
        try:
            origin = self.origin(data)
        except DataError:
            self._set = None if data is not None else self._built_before(cache)
            if self._set is None:
                raise
            return
        spec = self._dataset_spec(origin)
        self._set = cached.open_dataset(
            cache, spec, lambda scratch: self.make(data, scratch, report)
        )

    def open_built(self, cache: Path) -> bool:
        """Open the set built earlier with these options, from whatever source; build nothing.

        Returns:
            Whether there is one.
        """
        self._set = self._built_before(cache)
        return self._set is not None

    def built_checksum(self, cache: Path, data: Path | None = None) -> str | None:
        """The checksum of the set that `open` would map, from its record alone, or None."""
        try:
            built = cached.find_manifest(cache, self._dataset_spec(self.origin(data)))
        except DataError:
            return None
        return built.checksum if built else None

    def size(self, split: Split) -> int:
        """How many examples the split has."""
        return len(self._examples(split))

    def labels(self, split: Split) -> Int[Tensor, " N"]:
        """The targets of a split, in row order."""
        examples = self._examples(split)
        if examples.targets is None:
            return torch.from_numpy(examples.labels.astype(np.int64))
        asked = examples.targets.values[examples.targets.values > 0]
        return torch.from_numpy(asked.astype(np.int64) - 1)

    def inputs(self, padded: np.ndarray) -> Int[Tensor, "B T"] | Float[Tensor, "B T F"]:
        """What the model is given for padded tokens (B, T): their ids."""
        return torch.from_numpy(padded.astype(np.int64))

    def groupings(self, split: Split) -> list[Grouping]:
        """Properties of the examples, found once for each split of an open set."""
        if self._grouped[0] is not self.built:
            self._grouped = (self.built, {})
        found = self._grouped[1]
        if split not in found:
            found[split] = self.grouped(self._examples(split))
        return found[split]

    def grouped(self, examples: Examples) -> list[Grouping]:
        """What `groupings` returns, found from the examples of a split; here nothing."""
        return []

    def words(self, tokens: np.ndarray) -> list[str]:
        """Each token of an example as people would write it; here its id."""
        return [str(token) for token in tokens.tolist()]

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
            return self._collated(examples, _evaluation_rows(examples, batch_size, start))
        if batch_size > len(examples):
            raise OptionError(
                f"batch_size={batch_size} is larger than the train split ({len(examples)} "
                f"examples); use {len(examples)} or less"
            )
        return self._collated(examples, _training_rows(len(examples), batch_size, seed, start))

    def _dataset_spec(self, origin: dict[str, Any]) -> DatasetSpec:
        return DatasetSpec(
            task=self.info.name,
            version=self.info.version,
            options=self.data_options(),
            origin=origin,
        )

    def _collated(self, examples: Examples, rows: Iterator[np.ndarray]) -> Iterator[Batch]:
        return (collate(examples, chosen, self.inputs, self.length) for chosen in rows)

    @property
    def built(self) -> BuiltDataset:
        """The set on the disk; known once the task is open."""
        if self._set is None:
            raise RunError(f"task {self.info.name!r} is not open; call open(cache) first")
        return self._set

    def _examples(self, split: str) -> Examples:
        return self.built.splits[check_name(split, SPLITS, "split")]

    def _example(self, split: Split, row: int) -> tuple[np.ndarray, int]:
        """Tokens and label of one example, for `show`."""
        examples = self._examples(split)
        if not 0 <= row < len(examples):
            raise OptionError(f"row {row} of {split!r}: expected 0 to {len(examples) - 1}")
        return examples.tokens[row], int(examples.labels[row])

    def _built_before(self, cache: Path) -> BuiltDataset | None:
        return cached.find_built(cache, self.info.name, self.info.version, self.data_options())


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
    inputs: Callable[[np.ndarray], Tensor],
    most: int,
) -> Batch:
    """The examples of these rows, as wide as the longest, rounded up to a multiple of `GRAIN`.

    Args:
        examples: of a split.
        rows: which of them.
        inputs: makes what a model reads of padded ids.
        most: tokens that an example can have; rounding up never makes a batch wider.

    Raises:
        DataError: a row has changed on the disk since it was written.
    """
    examples.check(rows)
    tokens, key_mask = _pad(examples.tokens, rows, most)
    second = None if examples.second is None else _pad(examples.second, rows, most)
    if examples.targets is None:
        targets = examples.labels[rows].astype(np.int64)
    else:
        targets = _pad(examples.targets, rows, most)[0].astype(np.int64) - 1
        targets[targets < 0] = IGNORE
    return Batch(
        inputs=inputs(tokens),
        key_mask=torch.from_numpy(key_mask),
        targets=torch.from_numpy(targets),
        rows=torch.from_numpy(rows),
        inputs_b=None if second is None else inputs(second[0]),
        key_mask_b=None if second is None else torch.from_numpy(second[1]),
    )


def _pad(part: Ragged, rows: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of these rows, zero behind their ends, and where they are real."""
    starts, ends = part.offsets[rows], part.offsets[rows + 1]
    lengths = ends - starts
    longest = int(lengths.max())
    width = max(longest, min(-(-longest // GRAIN) * GRAIN, most))
    if width == lengths.min():
        windows = np.lib.stride_tricks.sliding_window_view(part.values, width)
        return windows[starts], np.ones((len(rows), width), bool)
    padded = np.zeros((len(rows), width), part.values.dtype)
    for line, start, end in zip(padded, starts.tolist(), ends.tolist(), strict=True):
        line[: end - start] = part.values[start:end]
    return padded, np.arange(width) < lengths[:, None]
