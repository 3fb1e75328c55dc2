"""Base of the tasks over published documents: encoding, splits and leaks of near duplicates."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import PositiveInt

from longspan.config import Length, setting, settings
from longspan.data.near_duplicates import find_leaks, group_duplicates
from longspan.data.store import Examples
from longspan.tasks.base import Split
from longspan.tasks.encoded_text import (
    EncodedTextTask,
    EncodingOptions,
    LabeledTexts,
)
from longspan.tasks.grouping import Grouping
from longspan.tasks.rules import TOKEN_COUNTS


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
    rows: dict[str, list[int]] = {split: [] for split in (*shares, "train")}
    for label in np.unique(labels):
        groups = sorted((g for g in members if labels[g] == label), key=digests.__getitem__)
        count = sum(len(members[group]) for group in groups)
        room = {split: round(share * count) for split, share in shares.items()}
        for group in groups:
            size = len(members[group])
            split = next((split for split, left in room.items() if left >= size), "train")
            rows[split] += members[group]
            if split != "train":
                room[split] -= size
    return {split: np.sort(np.array(numbers, np.int64)) for split, numbers in rows.items()}


HELD_OUT_SHARE = 0.1
# Held-out splits, and those that must not contain their documents.
_LEAKS: tuple[tuple[Split, Split], ...] = (
    ("validation", "train"),
    ("test", "train"),
    ("test", "validation"),
)
_SHOWN = 400  # characters of a document


@settings
class DocumentOptions(EncodingOptions):
    """Encoding of the documents."""

    length: Length = setting("tokens of a document that are kept", 2_048)
    minimum: PositiveInt = setting(
        "occurrences in the training documents that make a character known", 2
    )


class DocumentTask(EncodedTextTask):
    """A classification task over documents, which reports held-out ones that training contains.

    Scores are also given for the held-out documents with and without a near duplicate in training.
    """

    options: DocumentOptions
    rules = (TOKEN_COUNTS,)

    def encode_documents(
        self, splits: Mapping[Split, LabeledTexts]
    ) -> tuple[dict[str, Examples], dict[str, Any]]:
        """Return the examples of each split, and the facts of a manifest that describe them."""
        examples, facts = self.encode_splits(splits)
        leaks = {f"{x} in {y}": _report_leaks(splits[x], splits[y]) for x, y in _LEAKS}
        return examples, {"cut": facts["cut"], "leaks": leaks, **facts}

    def groupings(self, split: Split) -> list[Grouping]:
        """Return those of texts, and whether training contains an example, exactly or nearly."""
        groupings = super().groupings(split)
        leaks = self.facts["leaks"].get(f"{split} in train")
        if not leaks or not leaks["rows"]:
            return groupings
        group = np.zeros(self.size(split), np.int64)
        group[leaks["rows"]] = 1
        return [*groupings, Grouping(name="in training", labels=("no", "yes"), group=group)]

    def show(self, split: Split, row: int) -> str:
        """Return the beginning of a document, and its class."""
        tokens, label = self._example(split, row)
        text = self.decode(tokens)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return f"{shown} = {self.class_name(label)}"


def _report_leaks(documents: LabeledTexts, other_split: LabeledTexts) -> dict[str, Any]:
    """Return how many documents are in another split, exactly or nearly, and their rows."""
    leaks = find_leaks(documents.texts, other_split.texts)
    exact = sum(similarity == 1 for _, _, similarity in leaks)
    differing = (other_split.labels[y] != documents.labels[x] for x, y, _ in leaks)
    return {
        "documents": len(documents.texts),
        "exact": exact,
        "near": len(leaks) - exact,
        "of_another_class": sum(map(int, differing)),
        "rows": [row for row, _, _ in leaks],
    }
