"""Import of texts of one's own, from files or folders: columns, checks, splits."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from longspan.data.class_folders import find_split_folders
from longspan.data.import_rows import store_rows
from longspan.data.own_classes import check_shared, count_classes
from longspan.data.own_splits import (
    DROPPED,
    NAMES,
    TEST,
    TRAIN,
    VALIDATION,
    Assignment,
    assign_splits,
)
from longspan.data.own_targets import Targets, parse_classes, parse_numbers
from longspan.data.own_texts import OWN_TEXTS, TEXTS, OwnDescription
from longspan.data.table_folders import find_tables
from longspan.data.text_files import FileFormat, Source, TextFile, read_text_file
from longspan.data.tokenizers import split_words
from longspan.errors import DataError, OptionError
from longspan.results.reading import check_folder_name

HELD_OUT_SHARE = 0.1
HeldOut = dict[int, float | Source]  # share of the texts to split, or where they are, by split
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_COVERED = 95  # percentile of the lengths that recipes cover


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """Columns, splits and format of an import.

    Attributes:
        text: column of the texts.
        target: column of the labels, or of the numbers to predict.
        is_regression: whether `target` contains numbers to predict.
        pair: column of second texts.
        validation: share of the different texts to hold out, or a file; None: the folder of the
            split, if there is one, else a tenth.
        test: likewise.
        drop_empty: leave rows out whose text or target is empty.
        file_format: format of all files.
    """

    text: str
    target: str
    is_regression: bool = False
    pair: str | None = None
    validation: float | Path | None = None
    test: float | Path | None = None
    drop_empty: bool = False
    file_format: FileFormat = dataclasses.field(default_factory=FileFormat)

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of texts."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


def import_texts(
    cache: Path, name: str, path: Path, request: ImportRequest, *, replace: bool = False
) -> OwnDescription:
    """Read a file, split its rows and store them; nothing is written if a check fails.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        path: CSV, TSV, JSON or parquet file; folder of such files, with the splits in their names;
            or folder with a subfolder for each class, possibly below the folders of the splits.
        request: columns, splits and format.
        replace: replace another import of the same name.

    Raises:
        OptionError: the name or a share is invalid, or the name is taken.
        DataError: a file is missing or malformed, or contains empty texts or unusable targets.
        RunError: the cache cannot be written.
    """
    check_task_name(name)
    source, held_out = find_splits(path, request)
    files = read_files(source, held_out, request.file_format)
    rows = collect_rows(files, request)
    where = f"{path}: column {request.target!r}"
    if request.is_regression:
        targets = parse_numbers(rows.targets, where, rows.places)
    else:
        targets = parse_classes(rows.targets, where)
    shares = {split: x for split, x in held_out.items() if isinstance(x, int | float)}
    labels = targets.values if targets.classes else None
    assigned = assign_splits(rows.texts, rows.given, shares, labels)
    check_filled(assigned.splits, where)
    counts = _count_classes(targets, assigned.splits, where)
    if len(np.unique(targets.values[assigned.splits == TRAIN])) < 2:
        raise DataError(f"{where}: all training rows have one target; add rows with others")
    described = OwnDescription(
        name=name,
        files=checksums(files.values()),
        columns=_columns(request),
        class_counts=counts,
        spellings={name: list(found) for name, found in targets.spellings.items()},
        **_describe_rows(rows, targets, assigned),
        rows_sha256="",
    )
    table = _make_table(rows.texts, targets.values, assigned.splits)
    path = OWN_TEXTS.path(cache, name) / TEXTS
    return store_rows(OWN_TEXTS, path, table, described, replace=replace)


def checksums(files: Iterable[TextFile]) -> dict[str, str]:
    """Return the sha256 of each file by name; those of one name are named with their folder."""
    shards = [shard for file in files for shard in file.shards or (file,)]
    names = [shard.path.name for shard in shards]
    return {
        x.path.name if names.count(x.path.name) == 1 else str(x.path): x.content_sha256()
        for x in shards
    }


def check_task_name(name: str) -> None:
    """Refuse names that are no names of files or of options.

    Raises:
        OptionError: the name has other characters, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"--name must have 1 to 64 lower-case letters, digits, - and _, got {name!r}"
        )
    check_folder_name("task", name)


def find_splits(path: Path, request: ImportRequest) -> tuple[Source, HeldOut]:
    """Return the file or folder to split, and where the texts of the other splits come from.

    Raises:
        DataError: a folder that is given for a split has others alone.
    """
    folders = _split_sources(path)
    # What is given takes precedence over a folder of the split.
    held_out = {
        split: folders.get(split, HELD_OUT_SHARE) if given is None else _choose_split(given, split)
        for split, given in ((VALIDATION, request.validation), (TEST, request.test))
    }
    return folders.get(TRAIN, path), held_out


def requested_shares(path: Path, request: ImportRequest) -> dict[str, float]:
    """Return the share of the texts to hold out, of each split that has no source of its own.

    Raises:
        DataError: as `find_splits`.
    """
    _, held_out = find_splits(path, request)
    return {NAMES[n]: x for n, x in held_out.items() if isinstance(x, int | float)}


def _split_sources(path: Path) -> dict[int, Source]:
    """Return the folder or the tables of each split in a folder; nothing of a file."""
    return {**(find_split_folders(path) or find_tables(path))} if path.is_dir() else {}


