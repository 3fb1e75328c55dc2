"""Side records: what was measured on a trained model, stored next to the record of its run.

The path is `<results>/<protocol>/<task>/<subfolder>/<file name>`.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, cast

from longspan.files import write_json
from longspan.results.record import record_stem


class SideRecord:
    """Base of side records, which are dataclasses with these fields of the run.

    Attributes:
        subfolder: folder beside the records of runs.
        mechanism: mechanism of the run.
        config_hash: hash of its configuration.
        seed: its seed.
        reference: name of the reference row or variant; None for a row of the mechanism.
    """

    subfolder: ClassVar[str]
    mechanism: str
    config_hash: str
    seed: int
    reference: str | None

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

    def save(self, folder: Path) -> Path:
        """Write the record below the folder of the run's record; return its path."""
        path = folder / self.subfolder / self.filename
        write_json(path, dataclasses.asdict(cast(Any, self)))
        return path
