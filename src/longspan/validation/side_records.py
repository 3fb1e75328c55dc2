"""Validation of side records: analyses, cross evaluations, and uses of the context."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.results import load_analysis, load_context_use, load_cross_evaluation
from longspan.results.reading import ANALYSES, CONTEXTS, EVALUATIONS, side_record_paths
from longspan.validation.findings import Finding

LOADERS: dict[str, Callable[[Path], Any]] = {
    ANALYSES: load_analysis,
    EVALUATIONS: load_cross_evaluation,
    CONTEXTS: load_context_use,
}


def unreadable(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each side record below a folder that reports cannot read."""
    for name, load in LOADERS.items():
        for path in side_record_paths([folder], name):
            try:
                load(path)
            except DataError as error:
                yield Finding(
                    severity="error",
                    file=str(path),
                    field="the whole file",
                    expected=f"a side record of the folder {name}",
                    found=str(error).removeprefix(f"{path}: ").removeprefix(f"{path} "),
                    remedy="make it again from the trained model, or remove it",
                )
