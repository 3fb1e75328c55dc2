"""Imports that are one table of rows: a parquet file beside their description."""

import dataclasses
import hashlib
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.imports import (
    ImportDescription,
    ImportKind,
    hide,
    is_complete,
    write_description,
)
from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError, OptionError
from longspan.files import atomic_write, flush_to_disk


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsDescription(ImportDescription):
    """Description of an import that is one table.

    Attributes:
        rows_sha256: sha256 of the rows, independent of the file format.
    """

    rows_sha256: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal for two imports of the same rows."""
        return (self.rows_sha256,)


R = TypeVar("R", bound=RowsDescription)


def load_rows(path: Path, description: RowsDescription) -> pa.Table:
    """Load the table of an import.

    Raises:
        DataError: it is missing or has changed.
    """
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    if table_sha256(table) != description.rows_sha256:
        raise DataError(f"{path} has changed; import the file again with --replace")
    return table


def store_rows(
    kind: ImportKind[R], path: Path, table: pa.Table, described: R, *, replace: bool
) -> R:
    """Write an import and return its description, with the sha256 of the rows.

    An earlier import of the name is intact until the new table is on the disk, so that a command
    that fails, or is refused, costs nothing.

    Args:
        kind: kind of the import.
        path: file of the table, in the folder of the import.
        table: rows, with a column `split`.
        described: description of the rows; its `rows_sha256` is ignored.
        replace: whether to replace other rows under the same name.

    Raises:
        OptionError: the name is taken by other rows.
        RunError: the folder cannot be written.
    """
    described = dataclasses.replace(described, rows_sha256=table_sha256(table))
    folder = path.parent
    if is_complete(folder) and not replace and kind.load(folder).identity != described.identity:
        raise OptionError(
            f"{described.name!r} is the name of other texts; choose another --name, or pass "
            "--replace"
        )
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary)
        flush_to_disk(temporary)
        # The earlier description is not that of the new table.
        hide(folder)
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
