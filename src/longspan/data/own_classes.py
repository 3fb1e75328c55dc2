"""Classes of the splits of an import: what each split holds, and what may be wrong with it."""

import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

from longspan.data.own_splits import NAMES, TEST, TRAIN, VALIDATION
from longspan.errors import DataError
from longspan.wording import counted, first_of

ClassCounts = Mapping[str, Sequence[int]]  # rows of each class, by split
_EXCESS = 1.5  # times the share that was asked for, above which a note says so


def count_classes(splits: np.ndarray, labels: np.ndarray, num_classes: int) -> dict[str, list[int]]:
    """Return the rows of each class, by split."""
    return {
        name: np.bincount(labels[splits == number], minlength=num_classes).tolist()
        for number, name in enumerate(NAMES)
    }


def check_shared(counts: ClassCounts, classes: Sequence[str], where: str) -> None:
    """Refuse a held-out split that has no class of training.

    Args:
        counts: rows of each class, by split.
        classes: name of each class.
        where: file and column, for the message.

    Raises:
        DataError: there is one.
    """
    train = _present(counts, NAMES[TRAIN])
    for split in (NAMES[VALIDATION], NAMES[TEST]):
        held_out = _present(counts, split)
        if not train & held_out:
            raise DataError(
                f"{where}: train and {split} have no class in common: train has "
                f"{first_of(repr(classes[x]) for x in sorted(train))}, {split} has "
                f"{first_of(repr(classes[x]) for x in sorted(held_out))}; write the classes "
                "alike in all files"
            )


def describe_splits(counts: ClassCounts, classes: Sequence[str]) -> str:
    """Return the rows of each class in each split as one line, frequent classes first."""
    order = np.argsort(-np.sum(list(counts.values()), axis=0), kind="stable").tolist()
    return "; ".join(
        f"{split} {first_of(f'{classes[x]!r} {own[x]:,}' for x in order)}"
        for split, own in counts.items()
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
        f"{first_of(map(repr, found))} are one class, {name!r}" for name, found in spellings.items()
    ]
    notes += [
        f"the classes {first_of(map(repr, found))} look alike and are {len(found)} classes; if "
        "they are one, write them alike and import again"
        for found in find_look_alikes(classes)
    ]
    effects = {
        NAMES[TRAIN]: "no model learns it|them",
        NAMES[VALIDATION]: "the selected checkpoint does not depend on it|them",
        NAMES[TEST]: "no score covers it|them",
    }
    for split, own in counts.items():
        if absent := [x for x, number in enumerate(own) if not number]:
            named = first_of(f"{classes[x]!r} ({_rows_elsewhere(counts, x)})" for x in absent)
            effect = counted(len(absent), effects[split]).partition(" ")[2]
            words = counted(len(absent), "class|classes").partition(" ")[2]
            notes.append(f"{split} has no row of the {words} {named}: {effect}")
    return notes


def describe_shares(sizes: Mapping[str, int], shares: Mapping[str, float]) -> list[str]:
    """Return the splits that hold out far more rows than were asked for.

    A class with few texts has one in each split all the same, which adds up over many classes.

    Args:
        sizes: rows by split.
        shares: share that was asked for, of each split that was drawn from the training rows.
    """
    pool = sizes[NAMES[TRAIN]] + sum(sizes[split] for split in shares)
    return [
        f"{split} holds out {100 * sizes[split] / pool:.0f} % of the rows, and a share of "
        f"{share:g} was asked for: each class with enough texts has one in every split; add texts "
        "to the small classes, or pass a file of held-out texts"
        for split, share in shares.items()
        if sizes[split] > _EXCESS * share * pool
    ]


def find_look_alikes(classes: Sequence[str]) -> list[list[str]]:
    """Return the classes that differ in letter case, white space or the form of a number alone."""
    found: dict[object, list[str]] = {}
    for name in classes:
        found.setdefault(_appearance(name), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def _appearance(name: str) -> object:
    """Return what is equal for names that look alike."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    # Format characters, such as a soft hyphen, are invisible.
    kept = (x for x in folded if not x.isspace() and unicodedata.category(x) != "Cf")
    text = "".join(kept)
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def _present(counts: ClassCounts, split: str) -> set[int]:
    return {x for x, number in enumerate(counts[split]) if number}


def _rows_elsewhere(counts: ClassCounts, label: int) -> str:
    """Return the rows of a class in the splits that have some."""
    return ", ".join(f"{own[label]:,} in {split}" for split, own in counts.items() if own[label])
