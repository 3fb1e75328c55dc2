"""Batches: padded examples, and the rows of each batch."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from longspan.data.store import Examples, Ragged
from longspan.errors import OptionError
from longspan.shapes import Bool, Float, Int
from longspan.tasks.scoring import IGNORE

# oneDNN keeps up to 1,024 kernels, one for each shape: gigabytes if every batch has a width of its
# own (docs/decisions.md).
PAD_TO_MULTIPLE_OF = 64
SAMPLE_SEED = 2021  # equal for all runs, so that all are scored on the same examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded examples.

    Attributes:
        inputs: token ids, or F numbers at each position; of C candidates
            or windows in each example, or of one.
        key_mask: True at real tokens.
        targets: classes of each example (`IGNORE` where unscored), such as one, or one per token;
            or one number per example, float32.
        rows: row of each example in its split.
        inputs_b: second sequences: of pairs, documents of queries, or the decoder's inputs.
        key_mask_b: True at real tokens of the second sequences.
        global_mask: True at tokens that attend to all others, and all others to them; for
            mechanisms that support such tokens. None: there are none.
        global_mask_b: global tokens of the second sequences.
        candidate_positions: index of each candidate's first token, the same in every window; -1
            where an example has fewer candidates.
        token_features: F numbers of each token, such as its sentence; the layout names them.
        negatives: N documents of each query that do not answer it.
        negatives_mask: True at real tokens of the negatives.
        global_mask_negatives: global tokens of the negatives.
        document_numbers: number that identifies the document of each query.
        negative_numbers: likewise, of each negative.
        answer_numbers: numbers of the documents of the batch that are no negatives of each query:
            they answer it, or are the query itself; -1 for padding.
        continues: True at rows that continue the document of the same row in the batch before;
            None: examples are independent.
    """

    inputs: Int[Tensor, "B *C T"] | Float[Tensor, "B T F"]
    key_mask: Bool[Tensor, "B *C T"]
    targets: Int[Tensor, "B ..."] | Float[Tensor, " B"]
    rows: Int[Tensor, " B"]
    inputs_b: Int[Tensor, "B U"] | None = None
    key_mask_b: Bool[Tensor, "B U"] | None = None
    global_mask: Bool[Tensor, "B *C T"] | None = None
    global_mask_b: Bool[Tensor, "B U"] | None = None
    candidate_positions: Int[Tensor, "B C"] | None = None
    token_features: Int[Tensor, "B *C T F"] | None = None
    negatives: Int[Tensor, "B N V"] | None = None
    negatives_mask: Bool[Tensor, "B N V"] | None = None
    global_mask_negatives: Bool[Tensor, "B N V"] | None = None
    document_numbers: Int[Tensor, " B"] | None = None
    negative_numbers: Int[Tensor, "B N"] | None = None
    answer_numbers: Int[Tensor, "B A"] | None = None
    continues: Bool[Tensor, " B"] | None = None

    @property
    def num_tokens(self) -> int:
        """Number of real tokens of all sequences."""
        masks = (self.key_mask, self.key_mask_b, self.negatives_mask)
        return sum(int(mask.sum()) for mask in masks if mask is not None)


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
        stream = np.random.SeedSequence([seed, epoch])
        order = np.random.Generator(np.random.PCG64(stream)).permutation(count)
        for number in range(first, per_epoch):
            yield order[number * batch_size : (number + 1) * batch_size]
        epoch, first = epoch + 1, 0


def sample_rows(size: int, count: int) -> np.ndarray:
    """Return `count` random rows of a split of `size` rows, or all, in ascending order.

    A larger sample contains the smaller ones.
    """
    generator = np.random.Generator(np.random.PCG64(SAMPLE_SEED))
    return np.sort(generator.permutation(size)[:count])


def evaluation_rows(
    examples: Examples, batch_size: int, start: int, rows: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield some rows once, sorted by length; None: every row."""
    chosen = np.arange(len(examples)) if rows is None else rows
    order = chosen[np.argsort(examples.tokens.lengths[chosen], kind="stable")]
    for first in range(start * batch_size, len(order), batch_size):
        yield order[first : first + batch_size]


def scored_targets(examples: Examples, rows: np.ndarray | None) -> np.ndarray:
    """Return all scored targets of some rows, in their order; None: of all rows.

    Classes are int64, numbers float32.
    """
    targets = examples.targets
    if targets is None:
        labels = examples.labels if rows is None else examples.labels[rows]
        return labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)
    values = targets.values
    if rows is not None:
        values = np.concatenate([targets[row] for row in rows])
    # Stored targets are a class plus 1, or 0 where unscored.
    return values[values > 0].astype(np.int64) - 1


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
    tokens, key_mask = pad_sequences(examples.tokens, rows, max_length)
    second = None if examples.second is None else pad_sequences(examples.second, rows, max_length)
    if examples.targets is None:
        targets = scored_targets(examples, rows)
    else:
        targets = pad_sequences(examples.targets, rows, max_length)[0].astype(np.int64) - 1
        targets[targets < 0] = IGNORE
    return Batch(
        inputs=to_inputs(tokens),
        key_mask=torch.from_numpy(key_mask),
        targets=torch.from_numpy(targets),
        rows=torch.from_numpy(rows),
        inputs_b=None if second is None else to_inputs(second[0]),
        key_mask_b=None if second is None else torch.from_numpy(second[1]),
    )


def pad_sequences(
    sequences: Ragged, rows: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences of some rows, padded with zeros, and the mask of their real tokens.

    They are as wide as the longest of them, rounded up to `PAD_TO_MULTIPLE_OF`, or `max_length`.
    """
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
