"""Targets of texts of one's own: classes or numbers, and what may be wrong with them."""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from longspan.data.own_splits import SPLITS, TEST, TRAIN, VALIDATION
from longspan.data.sources.table import Table
from longspan.errors import DataError
from longspan.wording import counted, first_of

# Above this number, and half the rows, values of a label column are numbers or identifiers.
_FEW_CLASSES = 10
_MOST_CLASSES = 1 << 16  # that are stored as uint16
_MOST_LABELS = 62  # of which any number applies to a text: bits of an int64
SEPARATOR = ";"  # between the labels of a text
_TRUE, _FALSE = ("1", "1.0", "true", "yes"), ("", "0", "0.0", "false", "no")
_INTEGER = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_BOOLEANS = ("true", "false")
ClassCounts = Mapping[str, Sequence[int]]  # rows of each class, by split
_EXCESS = 1.5  # times the share that was asked for, above which a note says so


@dataclasses.dataclass(frozen=True)
class Targets:
    """Targets of all rows.

    Attributes:
        values: class of each row, uint16, its number, float64, or its summary; its labels, int64,
            of which bit n is set if label n applies.
        classes: name of each class; none of other targets.
        has_labels: True if any number of the classes applies to a row.
        spellings: spellings of each class that the files write in several ways, by its name.
    """

    values: np.ndarray
    classes: tuple[str, ...] = ()
    spellings: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    has_labels: bool = False

    @property
    def strata(self) -> np.ndarray | None:
        """Class of each row, of which each split has its share; of labels, the rarest one."""
        if not self.has_labels:
            return self.values if self.classes else None
        matrix = label_matrix(self.values, len(self.classes))
        by_rarity = np.argsort(matrix.sum(0), kind="stable")
        ranks = np.where(matrix.any(1), matrix[:, by_rarity].argmax(1), len(by_rarity))
        return ranks.astype(np.int64)

    def describe(self, splits: np.ndarray) -> dict[str, Any]:
        """Return the fields of a description: classes, their rows in each split, spellings."""
        return {
            "classes": list(self.classes),
            "class_counts": self.counts(splits),
            "spellings": {name: list(variants) for name, variants in self.spellings.items()},
        }

    def counts(self, splits: np.ndarray) -> dict[str, list[int]]:
        """Return the rows of each class, by split that has rows; nothing of other targets."""
        size = len(self.classes)
        rows = {x: splits == n for n, x in enumerate(SPLITS if size else ()) if n in splits}
        if self.has_labels:
            matrix = label_matrix(self.values, size)
            return {name: matrix[chosen].sum(0).tolist() for name, chosen in rows.items()}
        return {
            name: np.bincount(self.values[chosen], minlength=size).tolist()
            for name, chosen in rows.items()
        }

    def check_shared(self, splits: np.ndarray, where: str) -> None:
        """Refuse a held-out split that has no class of training.

        Args:
            splits: split of each row.
            where: file and column, for the message.

        Raises:
            DataError: there is one.
        """
        present = {
            split: {self.classes[x] for x, number in enumerate(counts) if number}
            for split, counts in self.counts(splits).items()
        }
        train = present.get(SPLITS[TRAIN], set())
        for split, held_out in present.items():
            if not train & held_out and len(self.values) < len(SPLITS) * len(self.classes):
                raise DataError(
                    f"{where}: {counted(len(self.values), 'text|texts')} of {len(self.classes)} "
                    f"classes cannot fill train, validation and test; add texts until a class has "
                    f"{len(SPLITS)} different ones"
                )
            if not train & held_out:
                raise DataError(
                    f"{where}: train and {split} have no class in common: train has "
                    f"{self._names(train)}, {split} has {self._names(held_out)}; write the "
                    "classes alike in all files"
                )

    def _names(self, names: set[str]) -> str:
        return first_of(repr(name) for name in self.classes if name in names)


def label_matrix(values: np.ndarray, count: int) -> np.ndarray:
    """Return which of some labels apply to each row, (N, count) bool, from their bits."""
    return (values[:, None] >> np.arange(count)) % 2 == 1


