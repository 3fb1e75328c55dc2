"""Splits of labeled texts that keep near duplicates together, with equal shares of each class."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from longspan.data.near_duplicates import group_duplicates


def hold_out(
    texts: Sequence[bytes], labels: np.ndarray, shares: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Return the rows of each held-out split, ascending, and the others as "train".

    Near duplicates are in one split. The groups of near duplicates of a class are ordered by the
    smallest sha256 of their texts and held out from the first one on, so a split depends neither on
    the order of the texts nor on a seed.

    Args:
        texts: texts, UTF-8.
        labels: class of each text.
        shares: share of each class to hold out, by split; at most one in total.
    """
    members = defaultdict(list)
    for row, group in enumerate(group_duplicates(texts)):
        members[int(group)].append(row)
    digests = {g: min(hashlib.sha256(texts[x]).digest() for x in m) for g, m in members.items()}
    chosen: dict[str, list[int]] = {split: [] for split in (*shares, "train")}
    for label in np.unique(labels):
        groups = sorted((g for g in members if labels[g] == label), key=digests.__getitem__)
        count = sum(len(members[group]) for group in groups)
        room = {split: round(share * count) for split, share in shares.items()}
        for group in groups:
            size = len(members[group])
            split = next((split for split, left in room.items() if left >= size), "train")
            chosen[split] += members[group]
            if split != "train":
                room[split] -= size
    return {split: np.sort(np.array(rows, np.int64)) for split, rows in chosen.items()}
