"""Folders of imports in a cache: each has files and a description."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.own_splits import SPLITS
from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError, OptionError
from longspan.files import read_json, replaced_folder, write_json
from longspan.results.reading import check_folder_name

DESCRIPTION = "import.json"
S = TypeVar("S")  # source of a split
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportDescription:
    """Description of an import, as stored; each kind adds its own fields.

    Attributes:
        folder: name of the folder of the kind in a cache.
        noun: an import of the kind, for messages: "corpus".
        name: name of the task.
        rows_sha256: sha256 of the rows or documents, independent of the file format.
        sizes: rows, documents or queries by split.
        counts: rows that were left out, or that a user should know of, by reason.
        schema: version of the description and of the files beside it.
    """

    folder: ClassVar[str]
    noun: ClassVar[str]

    name: str
    rows_sha256: str
    sizes: dict[str, int]
    counts: dict[str, int]
    schema: int = 1

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal for two imports of the same rows."""
        return (self.rows_sha256,)

    @property
    def origin(self) -> dict[str, Any]:
        """Identity of the rows; part of the key of data sets that are built of them."""
        return {"form": "import", "sha256": self.rows_sha256}

    @classmethod
    def path(cls, cache: Path, name: str) -> Path:
        """Return the folder of an import in a cache."""
        return cache / cls.folder / name

    @classmethod
    def find(cls, cache: Path) -> list[Path]:
        """Return the folders of the imports in a cache."""
        return sorted(path.parent for path in (cache / cls.folder).glob(f"*/{DESCRIPTION}"))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the description of the import in a folder.

        Raises:
            DataError: it is damaged, or of another version.
        """
        path = folder / DESCRIPTION
        content = read_json(path)
        names = {field.name for field in dataclasses.fields(cls)}
        is_whole = isinstance(content, dict) and content.keys() == names
        if not is_whole or content["schema"] != cls.schema:
            raise DataError(
                f"{path} describes no {cls.noun} of schema {cls.schema}; import it again with "
                "--replace"
            )
        return cls(**content)

    @classmethod
    def store(cls, cache: Path, name: str, write: Callable[[Path], Self], *, replace: bool) -> Self:
        """Store a new import, whole or not at all; refuse a name that other rows have.

        Args:
            cache: cache that may have an import of the name.
            name: name of the task.
            write: writes the files of the import to a folder, and returns their description.
            replace: replace another import of the same name.

        Raises:
            OptionError: the name is no name of a task, or is taken.
            RunError: the disk is full or the folder cannot be written.
        """
        check_task_name(name)
        earlier = cls.path(cache, name)
        with replaced_folder(earlier) as part:
            description = write(part)
            is_kept = not replace and (earlier / DESCRIPTION).exists()
            if is_kept and cls.load(earlier).identity != description.identity:
                raise OptionError(
                    f"{name!r} is the name of another {cls.noun}; choose another --name, or pass "
                    "--replace"
                )
            write_json(part / DESCRIPTION, dataclasses.asdict(description))
        return description


def check_task_name(name: str) -> None:
    """Refuse names that are no names of files or of options.

    Raises:
        OptionError: the name has other characters, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"--name must have 1 to 64 lower-case letters, digits, - and _, got {name!r}"
        )
    check_folder_name("task", name)


def resolve_splits(
    options: Mapping[int, float | S | None],
    split_sources: Mapping[int, S],
    share: float,
    noun: str,
    omittable: Sequence[int] = (),
) -> tuple[dict[int, S], dict[int, float]]:
    """Return the source of each split that has one, and shares of training for the others.

    What is asked for takes precedence over a split that the source itself has.

    Args:
        options: share or source of each held-out split; None: that of the source, or `share`.
        split_sources: sources of splits, such as the folders of a source.
        share: default share.
        noun: what is held out, for messages: "text".
        omittable: splits that a share of 0 leaves out.

    Raises:
        OptionError: a share is not between 0 and 1, or nothing is left for training.
    """
    splits = {
        x: split_sources.get(x, share) if option is None else option
        for x, option in options.items()
    }
    splits = {x: y for x, y in splits.items() if not (x in omittable and y == 0)}
    shares = {split: x for split, x in splits.items() if isinstance(x, int | float)}
    for split, x in shares.items():
        if not 0 < x < 1:
            end = f", or 0 for no {SPLITS[split]} split" if split in omittable else ""
            raise OptionError(
                f"--{SPLITS[split]} must be a share between 0 and 1 or a path{end}, got {x:g}"
            )
    if sum(shares.values()) >= 1:
        raise OptionError(
            f"--validation and --test leave no {noun} for training: {sum(shares.values()):g} of all"
        )
    sources = {split: x for split, x in splits.items() if not isinstance(x, int | float)}
    return sources, shares


def count_splits(splits: Any) -> dict[str, int]:
    """Return the number of rows of each split, from the split of each row."""
    return {name: int((splits == n).sum()) for n, name in enumerate(SPLITS)}


def covered(lengths: Sequence[int]) -> int:
    """Return the 95th percentile of some lengths, which recipes cover; 0 if there are none."""
    return max(1, int(np.percentile(lengths, 95))) if lengths else 0


def load_table(path: Path, sha256: str) -> pa.Table:
    """Load the rows of an import.

    Raises:
        DataError: they are missing or have changed.
    """
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    if table_sha256(table) != sha256:
        raise DataError(f"{path} has changed; import the files again with --replace")
    return table


def table_sha256(table: pa.Table) -> str:
    """Return the sha256 of the rows of a table, independent of the file format."""
    digest = hashlib.sha256()
    for name in table.column_names:
        digest.update(f"{name} {table.num_rows}\n".encode())
        for value in table[name].to_pylist():
            digest.update(f"{value!r}\0".encode())
    return digest.hexdigest()