def parse_labels(
    texts: Sequence[str], where: str, separator: str, expected: Sequence[str] = ()
) -> Targets:
    """Return the labels of each row, any number of which applies.

    Args:
        texts: names of the labels of each row, with a separator between them.
        where: file and column, for messages.
        separator: separator.
        expected: names of labels that some rows must have.

    Raises:
        DataError: there are fewer than two labels, or more than can be stored, or no row has one
            that is expected.
    """
    rows = [{x.strip() for x in text.split(separator)} - {""} for text in texts]
    names = sorted(set().union(*rows))
    if absent := [x for x in expected if x.strip() not in names]:
        raise DataError(
            f"{where}: the label {first_of(map(repr, absent))} applies to no text; omit its column"
        )
    if not 2 <= len(names) <= _MOST_LABELS:
        raise DataError(
            f"{where} has {counted(len(names), 'label|labels')} with the separator "
            f"{separator!r}; expected 2 to {_MOST_LABELS}. Pass another --separator, join rare "
            "labels, or omit it where each text has one class"
        )
    bits = {name: 1 << number for number, name in enumerate(names)}
    values = np.array([sum(bits[x] for x in row) for row in rows], np.int64)
    return Targets(values, tuple(names), has_labels=True)


def label_separator(names: Sequence[str]) -> str:
    """Return the separator between the labels of a text that is in no name of a label."""
    return next(_separators(names), SEPARATOR)


def _separators(names: Sequence[str]) -> Iterator[str]:
    """Return the separators that are in no name."""
    return (x for x in (SEPARATOR, *"|,/ ") if not any(x in name for name in names))


