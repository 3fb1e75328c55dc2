"""Families of the mechanisms, for colors and groups."""

import functools

from longspan.report.traits import read_traits

OTHER = "other"  # family of a mechanism that the registry lacks


@functools.cache
def mechanisms_by_family() -> dict[str, tuple[str, ...]]:
    """Return the names of the registered mechanisms by family, in the order of the taxonomy."""
    found: dict[str, tuple[str, ...]] = {}
    for name, traits in read_traits().items():
        found[traits.family] = (*found.get(traits.family, ()), name)
    return found


def families() -> tuple[str, ...]:
    """Return every family in the order of the taxonomy, `OTHER` last."""
    return (*mechanisms_by_family(), OTHER)


def family_of(mechanism: str) -> str:
    """Return the family of a mechanism."""
    known = (family for family, names in mechanisms_by_family().items() if mechanism in names)
    return next(known, OTHER)
