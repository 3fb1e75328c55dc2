"""Splits of texts of one's own, by class and a hash of the text: equal texts are in one split."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from longspan.errors import DataError
from longspan.wording import counted

TRAIN, VALIDATION, TEST = range(3)
NAMES = ("train", "validation", "test")
DROPPED = -1  # a training text that a held-out file contains too

Key = tuple[str, ...]  # a text, or the texts of a pair


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Splits of the rows of one or several files.

    Attributes:
        splits: split of each row, or `DROPPED`.
        repeated: rows whose text an earlier row of the same split has too.
    """

    splits: np.ndarray
    repeated: int


def assign_splits(
    keys: Sequence[Key],
    given: np.ndarray,
    shares: dict[int, float],
    labels: np.ndarray | None = None,
) -> Assignment:
    """Assign each row to a split.

    The different texts of a class are ordered by their sha256, and the first ones are held out. So
    the split of a text depends neither on the order of the rows nor on a seed, and hardly on the
    other texts. Each class with as many texts as there are splits to draw, training included, is in
    all of them; a class with fewer is in training, then in test.

    Args:
        keys: text, or texts, of each row.
        given: split of each row; rows of `TRAIN` are those to split further.
        shares: share of the different texts of `TRAIN` to hold out, by split.
        labels: class of each row; None: the rows have none.

    Raises:
        DataError: there are fewer different texts than splits.
    """
    held_out = {key: int(s) for s in (VALIDATION, TEST) for key in _keys_of(keys, given, s)}
    pool = sorted(_keys_of(keys, given, TRAIN) - held_out.keys(), key=_digest)
    if len(pool) <= len(shares):
        raise DataError(
            f"{counted(len(pool), 'different text|texts')} cannot fill {len(shares) + 1} splits "
            f"(train{''.join(f', {NAMES[split]}' for split in shares)}); add texts"
        )
    drawn = {} if labels is None else _draw(_group(pool, keys, labels), shares)
    if labels is None or not set(shares) <= set(drawn.values()):
        drawn = _draw([pool], shares)  # there is no class with a text for each split
    assigned = held_out | drawn
    found = np.array([assigned[key] for key in keys], np.int8)
    # Rows of the file to split follow their text; rows of a held-out file stay or are dropped.
    splits = np.where((given == TRAIN) & np.isin(found, list(shares)), found, given)
    splits[(found != splits)] = DROPPED
    kept = [(key, int(s)) for key, s in zip(keys, splits, strict=True) if s != DROPPED]
    return Assignment(splits, repeated=len(kept) - len(set(kept)))


def _group(pool: list[Key], keys: Sequence[Key], labels: np.ndarray) -> list[list[Key]]:
    """Return the texts of each class in their order; a text of several is of the rarest one."""
    names, counts = np.unique(labels, return_counts=True)
    rarity = dict(zip(names.tolist(), counts.tolist(), strict=True))
    classes: dict[Key, int] = {}
    for key, label in zip(keys, labels.tolist(), strict=True):
        known = classes.setdefault(key, label)
        classes[key] = min(known, label, key=lambda x: (rarity[x], x))
    groups: dict[int, list[Key]] = {label: [] for label in rarity}
    for key in pool:
        groups[classes[key]].append(key)
    return list(groups.values())


def _draw(groups: list[list[Key]], shares: dict[int, float]) -> dict[Key, int]:
    """Assign the texts of each group to training and the splits to draw, in these shares."""
    drawn: dict[Key, int] = {}
    done = 0
    for group in groups:
        # Rounded sums: the parts of many small groups add up to the share.
        ends = (done, done + len(group))
        counts = {s: round(x * ends[1]) - round(x * ends[0]) for s, x in shares.items()}
        spare, done = len(group) - 1, ends[1]  # a text is left for training
        for rank, split in enumerate(sorted(counts, reverse=True)):  # test first
            rest = len(counts) - rank - 1
            counts[split] = min(max(1, counts[split]), max(spare - rest, min(spare, 1)))
            spare -= counts[split]
        first = 0
        for split, count in counts.items():
            drawn |= dict.fromkeys(group[first : first + count], split)
            first += count
        drawn |= dict.fromkeys(group[first:], TRAIN)
    return drawn


def _keys_of(keys: Sequence[Key], given: np.ndarray, split: int) -> set[Key]:
    return {keys[row] for row in np.flatnonzero(given == split).tolist()}


def _digest(key: Key) -> bytes:
    return hashlib.sha256("\0".join(key).encode()).digest()
