"""Traits of the registered mechanisms, for filters and links.

Mechanisms need torch and reports do not: `docs/pages.py` renders `mechanisms.json` from the
registry.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources

from longspan.report.leaderboard.values import Row

UNKNOWN = "not recorded"  # value of a mechanism that the registry lacks


@dataclass(frozen=True, kw_only=True)
class MechanismTraits:
    """Traits of a mechanism with its default options.

    Attributes:
        family: class of Tay et al. 2022, Efficient Transformers: A Survey.
        cost: growth of time and memory with the length.
        causal: has a causal form.
        cross: supports cross-attention.
        paper: authors, year and address; None: unpublished.
    """

    family: str
    cost: str
    causal: bool
    cross: bool
    paper: str | None


@functools.cache
def read_traits() -> dict[str, MechanismTraits]:
    """Read the traits of the registered mechanisms by name, in the order of the taxonomy."""
    text = resources.files("longspan.report").joinpath("mechanisms.json").read_text("utf-8")
    return {name: MechanismTraits(**values) for name, values in json.loads(text).items()}


def row_traits(row: Row) -> dict[str, str]:
    """Return the traits that a row can be filtered by; a reference row has none."""
    if row.reference is not None:
        return {}
    found = read_traits().get(row.mechanism)
    return {
        "family": row.family or UNKNOWN,
        "cost": found.cost if found else UNKNOWN,
        "causal": _yes_or_no(found.causal) if found else UNKNOWN,
        "cross": _yes_or_no(found.cross) if found else UNKNOWN,
    }


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
