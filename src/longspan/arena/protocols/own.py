"""Protocol of imported texts, summaries and collections."""

from pathlib import Path

from longspan.arena.protocols.base import PROTOCOLS
from longspan.arena.protocols.files import read_recipe
from longspan.tasks import (
    register_beir,
    register_corpora,
    register_own_summaries,
    register_own_texts,
)

NAME = "own"


def register_imports(cache: Path) -> None:
    """Register the imports in a cache as tasks; those with targets are the protocol `own`."""
    PROTOCOLS.pop(NAME, None)
    register_corpora(cache)
    registered = (register_own_texts(cache), register_own_summaries(cache), register_beir(cache))
    if any(registered):
        PROTOCOLS[NAME] = read_recipe(NAME)
