"""Folders of imports in a cache: each has files and a description."""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.own_splits import NAMES, TEST, TRAIN, VALIDATION
from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError, OptionError
from longspan.files import read_json, replaced_folder, write_json
from longspan.results.reading import check_folder_name

DESCRIPTION = "import.json"
Progress = Callable[[str, int, int], None]  # description, done, total
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportDescription:
    """Description of an import, as stored; each kind adds its own fields.

    Attributes:
        name: name of the task.
        rows_sha256: sha256 of the rows or documents, independent of the file format.
        sizes: rows, documents or queries by split.
        counts: rows that were left out, or that a user should know of, by reason.
        schema: version of the description and of the files beside it.
    """

    name: str
    rows_sha256: str
    sizes: dict[str, int]
    counts: dict[str, int]
    schema: int

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal for two imports of the same rows."""
        return (self.rows_sha256,)

    @property
    def origin(self) -> dict[str, Any]:
        """Identity of the rows; part of the key of data sets that are built of them."""
        return {"form": "import", "sha256": self.rows_sha256}


D = TypeVar("D", bound=ImportDescription)


@dataclasses.dataclass(frozen=True)
class ImportKind(Generic[D]):
    """Imports of one kind, such as corpora.

    Attributes:
        folder: name of their folder in a cache.
        noun: one of them, for messages: "corpus".
        description: class of their descriptions.
        schema: current version.
    """

    folder: str
    noun: str
    description: type[D]
    schema: int

    def path(self, cache: Path, name: str) -> Path:
        """Return the folder of an import in a cache."""
        return cache / self.folder / name

    def find(self, cache: Path) -> list[Path]:
        """Return the folders of the imports in a cache."""
        return sorted(path.parent for path in (cache / self.folder).glob(f"*/{DESCRIPTION}"))

    def load(self, folder: Path) -> D:
        """Load the description of the import in a folder.

        Raises:
            DataError: it is damaged, or of another version.
        """
        path = folder / DESCRIPTION
        content = read_json(path)
        names = {field.name for field in dataclasses.fields(self.description)}
        is_whole = isinstance(content, dict) and content.keys() == names
        if not is_whole or content["schema"] != self.schema:
            raise DataError(
                f"{path} describes no {self.noun} of schema {self.schema}; import it again with "
                "--replace"
            )
        return self.description(**content)

    @contextlib.contextmanager
    def new_folder(self, cache: Path, name: str) -> Iterator[Path]:
        """Yield an empty folder for the files of an import, which it replaces on success.

        Raises:
            OptionError: the name is no name of a task.
            RunError: the disk is full or the folder cannot be written.
        """
        check_task_name(name)
        with replaced_folder(self.path(cache, name)) as part:
            yield part

    def describe(self, cache: Path, part: Path, described: D, *, replace: bool) -> D:
        """Write the description of a new import; refuse a name that other rows have.

        Args:
            cache: cache that may have an import of the name.
            part: folder of `new_folder`.
            described: description of its files.
            replace: replace another import of the same name.

        Raises:
            OptionError: the name is taken.
            RunError: the disk is full.
        """
        earlier = self.path(cache, described.name)
        is_kept = not replace and (earlier / DESCRIPTION).exists()
        if is_kept and self.load(earlier).identity != described.identity:
            raise OptionError(
                f"{described.name!r} is the name of another {self.noun}; choose another --name, "
                "or pass --replace"
            )
        write_json(part / DESCRIPTION, dataclasses.asdict(described))
        return described


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


def shares_of(asked: Mapping[int, Any], noun: str) -> dict[int, float]:
    """Return the shares to hold out, by split; what is no number is a source of the split.

    Args:
        asked: share or source, by split.
        noun: what is held out, for messages: "text".

    Raises:
        OptionError: a share is not between 0 and 1, or nothing is left for training.
    """
    shares = {split: x for split, x in asked.items() if isinstance(x, int | float)}
    for split, share in shares.items():
        if not 0 < share < 1:
            raise OptionError(
                f"--{NAMES[split]} must be a share between 0 and 1 or a path, got {share:g}"
            )
    if sum(shares.values()) >= 1:
        raise OptionError(
            f"--validation and --test leave no {noun} for training: {sum(shares.values()):g} of all"
        )
    return shares


def count_splits(splits: Any) -> dict[str, int]:
    """Return the number of rows of each split, from the split of each row."""
    return {NAMES[n]: int((splits == n).sum()) for n in (TRAIN, VALIDATION, TEST)}


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
