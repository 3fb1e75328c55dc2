"""Texts of one's own, stored in the cache under a name.

An import is a folder `<cache>/own/<name>`: texts.parquet has the split, the texts and the target of
each row, and import.json, which is written last, their description. The original file is not needed
afterwards.
"""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.imports import (
    ImportDescription,
    ImportKind,
    hide,
    is_complete,
    write_description,
)
from longspan.data.own_splits import NAMES
from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError, OptionError
from longspan.files import atomic_write

SCHEMA = 1
_TEXTS = "texts.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnDescription(ImportDescription):
    """Description of an import, as stored.

    Attributes:
        files: sha256 of each file that was read, by name.
        columns: columns that were read, by role: text, pair, target.
        classes: names of the classes; none of a regression.
        sizes: rows by split.
        counts: rows that were left out because a text or target is empty, or because the text is
            in another split; kept rows whose text is in an earlier row of the split too; and
            held-out rows whose class is not in training.
        words, bytes: 95th percentile of the lengths of the training texts.
        mean, deviation: of the training targets; 0 and 1 for classes.
        rows_sha256: sha256 of the rows, independent of the file format.
    """

    files: dict[str, str]
    columns: dict[str, str]
    classes: list[str]
    sizes: dict[str, int]
    counts: dict[str, int]
    words: int
    bytes: int
    mean: float
    deviation: float
    rows_sha256: str
    schema: int = SCHEMA

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers."""
        return not self.classes

    @property
    def is_pair(self) -> bool:
        """True if an example has two texts."""
        return "pair" in self.columns


OWN_TEXTS = ImportKind("own", "an import", OwnDescription, SCHEMA)


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
    path = folder / _TEXTS
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    if table_sha256(table) != description.rows_sha256:
        raise DataError(f"{path} has changed; import the file again with --replace")
    columns = [table[x].to_pylist() for x in ("text", "pair") if x in table.column_names]
    texts = list(zip(*columns, strict=True))
    targets, splits = table["target"].to_numpy(), table["split"].to_numpy()
    found = {}
    for number, name in enumerate(NAMES):
        rows = np.flatnonzero(splits == number)
        found[name] = OwnSplit([texts[row] for row in rows], targets[rows])
    return found


def store_import(
    folder: Path, table: pa.Table, described: OwnDescription, *, replace: bool
) -> OwnDescription:
    """Write an import and return its description, with the sha256 of the rows.

    Args:
        folder: folder of the import.
        table: rows with columns split, text, pair (of pairs) and target.
        described: description of the rows; its `rows_sha256` is ignored.
        replace: whether to replace other rows under the same name.

    Raises:
        OptionError: the name is taken by other rows.
        RunError: the folder cannot be written.
    """
    described = dataclasses.replace(described, rows_sha256=table_sha256(table))
    if is_complete(folder) and not replace:
        earlier = OWN_TEXTS.load(folder)
        if (earlier.rows_sha256, earlier.classes) != (described.rows_sha256, described.classes):
            raise OptionError(
                f"{described.name!r} is the name of other texts; choose another --name, or pass "
                "--replace"
            )
    hide(folder)
    with atomic_write(folder / _TEXTS) as temporary:
        pq.write_table(table, temporary)
    write_description(folder, described)
    return described


def table_sha256(table: pa.Table) -> str:
    """Return the sha256 of the rows of a table, independent of the file format."""
    digest = hashlib.sha256()
    for name in table.column_names:
        digest.update(f"{name} {table.num_rows}\n".encode())
        for value in table[name].to_pylist():
            digest.update(f"{value!r}\0".encode())
    return digest.hexdigest()
