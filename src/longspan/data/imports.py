"""Folders of imports in a cache: each has a description, which is written last."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from longspan.errors import DataError
from longspan.files import read_json, write_json

_DESCRIPTION = "import.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportDescription:
    """Description of an import, as stored; each kind adds its own fields.

    Attributes:
        name: name of the task.
        schema: version of the description and of the files beside it.
    """

    name: str
    schema: int


D = TypeVar("D", bound=ImportDescription)


@dataclasses.dataclass(frozen=True)
class ImportKind(Generic[D]):
    """Imports of one kind, such as corpora.

    Attributes:
        folder: name of their folder in a cache.
        noun: what one of them is, for messages: "a corpus".
        description: class of their descriptions.
        schema: current version.
        older: fields that descriptions of an earlier version lack, with their values, by version.
    """

    folder: str
    noun: str
    description: type[D]
    schema: int
    older: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def path(self, cache: Path, name: str) -> Path:
        """Return the folder of an import in a cache."""
        return cache / self.folder / name

    def find(self, cache: Path) -> list[Path]:
        """Return the folders of the imports in a cache."""
        return sorted(path.parent for path in (cache / self.folder).glob(f"*/{_DESCRIPTION}"))

    def load(self, folder: Path) -> D:
        """Load the description of the import in a folder.

        Raises:
            DataError: it is damaged, or of another version.
        """
        path = folder / _DESCRIPTION
        content = read_json(path)
        if isinstance(content, dict) and content.get("schema") in self.older:
            content = {**self.older[content["schema"]], **content, "schema": self.schema}
        names = {field.name for field in dataclasses.fields(self.description)}
        is_whole = isinstance(content, dict) and content.keys() == names
        if not is_whole or content["schema"] != self.schema:
            raise DataError(
                f"{path} is not {self.noun} of schema {self.schema}; import it again with --replace"
            )
        return self.description(**content)


def is_complete(folder: Path) -> bool:
    """Return whether a folder contains an import with its description."""
    return (folder / _DESCRIPTION).exists()


def hide(folder: Path) -> None:
    """Remove the description of an import, which makes it visible, before its files change."""
    (folder / _DESCRIPTION).unlink(missing_ok=True)


def write_description(folder: Path, description: ImportDescription) -> None:
    """Write the description of an import, whose other files are complete.

    Raises:
        RunError: the folder cannot be written.
    """
    write_json(folder / _DESCRIPTION, dataclasses.asdict(description))
