"""Texts of one's own, stored in the cache under a name.

An import is a folder `<cache>/own/<name>`: texts.parquet has the split, the texts and the target of
each row, and import.json, which is written last, their description. The original file is not needed
afterwards.
"""

import dataclasses
from pathlib import Path

import numpy as np

from longspan.data.import_rows import RowsDescription, load_rows
from longspan.data.imports import ImportKind
from longspan.data.own_splits import NAMES

SCHEMA = 2
TEXTS = "texts.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnDescription(RowsDescription):
    """Description of an import, as stored.

    Attributes:
        files: sha256 of each file that was read, by name.
        columns: columns that were read, by role: text, pair, target.
        classes: names of the classes; none of a regression.
        sizes: rows by split.
        counts: rows that were left out because a text or target is empty, or because the text is
            in another split; kept rows whose text is in an earlier row of the split too; and
            held-out rows whose class is not in training.
        class_counts: rows of each class, by split; none of a regression.
        spellings: spellings of each class that the files write in several ways, by its name.
        words, bytes: 95th percentile of the lengths of the training texts.
        mean, deviation: of the training targets; 0 and 1 for classes.
    """

    files: dict[str, str]
    columns: dict[str, str]
    classes: list[str]
    sizes: dict[str, int]
    counts: dict[str, int]
    class_counts: dict[str, list[int]]
    spellings: dict[str, list[str]]
    words: int
    bytes: int
    mean: float
    deviation: float
    schema: int = SCHEMA

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers."""
        return not self.classes

    @property
    def is_pair(self) -> bool:
        """True if an example has two texts."""
        return "pair" in self.columns

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal for two imports of the same rows: a class is a number in them."""
        return (self.rows_sha256, self.classes)


# Imports of schema 1 do not say how many rows of a class a split has.
OWN_TEXTS = ImportKind(
    "own", "an import", OwnDescription, SCHEMA, older={1: {"class_counts": {}, "spellings": {}}}
)


@dataclasses.dataclass(frozen=True)
class OwnSplit:
    """Rows of one split: texts, of a pair both, and targets."""

    texts: list[tuple[str, ...]]
    targets: np.ndarray


def load_splits(folder: Path, description: OwnDescription) -> dict[str, OwnSplit]:
    """Load the rows of an import by split.

    Raises:
        DataError: they are missing or have changed.
    """
    table = load_rows(folder / TEXTS, description)
    columns = [table[x].to_pylist() for x in ("text", "pair") if x in table.column_names]
    texts = list(zip(*columns, strict=True))
    targets, splits = table["target"].to_numpy(), table["split"].to_numpy()
    found = {}
    for number, name in enumerate(NAMES):
        rows = np.flatnonzero(splits == number)
        found[name] = OwnSplit([texts[row] for row in rows], targets[rows])
    return found
