"""Import of texts with a class, a number or a summary each: columns, checks, splits.

An import is a folder `<cache>/own/<name>`: texts.parquet has the split, the texts and the target of
each row, and import.json the description. The original files are not needed afterwards.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.imports.stored import (
    ImportDescription,
    check_task_name,
    count_splits,
    covered,
    load_table,
    resolve_splits,
    table_sha256,
)
from longspan.data.imports.targets import (
    SEPARATOR,
    Targets,
    parse_classes,
    parse_labels,
    parse_numbers,
    read_labels,
)
from longspan.data.own_splits import (
    DROPPED,
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    Assignment,
    Split,
    assign_splits,
)
from longspan.data.sources.folders import (
    FOLDERS,
    find_split_folders,
    find_tables,
    has_columns,
)
from longspan.data.sources.rows import hub_splits
from longspan.data.sources.table import Source, Table, read_table
from longspan.data.sources.text import FileFormat
from longspan.data.tokenizers import split_words
from longspan.errors import DataError, OptionError
from longspan.metrics.summaries import has_token

Kind = Literal["class", "labels", "number", "summary"]
HELD_OUT_SHARE = 0.1
# Texts of more bytes a word are taken for a script without spaces.
_BYTES_PER_WORD = 24
ROWS = "texts.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextsDescription(ImportDescription):
    """Description of an import of texts, as stored.

    `sizes` are rows. `counts` are rows that were left out because a text or target is empty, or
    because the text is in another split; kept rows whose text is in an earlier row of the split
    too; held-out rows whose class is not in training; and summaries without a token under the rule
    `unicode` of ROUGE.

    Attributes:
        kind: what a row has besides its text.
        files: sha256 of each file that was read, by name.
        columns: columns that were read, by role: text, pair, target.
        shares: shares of the texts that were held out, by split; none of a split with a source.
        classes: names of the classes.
        class_counts: rows of each class, by split.
        spellings: spellings of each class that the files write in several ways, by its name.
        words, bytes: 95th percentile of the lengths of the training texts.
        summary_words: likewise of their summaries; 0: there are none.
        mean, deviation: of the training numbers; 0 and 1 for classes and summaries.
    """

    folder = "own"
    noun = "import of texts"

    kind: Kind
    files: dict[str, str]
    columns: dict[str, str]
    shares: dict[str, float]
    classes: list[str]
    class_counts: dict[str, list[int]]
    spellings: dict[str, list[str]]
    words: int
    bytes: int
    summary_words: int
    mean: float
    deviation: float
    schema: int = 3

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers."""
        return self.kind == "number"

    @property
    def has_words(self) -> bool:
        """False if the texts have a script without spaces."""
        return self.bytes <= _BYTES_PER_WORD * self.words

    @property
    def is_pair(self) -> bool:
        """True if an example has two texts."""
        return "pair" in self.columns

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal for two imports of the same rows: a class is a number in them."""
        return (self.rows_sha256, self.classes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextsRequest:
    """Columns, splits and format of an import.

    Attributes:
        text: column of the texts.
        target: column of the classes, of the numbers to predict, or of the summaries; of labels,
            the column that has them all, or the columns of each, with commas between them.
        kind: which of them it has.
        separator: separator of the labels in their column.
        pair: column of second texts.
        validation: share of the different texts to hold out, or their source; None: that of the
            split in a folder, if there is one, else a tenth.
        test: likewise; of classes, labels and numbers 0: there is no test split.
        drop_empty: leave rows out whose text or target is empty.
        form: format of all files.
    """

    text: str
    target: str
    kind: Kind = "class"
    pair: str | None = None
    separator: str = SEPARATOR
    validation: float | Source | None = None
    test: float | Source | None = None
    drop_empty: bool = False
    form: FileFormat = dataclasses.field(default_factory=FileFormat)

    @property
    def columns(self) -> dict[str, str]:
        """Columns by role, that of the target last."""
        pair = {} if self.pair is None else {"pair": self.pair}
        return {"text": self.text, **pair, "target": self.target}


def import_texts(
    cache: Path, name: str, source: Source, request: TextsRequest, *, replace: bool = False
) -> TextsDescription:
    """Read a source, split its rows and store them; nothing is written if a check fails.

    Equal texts are in one split.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        source: table; folder or pattern of tables, with the splits in their names; "hf:NAME"; or
            folder with a subfolder for each class, possibly below the folders of the splits.
        request: columns, splits and format.
        replace: replace another import of the same name.

    Raises:
        OptionError: the name or a share is invalid, or the name is taken.
        DataError: a file is missing or malformed, or contains empty texts or unusable targets.
        RunError: the cache cannot be written.
    """
    check_task_name(name)
    if request.kind == "summary" and isinstance(source, Path) and not has_columns(source):
        raise OptionError(
            f"{source} is a folder without tables; import summaries takes a file with two columns"
        )
    sources, shares = _resolve_splits(source, request)
    tables = {split: read_table(x, request.form) for split, x in sources.items()}
    rows = _collect_rows(tables, request)
    where = f"{source}: column {request.target!r}"
    targets = _parse_targets(rows, request, where, tables[TRAIN].names)
    assignment = _split_rows(rows, targets, {*sources, *shares}, shares, request.kind, where)
    splits = assignment.splits
    table = _make_table(rows, targets, splits, request.kind)
    description = TextsDescription(
        name=name,
        kind=request.kind,
        rows_sha256=table_sha256(table),
        sizes=count_splits(splits),
        counts={
            "repeated": int(assignment.is_repeated.sum()),
            **_count_odd(rows, targets, splits, request.kind),
        },
        files=_checksums(tables.values()),
        columns=request.columns,
        shares={SPLITS[split]: share for split, share in shares.items()},
        **targets.describe(splits),
        **_describe_training(rows, targets, np.flatnonzero(splits == TRAIN), request.kind),
    )

    def write(folder: Path) -> TextsDescription:
        pq.write_table(table, folder / ROWS)
        return description

    return TextsDescription.store(cache, name, write, replace=replace)


@dataclasses.dataclass(frozen=True)
class TextsSplit:
    """Rows of one split: texts, of a pair both, and targets: classes, numbers or summaries."""

    texts: list[tuple[str, ...]]
    targets: Any


def load_splits(folder: Path, description: TextsDescription) -> dict[Split, TextsSplit]:
    """Load the rows of an import by split; there may be no test split.

    Raises:
        DataError: they are missing or have changed.
    """
    table = load_table(folder / ROWS, description.rows_sha256)
    columns = [table[x].to_pylist() for x in ("text", "pair") if x in table.column_names]
    texts = list(zip(*columns, strict=True))
    targets, splits = table.column(table.num_columns - 1).to_numpy(), table["split"].to_numpy()
    rows_by_split = {}
    for number, name in enumerate(SPLITS):
        if len(rows := np.flatnonzero(splits == number)):
            rows_by_split[name] = TextsSplit([texts[row] for row in rows], targets[rows])
    return rows_by_split


def join_splits(splits: Mapping[Split, TextsSplit]) -> TextsSplit:
    """Return the rows of all splits as one."""
    targets = np.concatenate([split.targets for split in splits.values()])
    return TextsSplit([row for split in splits.values() for row in split.texts], targets)


def has_files(description: TextsDescription, source: Source, form: FileFormat) -> bool:
    """Return whether the files of a source, as they are now, are among those of an import.

    Raises:
        DataError: a file is missing or malformed.
    """
    sources = {TRAIN: source, **split_sources(source)}
    found = _checksums(read_table(x, form) for x in sources.values())
    return set(found.values()) <= set(description.files.values())


def _checksums(tables: Iterable[Table]) -> dict[str, str]:
    """Return the sha256 of each file by name; those of one name are named with their folder."""
    shards = [shard for table in tables for shard in table.shards or (table,)]
    names = [shard.path.name for shard in shards]
    return {
        x.path.name if names.count(x.path.name) == 1 else str(x.path): x.content_sha256()
        for x in shards
    }


def _resolve_splits(
    source: Source, request: TextsRequest
) -> tuple[dict[int, Source], dict[int, float]]:
    """Return where each split comes from, and shares of training to hold out for the others.

    Raises:
        OptionError: a share is invalid.
        DataError: a source that is given for a split has others alone.
    """
    sources_by_split = split_sources(source)
    options = {
        split: None if option is None else _choose_split(option, split)
        for split, option in ((VALIDATION, request.validation), (TEST, request.test))
    }
    omittable = () if request.kind == "summary" else (TEST,)
    sources, shares = resolve_splits(options, sources_by_split, HELD_OUT_SHARE, "text", omittable)
    return {TRAIN: sources_by_split.get(TRAIN, source), **sources}, shares


def split_sources(source: float | Source) -> dict[int, Source]:
    """Return the folder, tables or data set of each split; nothing of a file."""
    if isinstance(source, str):
        split_names = {FOLDERS[x]: x for x in hub_splits(source) if x in FOLDERS}
        name = source.partition("#")[0]
        return {split: f"{name}#{x}" for split, x in split_names.items()}
    if not isinstance(source, Path) or not source.is_dir():
        return {}
    return {**(find_split_folders(source) or find_tables(source))}


def _choose_split(option: float | Source, split: int) -> float | Source:
    """Return the share or source of a split; of a folder with several splits, the one of that name.

    Raises:
        DataError: the folder lacks it.
    """
    splits = split_sources(option)
    if len(splits) < 2:
        return option
    if split not in splits:
        name = SPLITS[split]
        raise DataError(
            f"--{name} {option}: expected texts of {name}, got a folder of the splits "
            f"{', '.join(SPLITS[x] for x in sorted(splits))}; pass the file or folder of one of "
            "them, or a share such as 0.1"
        )
    return splits[split]


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of all files: texts, targets, location, split of their file, and those left out."""

    texts: list[tuple[str, ...]]
    targets: list[str]
    places: list[str]
    initial_splits: np.ndarray
    left_out: int


