"""Side records: what was measured on a trained model, stored next to the record of its run.

The path is `<results>/<protocol>/<task>/<subfolder>/<file name>`.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from longspan.config import settings
from longspan.errors import DataError
from longspan.files import write_json
from longspan.results.reading import read_record, side_record_paths
from longspan.results.record import Result, record_stem

S = TypeVar("S", bound="SideRecord")


@settings
class SideRecord:
    """Fields of every side record, which name its run.

    Attributes:
        subfolder: folder beside the records of runs.
        title: kind of record for errors, with its article.
        remedy: what to do about an invalid file.
        protocol: protocol of the run.
        mechanism: mechanism of the run.
        config_hash: hash of its configuration.
        seed: its seed.
        date: date of the measurement, ISO 8601, UTC.
        reference: name of the reference row or variant; None for a row of the mechanism.
    """

    subfolder: ClassVar[str]
    title: ClassVar[str]
    remedy: ClassVar[str]
    protocol: str
    mechanism: str
    config_hash: str
    seed: int
    date: str
    reference: str | None = None

    @property
    def row_name(self) -> str:
        """Name of the reference row or variant, else of the mechanism."""
        return self.reference or self.mechanism

    @property
    def run_stem(self) -> str:
        """Name of the run's record without its suffix."""
        return record_stem(self.row_name, self.config_hash, self.seed)

    @property
    def filename(self) -> str:
        """Name of the file, by default that of the run's record."""
        return f"{self.run_stem}.json"

    def check(self) -> None:
        """Check that the values agree with each other.

        Raises:
            DataError: they do not; the message lists every reason.
        """

    def save(self, folder: Path) -> Path:
        """Write the record below the folder of the run's record; return its path."""
        path = folder / self.subfolder / self.filename
        write_json(path, dataclasses.asdict(self))
        return path


def run_fields(kind: type[SideRecord], result: Result) -> dict[str, Any]:
    """Return the fields of a side record that name the run that it is of."""
    names = ("protocol", "task", "mechanism", "config_hash", "seed")
    fields = {field.name for field in dataclasses.fields(kind)}
    return {x: getattr(result, x) for x in names if x in fields} | {"reference": result.named_row}


def load_side_record(kind: type[S], path: Path) -> S:
    """Read one side record.

    Raises:
        DataError: the file is not a valid record; the message lists every reason.
    """
    record = read_record(kind, path)
    try:
        record.check()
    except DataError as error:
        raise DataError(f"{path}: {error}; {kind.remedy}") from error
    return record


def load_side_records(kind: type[S], folders: Iterable[Path]) -> list[S]:
    """Read all side records of a kind below some folders, in a stable order; there may be none.

    Raises:
        DataError: a file is invalid.
    """
    paths = side_record_paths(folders, kind.subfolder)
    return [load_side_record(kind, path) for path in paths]
