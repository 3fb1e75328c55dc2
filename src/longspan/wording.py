"""Wording of messages: numbers with their nouns, and names of devices."""

import re
from collections.abc import Iterable

_FORMS = re.compile(r"(\w+)\|(\w+)")
_SHOWN = 5  # things that a message names
_ONE_THREAD = re.compile(r"\b1 threads\b")


def counted(number: int, text: str) -> str:
    """Return a number and the text about it, in the singular or plural.

    Args:
        number: number of things.
        text: text that follows it, with both forms of each word that has two:
            "row|rows was|were left out".
    """
    forms = _FORMS.sub(lambda match: match[1 if number == 1 else 2], text)
    return f"{number:,} {forms}"


def first_of(texts: Iterable[str]) -> str:
    """Return the first five texts of a list, and how many more there are: "a, b and 2 more"."""
    values = list(texts)
    more = f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else ""
    return ", ".join(values[:_SHOWN]) + more


def device_text(name: str) -> str:
    """Return the name of a device for readers; records have "1 threads"."""
    return _ONE_THREAD.sub("1 thread", name)