def _collect_rows(tables: Mapping[int, Table], request: TextsRequest) -> _Rows:
    """Return the rows of all files; those without a text or target are refused or left out.

    Raises:
        DataError: a column is missing, or rows are empty that are not left out.
    """
    complete_rows: list[tuple[str, ...]] = []
    splits: list[int] = []
    places: list[str] = []
    left_out = 0
    for split, table in tables.items():
        rows = list(zip(*_read_columns(table, request), strict=True))
        is_partial = request.kind == "labels"  # a text may have none
        empty = [n for n, row in enumerate(rows) if not all(row[:-1] if is_partial else row)]
        if empty and not request.drop_empty:
            raise DataError(
                f"{table.path} has an empty text or target in {table.show_rows(empty)}; correct "
                "them, or pass --drop-empty to leave these rows out"
            )
        left_out += len(empty)
        numbers = sorted(set(range(len(rows))) - set(empty))
        complete_rows += [rows[number] for number in numbers]
        places += [table.locate(number) for number in numbers]
        splits += [split] * len(numbers)
    if not complete_rows:
        raise DataError(f"{tables[TRAIN].path} has no row with a text and a target")
    texts, targets = [row[:-1] for row in complete_rows], [row[-1] for row in complete_rows]
    return _Rows(texts, targets, places, np.array(splits, np.int8), left_out)


