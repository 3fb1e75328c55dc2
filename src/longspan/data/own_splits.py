"""Splits of texts of one's own, by a hash of the text: equal texts are in one split."""

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


def assign_splits(keys: Sequence[Key], given: np.ndarray, shares: dict[int, float]) -> Assignment:
    """Assign each row to a split.

    The different texts are ordered by their sha256. The first ones are held out, so the split of a
    text depends neither on the order of the rows nor on a seed, and hardly on the other texts.

    Args:
        keys: text, or texts, of each row.
        given: split of each row; rows of `TRAIN` are those to split further.
        shares: share of the different texts of `TRAIN` to hold out, by split.

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
    assigned, first = dict(held_out), 0
    for split, share in shares.items():
        # At least one text for each split, and one that is left for training.
        spare = len(pool) - first - (len(shares) - list(shares).index(split))
        count = min(max(1, round(share * len(pool))), spare)
        assigned |= dict.fromkeys(pool[first : first + count], split)
        first += count
    assigned |= dict.fromkeys(pool[first:], TRAIN)
    found = np.array([assigned[key] for key in keys], np.int8)
    # Rows of the file to split follow their text; rows of a held-out file stay or are dropped.
    splits = np.where((given == TRAIN) & np.isin(found, list(shares)), found, given)
    splits[(found != splits)] = DROPPED
    kept = [(key, int(s)) for key, s in zip(keys, splits, strict=True) if s != DROPPED]
    return Assignment(splits, repeated=len(kept) - len(set(kept)))


def _keys_of(keys: Sequence[Key], given: np.ndarray, split: int) -> set[Key]:
    return {keys[row] for row in np.flatnonzero(given == split).tolist()}


def _digest(key: Key) -> bytes:
    return hashlib.sha256("\0".join(key).encode()).digest()
