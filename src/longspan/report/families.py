"""Families of the mechanisms, for colors and groups."""

import functools
import json
from importlib import resources

OTHER = "other"  # family of a mechanism that the registry lacks


@functools.cache
def mechanisms_by_family() -> dict[str, tuple[str, ...]]:
    """Read the names of the registered mechanisms by family, in the order of the taxonomy.

    Mechanisms need torch and reports do not: `docs/pages.py` renders `families.json` from the
    registry.
    """
    text = resources.files("longspan.report").joinpath("families.json").read_text("utf-8")
    return {family: tuple(names) for family, names in json.loads(text).items()}


def families() -> tuple[str, ...]:
    """Return every family in the order of the taxonomy, `OTHER` last."""
    return (*mechanisms_by_family(), OTHER)


def family_of(mechanism: str) -> str:
    """Return the family of a mechanism."""
    known = (family for family, names in mechanisms_by_family().items() if mechanism in names)
    return next(known, OTHER)