def separate_labels(texts: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Return the labels of each text, by the first separator that leaves known names alone."""
    known, first = set(names), None
    for separator in _separators(names):
        rows = [[x.strip() for x in text.split(separator) if x.strip()] for text in texts]
        if known.issuperset(x for row in rows for x in row):
            return rows
        first = first or rows
    return first or [[text] for text in texts]


def read_labels(table: Table, target: str, separator: str) -> list[str]:
    """Return the labels of each row; those of several columns are joined.

    Args:
        table: table, of which one column may have a comma in its name.
        target: column of the labels, or columns of one each, with commas between them.
        separator: separator of the labels.

    Raises:
        DataError: a column is missing, or see `join_labels`.
    """
    if target in table.names or "," not in target:
        return table.column(target)
    columns = {name: table.column(name) for name in target.split(",")}
    return join_labels(columns, str(table.path), separator)


def join_labels(columns: Mapping[str, Sequence[str]], where: str, separator: str) -> list[str]:
    """Return the names of the columns that are true in each row, joined.

    Raises:
        DataError: a value is neither true nor false, or a name has the separator.
    """
    for name, values in columns.items():
        if separator in name:
            raise DataError(
                f"{where}: the column {name!r} has the separator {separator!r} of labels in its "
                f"name; pass --separator with a character that no name has"
            )
        if wrong := next((x for x in values if x.lower() not in (*_TRUE, *_FALSE)), None):
            raise DataError(
                f"{where}: column {name!r} must be 0 or 1 in each row, to say whether the label "
                f"applies, got {wrong!r:.60}; name one column of labels with --separator"
            )
    rows = zip(*columns.values(), strict=True)
    return [
        separator.join(x for x, value in zip(columns, row, strict=True) if value.lower() in _TRUE)
        for row in rows
    ]


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
    variants_by_name: dict[str, list[str]] = {}
    for text in sorted(set(texts)):
        variants_by_name.setdefault(one_spelling(text), []).append(text)
    spellings = {
        name: tuple(variants) for name, variants in variants_by_name.items() if len(variants) > 1
    }
    names = [
        name if name in spellings else variants[0] for name, variants in variants_by_name.items()
    ]
    are_numbers = all(math.isfinite(read_number(name)) for name in names)
    names.sort(key=lambda name: (float(name) if are_numbers else 0.0, name))
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
    numbers = {one_spelling(name): label for label, name in enumerate(names)}
    values = np.array([numbers[one_spelling(text)] for text in texts], np.uint16)
    return Targets(values, tuple(names), spellings)


def one_spelling(text: str) -> str:
    """Return an integer without its fraction of zeros, and a boolean in lower case.

    Tables write 1 as 1.0 if the column has a missing value, and booleans as True or true. Other
    equal numbers, such as the versions 1.1 and 1.10, may be two classes.
    """
    if text.lower() in _BOOLEANS:
        return text.lower()
    match = _INTEGER.fullmatch(text)
    return match[1] if match else text


def parse_numbers(texts: Sequence[str], where: str, places: Sequence[str]) -> Targets:
    """Return the numbers of a column.

    Args:
        texts: number of each row.
        where: file and column, for messages.
        places: location of each row, for messages.

    Raises:
        DataError: a value is no finite number, all are equal, or their deviation is beyond what
            floating point can have; the message names the rows.
    """
    values = [read_number(text) for text in texts]
    if wrong := [row for row, value in enumerate(values) if not math.isfinite(value)]:
        raise DataError(
            f"{where} must contain finite numbers, got {texts[wrong[0]]!r:.60} "
            f"({first_of(places[row] for row in wrong)}); correct them, or pass --label to predict "
            "classes"
        )
    if len(set(values)) < 2:
        raise DataError(f"{where} has one value ({texts[0]}); expected two or more")
    numbers = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        deviation = numbers.std()
    if not 0 < deviation < math.inf:
        raise DataError(
            f"{where} has numbers from {min(values):g} to {max(values):g}, whose squares are "
            "beyond floating point; write them in another unit"
        )
    return Targets(numbers)


def read_number(text: str) -> float:
    """Return the number that a cell has; NaN if it has none, as 1_5, which Python reads as 15."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def describe_splits(counts: ClassCounts, classes: Sequence[str]) -> str:
    """Return the rows of each class in each split as one line, frequent classes first."""
    order = np.argsort(-np.sum(list(counts.values()), axis=0), kind="stable").tolist()
    return "; ".join(
        f"{split} {first_of(f'{classes[x]!r} {numbers[x]:,}' for x in order)}"
        for split, numbers in counts.items()
    )


def describe_classes(
    counts: ClassCounts, classes: Sequence[str], spellings: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return what may be wrong with the classes: one that a split lacks, or that is written twice.

    Args:
        counts: rows of each class, by split.
        classes: name of each class.
        spellings: spellings of each class that is written in several ways, by its name.
    """
    notes = [
        f"{first_of(map(repr, variants))} are one class, {name!r}"
        for name, variants in spellings.items()
    ]
    notes += [
        f"the classes {first_of(map(repr, names))} look alike and are {len(names)} classes; if "
        "they are one, write them alike and import again"
        for names in find_look_alikes(classes)
    ]
    effects: dict[str, str] = {
        SPLITS[TRAIN]: "no model learns it|them",
        SPLITS[VALIDATION]: "the selected checkpoint does not depend on it|them",
        SPLITS[TEST]: "no score covers it|them",
    }
    for split, numbers in counts.items():
        if absent := [x for x, number in enumerate(numbers) if not number]:
            listing = first_of(f"{classes[x]!r} ({_rows_elsewhere(counts, x)})" for x in absent)
            effect = counted(len(absent), effects[split]).partition(" ")[2]
            words = counted(len(absent), "class|classes").partition(" ")[2]
            notes.append(f"{split} has no row of the {words} {listing}: {effect}")
    return notes


def describe_shares(sizes: Mapping[str, int], shares: Mapping[str, float]) -> list[str]:
    """Return the splits that hold out far more rows than were asked for.

    A class with few texts has one in each split all the same, which adds up over many classes.

    Args:
        sizes: rows by split.
        shares: share that was asked for, of each split that was drawn from the training rows.
    """
    pool = sizes[SPLITS[TRAIN]] + sum(sizes[split] for split in shares)
    return [
        f"{split} holds out {100 * sizes[split] / pool:.0f} % of the rows, and a share of "
        f"{share:g} was asked for: each class with enough texts has one in every split; add texts "
        "to the small classes, or pass a file of held-out texts"
        for split, share in shares.items()
        if sizes[split] > _EXCESS * share * pool
    ]


def find_look_alikes(classes: Sequence[str]) -> list[list[str]]:
    """Return the classes that differ in letter case, white space or the form of a number alone."""
    groups: dict[object, list[str]] = {}
    for name in classes:
        groups.setdefault(_appearance(name), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _appearance(name: str) -> object:
    """Return what is equal for names that look alike."""
    characters = unicodedata.normalize("NFKC", name).casefold()
    # Format characters, such as a soft hyphen, are invisible.
    text = "".join(x for x in characters if not (x.isspace() or unicodedata.category(x) == "Cf"))
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def _rows_elsewhere(counts: ClassCounts, label: int) -> str:
    """Return the rows of a class in the splits that have some."""
    return ", ".join(
        f"{numbers[label]:,} in {split}" for split, numbers in counts.items() if numbers[label]
    )
