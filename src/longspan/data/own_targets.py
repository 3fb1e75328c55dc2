"""Targets of texts of one's own: names of classes as labels, or numbers."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from longspan.data.text_files import show_rows
from longspan.errors import DataError

# Above this number, and half the rows, values of a label column are numbers or identifiers.
_FEW_CLASSES = 10
_MOST_CLASSES = 1 << 16  # that are stored as uint16
_INTEGER = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_BOOLEANS = ("true", "false")


@dataclasses.dataclass(frozen=True)
class Targets:
    """Targets of all rows.

    Attributes:
        values: class of each row, uint16, or number of each row, float64.
        classes: name of each class; none of numbers.
        spellings: spellings of each class that the files write in several ways, by its name.
    """

    values: np.ndarray
    classes: tuple[str, ...] = ()
    spellings: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def parse_classes(texts: Sequence[str], where: str) -> Targets:
    """Number the classes: in numerical order if all names are numbers, else in alphabetical order.

    A class that is written as 1 and as 1.0, or as True and as true, is one.

    Args:
        texts: name of the class of each row.
        where: file and column, for messages.

    Raises:
        DataError: there is one class, nearly every row has a class of its own, or there are more
            classes than can be stored.
    """
    written: dict[str, list[str]] = {}
    for text in sorted(set(texts)):
        written.setdefault(_one_spelling(text), []).append(text)
    spellings = {name: tuple(found) for name, found in written.items() if len(found) > 1}
    names = [name if name in spellings else found[0] for name, found in written.items()]
    names.sort(key=_numerical(names) or str)
    if len(names) < 2:
        raise DataError(f"{where} has one class ({names[0]!r}); expected two or more")
    if len(names) > max(_FEW_CLASSES, len(texts) // 2):
        raise DataError(
            f"{where} has {len(names):,} different values in {len(texts):,} rows; to predict "
            "numbers pass --target in place of --label"
        )
    if len(names) > _MOST_CLASSES:
        raise DataError(
            f"{where} has {len(names):,} classes; expected at most {_MOST_CLASSES:,}. Join rare "
            "classes, or pass --target in place of --label to predict numbers"
        )
    numbers = {_one_spelling(name): label for label, name in enumerate(names)}
    values = np.array([numbers[_one_spelling(text)] for text in texts], np.uint16)
    return Targets(values, tuple(names), spellings)


def _one_spelling(text: str) -> str:
    """Return an integer without its fraction of zeros, and a boolean in lower case.

    Tables write 1 as 1.0 if the column has a missing value, and booleans as True or true. Other
    equal numbers, such as the versions 1.1 and 1.10, may be two classes.
    """
    if text.lower() in _BOOLEANS:
        return text.lower()
    found = _INTEGER.fullmatch(text)
    return found[1] if found else text


def parse_numbers(texts: Sequence[str], where: str, places: Sequence[str] = ()) -> Targets:
    """Return the numbers of a column.

    Args:
        texts: number of each row.
        where: file and column, for messages.
        places: location of each row, for messages; none: rows are counted from 1.

    Raises:
        DataError: a value is no finite number, or all are equal; the message names the rows.
    """
    values = [_number(text) for text in texts]
    if wrong := [row for row, value in enumerate(values) if not math.isfinite(value)]:
        raise DataError(
            f"{where} must contain finite numbers, got {texts[wrong[0]]!r:.60} "
            f"({show_rows(wrong, places)}); correct them, or pass --label to predict classes"
        )
    if len(set(values)) < 2:
        raise DataError(f"{where} has one value ({texts[0]}); expected two or more")
    return Targets(np.array(values, np.float64))


def _numerical(texts: Sequence[str]):
    """Return a sort key by number and then by text, if all texts are numbers."""
    if all(math.isfinite(_number(text)) for text in texts):
        return lambda text: (float(text), text)
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
