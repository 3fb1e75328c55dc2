"""Import of texts of one's own with their summaries, from files: columns, checks, splits."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from longspan.data.import_rows import store_rows
from longspan.data.own_import import (
    ImportRequest,
    check_filled,
    check_task_name,
    checksums,
    collect_rows,
    covering_lengths,
    find_splits,
    read_files,
)
from longspan.data.own_splits import DROPPED, NAMES, TRAIN, assign_splits
from longspan.data.summaries.stored import ROWS, SUMMARIES, SummariesDescription
from longspan.data.table_folders import has_columns
from longspan.errors import OptionError
from longspan.metrics.summaries import has_token


def import_summaries(
    cache: Path, name: str, path: Path, request: ImportRequest, *, replace: bool = False
) -> SummariesDescription:
    """Read a file, split its rows and store them; nothing is written if a check fails.

    Rows are split as those of `import_texts`: equal texts are in one split.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        path: CSV, TSV, JSON or parquet file, or folder of such files.
        request: columns, splits and format; the target is the summary.
        replace: replace another import of the same name.

    Raises:
        OptionError: the name or a share is invalid, or the name is taken.
        DataError: a file is missing or malformed, or contains empty texts or summaries.
        RunError: the cache cannot be written.
    """
    check_task_name(name)
    if not has_columns(path):
        raise OptionError(
            f"{path} is a folder without tables; import summaries takes a file with two columns"
        )
    source, held_out = find_splits(path, request)
    files = read_files(source, held_out, request.file_format)
    rows = collect_rows(files, request)
    shares = {split: x for split, x in held_out.items() if isinstance(x, int | float)}
    assigned = assign_splits(rows.texts, rows.given, shares)
    splits = assigned.splits
    check_filled(splits, str(path))
    training, kept = np.flatnonzero(splits == TRAIN), np.flatnonzero(splits != DROPPED)
    described = SummariesDescription(
        name=name,
        files=checksums(files.values()),
        columns={"text": request.text, "summary": request.target},
        sizes={split: int((splits == number).sum()) for number, split in enumerate(NAMES)},
        counts={
            "empty": rows.left_out,
            "in_another_split": int((splits == DROPPED).sum()),
            "repeated": assigned.repeated,
            "without_token": sum(not has_token(rows.targets[x]) for x in kept),
        },
        words=covering_lengths([rows.texts[row] for row in training])["words"],
        summary_words=covering_lengths([(rows.targets[row],) for row in training])["words"],
        rows_sha256="",
    )
    # Sorted, so that the order of the file has no effect.
    pairs = [(*text, summary) for text, summary in zip(rows.texts, rows.targets, strict=True)]
    order = sorted(kept, key=lambda row: pairs[row])
    columns = {x: [pairs[row][n] for row in order] for n, x in enumerate(("text", "summary"))}
    table = pa.table({"split": splits[order], **columns})
    path = SUMMARIES.path(cache, name) / ROWS
    return store_rows(SUMMARIES, path, table, described, replace=replace)
