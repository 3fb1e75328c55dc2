"""Splits of texts of one's own, by class and a hash of the text: equal texts are in one split."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from longspan.errors import DataError
from longspan.wording import counted

TRAIN, VALIDATION, TEST = range(3)
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")  # by number
DROPPED = -1  # a training text that a held-out file contains too

Key = tuple[str, ...]  # a text, or the texts of a pair
Shares = Mapping[int, float]  # of the different texts of training to hold out, by split


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Splits of the rows of one or several files.

    Attributes:
        splits: split of each row, or `DROPPED`.
        is_repeated: rows whose text an earlier row of the same split has too.
    """

    splits: np.ndarray
    is_repeated: np.ndarray

    def find_empty(self, wanted: Iterable[int] = range(len(SPLITS))) -> str | None:
        """Return the first of some splits that no row is left for; None: there is none."""
        return next((SPLITS[n] for n in wanted if not (self.splits == n).any()), None)


def assign_splits(
    keys: Iterable[Key],
    initial_splits: np.ndarray,
    shares: Shares,
    labels: np.ndarray | None = None,
) -> Assignment:
    """Assign each row to a split by its text or texts, as `assign_digests` does."""
    digests = b"".join(hashlib.sha256("\0".join(key).encode()).digest() for key in keys)
    values = np.frombuffer(digests, np.uint8).reshape(-1, 32)
    return assign_digests(values, initial_splits, shares, labels)


def assign_digests(
    digests: np.ndarray,
    initial_splits: np.ndarray,
    shares: Shares,
    labels: np.ndarray | None = None,
    *,
    noun: str = "text",
    hint: str | None = None,
) -> Assignment:
    """Assign each row to a split.

    The different texts of a class are ordered by their sha256, and the first ones are held out. So
    the split of a text depends neither on the order of the rows nor on a seed, and hardly on the
    other texts. Each class with as many texts as there are splits to draw, training included, is in
    all of them; a class with fewer is in training, then in test.

    Args:
        digests: sha256 of the text of each row, (N, 32) uint8.
        initial_splits: split of each row; rows of `TRAIN` are those to split further.
        shares: share of the different texts of `TRAIN` to hold out, by split.
        labels: class of each row; None: the rows have none.
        noun: what a row is, for the message.
        hint: end of the message; None: the splits, and that texts are to be added.

    Raises:
        DataError: there are fewer different texts than splits.
    """
    values = np.ascontiguousarray(digests).reshape(-1).view("S32")
    order = np.argsort(values, kind="stable")
    texts = np.zeros(len(order), np.int64)  # numbered in the order of their sha256
    texts[order[1:]] = np.cumsum(values[order[1:]] != values[order[:-1]])
    initial_by_text = np.full(texts.max(initial=-1) + 1, TRAIN, np.int8)
    np.maximum.at(initial_by_text, texts, initial_splits)
    pool = np.flatnonzero(initial_by_text == TRAIN)
    if len(pool) <= len(shares):
        default_hint = f" (train{''.join(f', {SPLITS[split]}' for split in shares)}); add {noun}s"
        raise DataError(
            f"{counted(len(pool), f'different {noun}|{noun}s')} cannot fill {len(shares) + 1} "
            f"splits{default_hint if hint is None else hint}"
        )
    groups = [pool] if labels is None else _group(pool, texts, labels)
    split_by_text = _hold_out(groups, shares, initial_by_text)
    if not set(shares) <= set(split_by_text[pool].tolist()):
        # there is no class with a text for each split
        split_by_text = _hold_out([pool], shares, initial_by_text)
    # Rows of the file to split follow their text; rows of a held-out file stay or are dropped.
    row_splits = split_by_text[texts]
    follows = (initial_splits == TRAIN) & np.isin(row_splits, list(shares))
    splits = np.where(follows | (row_splits == initial_splits), row_splits, DROPPED).astype(
        initial_splits.dtype
    )
    rows = order[splits[order] != DROPPED]
    is_repeated = np.zeros(len(splits), bool)
    is_repeated[rows[1:]] = texts[rows[1:]] == texts[rows[:-1]]
    return Assignment(splits, is_repeated)


def _group(pool: np.ndarray, texts: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """Return the texts of each class in their order; a text of several is of the rarest one."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    by_rarity = np.argsort(counts, kind="stable")
    ranks = np.empty_like(by_rarity)
    ranks[by_rarity] = np.arange(len(counts))
    rarest = np.full(texts.max() + 1, len(counts))
    np.minimum.at(rarest, texts, ranks[classes])
    class_of = by_rarity[rarest[pool]]
    ends = np.cumsum(np.bincount(class_of, minlength=len(counts)))[:-1]
    return np.split(pool[np.argsort(class_of, kind="stable")], ends)


def _hold_out(
    groups: Sequence[np.ndarray], shares: Shares, initial_splits: np.ndarray
) -> np.ndarray:
    """Return the split of each text, after these shares of each group were held out."""
    splits = initial_splits.copy()
    done = 0
    for group in groups:
        # Rounded sums: the parts of many small groups add up to the share.
        ends = (done, done + len(group))
        counts = {s: round(x * ends[1]) - round(x * ends[0]) for s, x in shares.items()}
        available, done = len(group) - 1, ends[1]  # a text is left for training
        for rank, split in enumerate(sorted(counts, reverse=True)):  # test first
            rest = len(counts) - rank - 1
            counts[split] = min(max(1, counts[split]), max(available - rest, min(available, 1)))
            available -= counts[split]
        first = 0
        for split, count in counts.items():
            splits[group[first : first + count]] = split
            first += count
    return splits
