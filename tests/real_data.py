"""Published files that tests read, below the folder `LONGSPAN_TEST_DATA`."""

import os
from pathlib import Path

import pytest

# Read once: many tests hide the data of this machine.
ROOT = os.environ.get("LONGSPAN_TEST_DATA")


def real(name: str, *needed: str) -> Path:
    """Return a file or folder of the test data, or skip the test where it, or a part, is absent."""
    if not ROOT:
        pytest.skip("LONGSPAN_TEST_DATA is not set")
    path = Path(ROOT) / name
    for part in (path, *(path / x for x in needed)):
        if not part.exists():
            pytest.skip(f"LONGSPAN_TEST_DATA has no {part.relative_to(ROOT)}")
    return path
