"""Protocol of imported texts, summaries and collections."""

from pathlib import Path

from longspan.arena.protocols.base import PROTOCOLS
from longspan.arena.protocols.computed import imports
from longspan.arena.protocols.files import read_recipe
from longspan.tasks import register_imported

NAME = "own"


def register_imports(cache: Path) -> None:
    """Register the imports in a cache as tasks; those with targets are the protocol `own`."""
    PROTOCOLS.pop(NAME, None)
    register_imported(cache)
    if imports():
        PROTOCOLS[NAME] = read_recipe(NAME)
