"""Validation of side records: analyses, cross evaluations, and uses of the context."""

from collections.abc import Iterator
from pathlib import Path

from longspan.errors import DataError
from longspan.results import Analysis, ContextUse, CrossEvaluation, load_side_record
from longspan.results.reading import side_record_paths
from longspan.validation.findings import Finding

KINDS = (Analysis, CrossEvaluation, ContextUse)


def unreadable(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each side record below a folder that reports cannot read."""
    for kind in KINDS:
        for path in side_record_paths([folder], kind.subfolder):
            try:
                load_side_record(kind, path)
            except DataError as error:
                yield Finding(
                    severity="error",
                    file=str(path),
                    field="the whole file",
                    expected=f"a side record of the folder {kind.subfolder}",
                    found=str(error).removeprefix(f"{path}: ").removeprefix(f"{path} "),
                    remedy="make it again from the trained model, or remove it",
                )