def _read_columns(table: Table, request: TextsRequest) -> list[list[str]]:
    """Return the columns of texts and targets; several columns of labels are joined to one."""
    *texts, target = request.columns.values()
    columns = [table.column(name) for name in texts]
    if request.kind == "labels":
        return [*columns, read_labels(table, target, request.separator)]
    return [*columns, table.column(target)]


def _parse_targets(
    rows: _Rows, request: TextsRequest, where: str, columns: Collection[str]
) -> Targets:
    if request.kind == "class":
        return parse_classes(rows.targets, where)
    if request.kind == "labels":
        expected = () if request.target in columns else request.target.split(",")
        return parse_labels(rows.targets, where, request.separator, expected)
    if request.kind == "number":
        return parse_numbers(rows.targets, where, rows.places)
    return Targets(np.array(rows.targets, object))


def _split_rows(
    rows: _Rows,
    targets: Targets,
    wanted: set[int],
    shares: Mapping[int, float],
    kind: Kind,
    where: str,
) -> Assignment:
    """Return the splits of the rows; the wanted ones have rows, which training can learn from."""
    assignment = assign_splits(rows.texts, rows.initial_splits, shares, targets.strata)
    if (empty := assignment.find_empty(sorted(wanted))) is not None:
        raise DataError(
            f"{where}: no row is left for {empty}, as all of its texts are in another split; "
            "choose other files or shares"
        )
    splits = assignment.splits
    targets.check_shared(splits, where)
    if kind != "summary" and len(np.unique(targets.values[splits == TRAIN])) < 2:
        raise DataError(f"{where}: all training rows have one target; add rows with others")
    return assignment


def _count_odd(rows: _Rows, targets: Targets, splits: np.ndarray, kind: Kind) -> dict[str, int]:
    """Count rows that were left out, of a class that training lacks, or without a token."""
    counts = {"empty": rows.left_out, "in_another_split": int((splits == DROPPED).sum())}
    if kind == "summary":
        used_rows = np.flatnonzero(splits != DROPPED)
        return {**counts, "without_token": sum(not has_token(rows.targets[x]) for x in used_rows)}
    held_out = np.isin(splits, (VALIDATION, TEST))
    is_learned = np.isin(targets.values, targets.values[splits == TRAIN])
    return {**counts, "unseen": int((held_out & ~is_learned).sum()) if kind == "class" else 0}


def _describe_training(
    rows: _Rows, targets: Targets, training: np.ndarray, kind: Kind
) -> dict[str, Any]:
    """Return lengths of the training texts and summaries, and mean and deviation of numbers."""
    texts = [text.encode() for row in training for text in rows.texts[row]]
    summaries = [rows.targets[row].encode() for row in training] if kind == "summary" else []
    # The last bit of a sum depends on its order.
    numbers = np.sort(targets.values[training]) if kind == "number" else np.array([-1.0, 1.0])
    return {
        "words": covered([len(split_words(x, len(x))) for x in texts]),
        "bytes": covered([len(x) for x in texts]),
        "summary_words": covered([len(split_words(x, len(x))) for x in summaries]),
        "mean": float(numbers.mean()),
        "deviation": float(numbers.std()),
    }


def _make_table(rows: _Rows, targets: Targets, splits: np.ndarray, kind: Kind) -> pa.Table:
    """Return the kept rows, sorted by text: the order of the file has no effect."""
    texts, values = rows.texts, targets.values
    order = sorted(np.flatnonzero(splits != DROPPED), key=lambda row: (texts[row], values[row]))
    names = ("text", "pair")[: len(texts[0])]
    columns = {name: [texts[row][n] for row in order] for n, name in enumerate(names)}
    last = "summary" if kind == "summary" else "target"
    return pa.table({"split": splits[order], **columns, last: values[order]})
