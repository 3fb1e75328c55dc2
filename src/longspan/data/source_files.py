"""Where source files are looked for."""

import os
from pathlib import Path

from longspan.data import hub
from longspan.errors import DataError

VARIABLES = ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA")


def searched(data: Path | None, what: str, hub_name: str | None = None) -> list[Path]:
    """`data` alone; without it the folders that the environment names, then the hub's cache.

    Args:
        data: a folder or file that was named.
        what: what it should hold, for the refusal.
        hub_name: of the set on the Hugging Face hub, if it is there.

    Raises:
        DataError: `data` does not exist.
    """
    if data is not None:
        if not data.exists():
            raise DataError(f"{data} does not exist; expected {what}")
        return [data]
    named = [Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)]
    return [*named, *(hub.cached_folders(hub_name) if hub_name else ())]


def listed(places: list[Path]) -> str:
    """The places in words, for a refusal."""
    return ", ".join(map(str, places)) or "nothing, since $LONGSPAN_DATA is not set"
