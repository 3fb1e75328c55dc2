"""Batches: padded examples, and the rows of each batch."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from longspan.data.sampling import random_stream
from longspan.data.store import Examples, Ragged
from longspan.errors import OptionError
from longspan.shapes import Bool, Float, Int

# oneDNN keeps up to 1,024 kernels, one for each shape: gigabytes if every batch has a width of its
# own (docs/development/decisions.md).
PAD_TO_MULTIPLE_OF = 64
SAMPLE_SEED = 2021  # equal for all runs, so that all are scored on the same examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded examples.

    Attributes:
        inputs: arguments of the model, by name: token ids or numbers, masks, and what else its head
            reads; each has a row for each example. Masks are True at real tokens, and at tokens
            that attend to all others, and all others to them.
        targets: classes of each example (`IGNORE` where unscored), such as one, or one per token;
            or one number per example, float64.
        rows: row of each example in its split.
        continues: True at rows that continue the document of the same row in the batch before;
            None: examples are independent.
    """

    inputs: dict[str, Tensor]
    targets: Int[Tensor, "B ..."] | Float[Tensor, " B"]
    rows: Int[Tensor, " B"]
    continues: Bool[Tensor, " B"] | None = None

    @property
    def num_tokens(self) -> int:
        """Number of real tokens of all sequences."""
        masks = {name: find_mask(self.inputs, name) for name in text_names(self.inputs)}
        return sum(int(mask.sum()) for mask in masks.values())

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each of its tensors changed."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: change(x) for name, x in fields.items() if isinstance(x, Tensor)}
        inputs = {name: change(x) for name, x in self.inputs.items()}
        return dataclasses.replace(self, inputs=inputs, **tensors)


def text_names(inputs: Iterable[str]) -> list[str]:
    """Return the arguments of the texts of a batch: token ids, or numbers."""
    return [name for name in inputs if "input_ids" in name or name == "input_values"]


def count_tokens(shapes: Mapping[str, Sequence[int]]) -> int:
    """Return the tokens of all texts of an example, from the shapes of its inputs."""
    return sum(math.prod(shapes[name]) for name in text_names(shapes))


def mask_name(text: str, kind: str = "attention_mask") -> str:
    """Return the argument of the mask of a text."""
    return re.sub("input_(ids|values)", kind, text)


def find_mask(inputs: Mapping[str, Tensor], text: str) -> Bool[Tensor, "B ..."]:
    """Return the mask of the real tokens of a text; a model without one reads all of them."""
    if mask_name(text) in inputs:
        return inputs[mask_name(text)]
    return torch.ones_like(inputs[text], dtype=torch.bool)


def check_batches(count: int | None, batch_size: int, seed: int, start: int) -> None:
    """Check the arguments of `Task.batches`.

    Args:
        count: training examples, of which a batch cannot have more; None: an evaluation.
        batch_size: examples per batch.
        seed: seed of the permutations.
        start: number of the first batch.

    Raises:
        OptionError: one is out of range.
    """
    if batch_size < 1 or seed < 0 or start < 0:
        raise OptionError(
            f"expected batch_size >= 1, seed >= 0 and start >= 0; got batch_size={batch_size}, "
            f"seed={seed}, start={start}"
        )
    if count is not None and batch_size > count:
        raise OptionError(
            f"batch_size={batch_size} is larger than the train split ({count} "
            f"examples); use {count} or less"
        )


def training_rows(count: int, batch_size: int, seed: int, start: int) -> Iterator[np.ndarray]:
    """Yield the rows of endless epochs; batch n depends on (seed, n) alone."""
    per_epoch = count // batch_size
    epoch, first = divmod(start, per_epoch)
    while True:
        order = random_stream(seed, epoch).permutation(count)
        for number in range(first, per_epoch):
            yield order[number * batch_size : (number + 1) * batch_size]
        epoch, first = epoch + 1, 0


