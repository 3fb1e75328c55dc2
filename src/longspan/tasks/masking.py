"""Masked language modeling: which tokens are hidden, and what the model reads in their place.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3.1: of 15 % of the tokens 80 % are
replaced by the mask, 10 % by a random token, and 10 % are kept. Masks are drawn anew for every
batch, as in RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section 4.1). As in the
code of RoBERTa (facebookresearch/fairseq, fairseq/data/mask_tokens_dataset.py) the number of masked
tokens is the share of the example, rounded up or down at random. Differences: special tokens are
neither masked nor drawn, as in BERT, and an example has at least one masked token.
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterable
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.data.sampling import random_stream
from longspan.data.store import Ragged
from longspan.errors import OptionError
from longspan.shapes import Int
from longspan.tasks.base import Split, Task
from longspan.tasks.batching import PAD_TO_MULTIPLE_OF, Batch, text_inputs
from longspan.tasks.scoring import IGNORE

_STREAM = 15  # purpose of the random numbers, besides the seed and the number of the batch
Probability = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclasses.dataclass(frozen=True, eq=False)
class Masking:
    """Draw of masked tokens.

    Attributes:
        probability: share of the tokens of an example that are masked.
        replaced: share of those that the mask token replaces.
        random: share of those that a random token replaces.
        mask_id: id of the mask token.
        special: True for each id that is neither masked nor drawn.
    """

    probability: float
    replaced: float
    random: float
    mask_id: int
    special: np.ndarray

    def apply(
        self, ids: np.ndarray, real: np.ndarray, draws: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids with masked tokens, and the targets, both int64 (B, T).

        Args:
            ids: token ids, (B, T) int64.
            real: True where an example has a token.
            draws: source of all random numbers.
        """
        is_maskable = real & ~self.special[ids]
        is_masked = self._choose(is_maskable, draws)
        targets = np.where(is_masked, ids, IGNORE)
        # One number decides what stands at a masked position.
        place = draws.random(ids.shape, np.float32)
        random_ids = self._ordinary[draws.integers(0, len(self._ordinary), ids.shape)]
        is_replaced = is_masked & (place < self.replaced)
        is_random = is_masked & ~is_replaced & (place < self.replaced + self.random)
        return np.where(is_replaced, self.mask_id, np.where(is_random, random_ids, ids)), targets

    def apply_by_example(self, ids: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same as `apply`, with random numbers that follow from each example alone.

        Args:
            ids: token ids, (B, T) int64.
            real: True where an example has a token: before all padding.
        """
        inputs, targets = ids.copy(), np.full_like(ids, IGNORE)
        for row, count in enumerate(real.sum(1).tolist()):
            # without padding, whose width is that of the batch
            line = ids[row : row + 1, :count]
            draws = random_stream(_STREAM, zlib.crc32(np.ascontiguousarray(line, "<i8").data))
            row_inputs, row_targets = self.apply(line, np.ones_like(line, bool), draws)
            inputs[row, :count], targets[row, :count] = row_inputs[0], row_targets[0]
        return inputs, targets

    def _choose(self, is_maskable: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Return which tokens are masked: a share of the open ones of each example."""
        count = is_maskable.sum(1)
        num_masked = np.floor(self.probability * count + draws.random(len(is_maskable))).astype(
            np.int64
        )
        num_masked = np.minimum(np.maximum(num_masked, 1), count)
        keys = np.where(is_maskable, draws.random(is_maskable.shape), 2.0)
        # numbers are sorted faster than they are ranked
        last = np.sort(keys, axis=1)[np.arange(len(keys)), np.maximum(num_masked - 1, 0)]
        return is_maskable & (keys <= last[:, None])

    @functools.cached_property
    def _ordinary(self) -> np.ndarray:
        """Ids that may be drawn."""
        return np.flatnonzero(~self.special)


class MaskedTask(Task):
    """A task of predicting masked tokens, under the options of masks; any token may be masked."""

    def make_masking(self, mask_id: int, special: Iterable[int]) -> Masking:
        """Return the masks of the options.

        Args:
            mask_id: id of the mask token.
            special: ids that are neither masked nor drawn.
        """
        is_special = np.zeros(self.vocab_size, bool)
        is_special[list(special)] = True
        return Masking(
            probability=self.options.mask_probability,
            replaced=self.options.replaced,
            random=self.options.random,
            mask_id=mask_id,
            special=is_special,
        )

    def labels(self, split: Split, rows: np.ndarray | None = None) -> Int[Tensor, " N"]:
        """Return the tokens of some rows of a split, any of which may be masked; None: of all."""
        tokens = self._examples(split).tokens
        sequences = tokens if rows is None else [tokens[row] for row in rows]
        return torch.from_numpy(np.concatenate([*sequences]).astype(np.int64))

    def class_name(self, label: int) -> str:
        """Return the token of an id."""
        return self.ids_to_tokens(np.array([label]))[0]


def check_shares(replaced: float, random: float) -> None:
    """Check that the shares of replaced and of random tokens do not exceed 1.

    Raises:
        OptionError: they do.
    """
    if replaced + random > 1 + 1e-9:
        raise OptionError(f"replaced={replaced:g} and random={random:g} exceed 1; lower one")


def mask_rows(
    tokens: Ragged,
    rows: np.ndarray,
    masking: Masking,
    draw: tuple[int, int] | None,
    max_length: int,
    before: np.ndarray | None = None,
) -> Batch:
    """Return some sequences as a batch with masked tokens.

    Args:
        tokens: sequences.
        rows: rows of the batch.
        masking: draw of masked tokens.
        draw: seed and number of a training batch, from which alone its masks are drawn; None: an
            evaluation, whose masks follow from the tokens of each example.
        max_length: maximum width of the batch.
        before: special tokens before each sequence.
    """
    ids, real = _pad(tokens, rows, max_length, np.empty(0) if before is None else before)
    if draw is None:
        inputs, targets = masking.apply_by_example(ids, real)
    else:
        inputs, targets = masking.apply(ids, real, random_stream(_STREAM, *draw))
    return Batch(
        inputs=text_inputs(torch.from_numpy(inputs), real),
        targets=torch.from_numpy(targets),
        rows=torch.from_numpy(rows),
    )


def _pad(
    tokens: Ragged, rows: np.ndarray, max_length: int, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of some sequences, (B, T) int64, and the mask of their real tokens."""
    lengths = tokens.offsets[rows + 1] - tokens.offsets[rows] + len(before)
    width = -(-int(lengths.max()) // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    ids = np.zeros((len(rows), min(width, max_length)), np.int64)
    ids[:, : len(before)] = before
    for line, row, length in zip(ids, rows, lengths.tolist(), strict=True):
        line[len(before) : length] = tokens[row]
    return ids, np.arange(ids.shape[1]) < lengths[:, None]