def _choose_split(given: float | Path, split: int) -> float | Source:
    """Return what is given for a split; of a folder with several splits, the one of that name.

    Raises:
        DataError: the folder lacks it.
    """
    splits = _split_sources(given) if isinstance(given, Path) else {}
    if len(splits) < 2:
        return given
    if split not in splits:
        name = NAMES[split]
        raise DataError(
            f"--{name} {given}: expected texts of {name}, got a folder of the splits "
            f"{', '.join(NAMES[x] for x in sorted(splits))}; pass the file or folder of one of "
            "them, or a share such as 0.1"
        )
    return splits[split]


def read_files(source: Source, held_out: HeldOut, file_format: FileFormat) -> dict[int, TextFile]:
    """Return the files of an import by the split of their rows; `TRAIN` is the one to split.

    Raises:
        OptionError: a share is invalid.
        DataError: a file is missing or malformed.
    """
    shares = {NAMES[n]: x for n, x in held_out.items() if isinstance(x, int | float)}
    for name, share in shares.items():
        if not 0 < share < 1:
            raise OptionError(f"--{name} must be a share between 0 and 1 or a file, got {share:g}")
    if sum(shares.values()) >= 1:
        raise OptionError(
            f"--validation and --test leave no text for training: {sum(shares.values()):g} of all"
        )
    sources = {n: x for n, x in held_out.items() if not isinstance(x, int | float)}
    return {n: read_text_file(x, file_format) for n, x in {TRAIN: source, **sources}.items()}


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of all files: texts, targets, location, split of their file, and those left out."""

    texts: list[tuple[str, ...]]
    targets: list[str]
    places: list[str]
    given: np.ndarray
    left_out: int


def collect_rows(files: dict[int, TextFile], request: ImportRequest) -> Rows:
    """Return the rows of all files; those without a text or target are refused or left out.

    Raises:
        DataError: a column is missing, or rows are empty that are not left out.
    """
    found: list[tuple[str, ...]] = []
    given: list[int] = []
    places: list[str] = []
    left_out = 0
    for split, file in files.items():
        columns = [file.column(name) for name in (*request.texts, request.target)]
        rows = list(zip(*columns, strict=True))
        empty = [number for number, row in enumerate(rows) if not all(row)]
        if empty and not request.drop_empty:
            raise DataError(
                f"{file.path} has an empty text or target in {file.show_rows(empty)}; correct "
                "them, or pass --drop-empty to leave these rows out"
            )
        left_out += len(empty)
        kept = [number for number, row in enumerate(rows) if all(row)]
        found += [rows[number] for number in kept]
        places += [file.locate(number) for number in kept]
        given += [split] * len(kept)
    if not found:
        raise DataError(f"{files[TRAIN].path} has no row with a text and a target")
    texts, targets = [row[:-1] for row in found], [row[-1] for row in found]
    return Rows(texts, targets, places, np.array(given, np.int8), left_out)


def check_filled(splits: np.ndarray, where: str) -> None:
    """Require rows in each split.

    Raises:
        DataError: one is empty.
    """
    for number, name in enumerate(NAMES):
        if not (splits == number).any():
            raise DataError(
                f"{where}: no row is left for {name}, as all of its texts are in another split; "
                "choose other files or shares"
            )


def _count_classes(targets: Targets, splits: np.ndarray, where: str) -> dict[str, list[int]]:
    """Return the rows of each class, by split; nothing of numbers.

    Raises:
        DataError: a held-out split has no class of training.
    """
    if not targets.classes:
        return {}
    counts = count_classes(splits, targets.values, len(targets.classes))
    check_shared(counts, targets.classes, where)
    return counts


def _columns(request: ImportRequest) -> dict[str, str]:
    pair = {} if request.pair is None else {"pair": request.pair}
    return {"text": request.text, **pair, "target": request.target}


def _describe_rows(rows: Rows, targets: Targets, assigned: Assignment) -> dict[str, Any]:
    """Return the fields of a description that follow from the rows."""
    splits, training = assigned.splits, assigned.splits == TRAIN
    numbers = np.array([-1.0, 1.0]) if targets.classes else targets.values[training]
    return {
        "classes": list(targets.classes),
        "sizes": {x: int((splits == n).sum()) for n, x in enumerate(NAMES)},
        "counts": {
            "empty": rows.left_out,
            "in_another_split": int((splits == DROPPED).sum()),
            "repeated": assigned.repeated,
            "unseen": 0 if not targets.classes else _count_unseen(splits, targets.values),
        },
        **covering_lengths([rows.texts[row] for row in np.flatnonzero(training)]),
        "mean": float(numbers.mean()),
        "deviation": float(numbers.std()),
    }


def _count_unseen(splits: np.ndarray, labels: np.ndarray) -> int:
    """Count the held-out rows whose class is not in training."""
    is_held_out = (splits == VALIDATION) | (splits == TEST)
    return int((~np.isin(labels[is_held_out], labels[splits == TRAIN])).sum())


def covering_lengths(texts: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return the 95th percentile of the words and of the bytes of some texts."""
    encoded = [text.encode() for row in texts for text in row]
    counts = {
        "words": [len(split_words(text, len(text))) for text in encoded],
        "bytes": [len(text) for text in encoded],
    }
    return {name: max(1, int(np.percentile(x, _COVERED))) for name, x in counts.items()}


def _make_table(texts: list[tuple[str, ...]], targets: np.ndarray, splits: np.ndarray) -> pa.Table:
    """Return the kept rows, sorted by text: the order of the file has no effect."""
    order = sorted(np.flatnonzero(splits != DROPPED), key=lambda row: (texts[row], targets[row]))
    names = ("text", "pair")[: len(texts[0])]
    columns = {name: [texts[row][n] for row in order] for n, name in enumerate(names)}
    return pa.table({"split": splits[order], **columns, "target": targets[order]})