def sample_rows(size: int, count: int) -> np.ndarray:
    """Return `count` random rows of a split of `size` rows, or all, in ascending order.

    A larger sample contains the smaller ones.
    """
    return np.sort(random_stream(SAMPLE_SEED).permutation(size)[:count])


def evaluation_rows(
    examples: Examples, batch_size: int, start: int, rows: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield some rows once, sorted by length; None: every row."""
    rows = np.arange(len(examples)) if rows is None else rows
    order = rows[np.argsort(examples.tokens.lengths[rows], kind="stable")]
    for first in range(start * batch_size, len(order), batch_size):
        yield order[first : first + batch_size]


def scored_targets(examples: Examples, rows: np.ndarray | None) -> np.ndarray:
    """Return all scored targets of some rows, in their order; None: of all rows.

    Classes are int64, numbers float64: in float32, numbers that are large beside their deviation,
    such as times, would be equal.
    """
    targets = examples.targets
    if targets is None:
        labels = examples.labels if rows is None else examples.labels[rows]
        return labels.astype(np.float64 if labels.dtype.kind == "f" else np.int64)
    values = targets.values
    if rows is not None:
        values = np.concatenate([targets[row] for row in rows])
    # Stored targets are a class plus 1, or 0 where unscored.
    return values[values > 0].astype(np.int64) - 1


def text_inputs(
    x: Int[Tensor, "B ..."] | Float[Tensor, "B T F"], mask: np.ndarray, name: str = "input_ids"
) -> dict[str, Tensor]:
    """Return the arguments of a text: its token ids or numbers, and the mask of its real tokens."""
    inputs = {"input_values" if x.is_floating_point() else name: x}
    return {**inputs, mask_name(name): torch.from_numpy(mask)}


def pad_sequences(
    sequences: Ragged, rows: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences of some rows, padded with zeros, and the mask of their real tokens.

    They are as wide as the longest of them, rounded up to `PAD_TO_MULTIPLE_OF`, or `max_length`.
    """
    starts, ends = sequences.offsets[rows], sequences.offsets[rows + 1]
    lengths = ends - starts
    longest = int(lengths.max())
    width = _padded_width(longest, max_length)
    if width == lengths.min():
        windows = np.lib.stride_tricks.sliding_window_view(sequences.values, width)
        return windows[starts], np.ones((len(rows), width), bool)
    padded = np.zeros((len(rows), width), sequences.values.dtype)
    for line, start, end in zip(padded, starts.tolist(), ends.tolist(), strict=True):
        line[: end - start] = sequences.values[start:end]
    return padded, np.arange(width) < lengths[:, None]


def _padded_width(longest: int, max_length: int) -> int:
    multiple = -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    return max(longest, min(multiple, max_length))


def pad_windows(rows: Sequence[Sequence[np.ndarray]], max_length: int, value: int) -> np.ndarray:
    """Return the windows of some rows, filled with a value to one width and number, (B, W, T).

    They are as wide as the longest of them, rounded up to `PAD_TO_MULTIPLE_OF`, or `max_length`.
    """
    longest = max(len(window) for windows in rows for window in windows)
    width = _padded_width(longest, max_length)
    padded = np.full((len(rows), max(map(len, rows)), width), value, np.int64)
    for lines, windows in zip(padded, rows, strict=True):
        for line, window in zip(lines, windows, strict=False):
            line[: len(window)] = window
    return padded


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedDocuments:
    """Documents of a collection, for some queries of a split.

    Attributes:
        count: number of documents.
        depth: largest number of documents in the ranking of a query.
        batches: yields every document once, as the first sequences of batches of a given size;
            rows are the numbers of the documents.
        relevant: query and document of each pair that belongs together, (P, 2): the place of the
            query among those that are scored, and the number of the document. Every query has one.
        excluded: pairs that are not ranked, such as a query and the document that it is itself.
        scale: factor of the similarities in the loss.
    """

    count: int
    depth: int
    batches: Callable[[int], Iterator[Batch]]
    relevant: np.ndarray
    excluded: np.ndarray
    scale: float
