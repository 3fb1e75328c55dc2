"""`longspan predict | answers`: answers of a saved model to new texts, and to its task."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.common import print_json, print_text
from longspan.cli.importing import FormatOptions
from longspan.cli.options import BatchSize, DeviceOptions, Json, Record, SplitName
from longspan.errors import DataError, OptionError
from longspan.wording import counted

if TYPE_CHECKING:
    from longspan.data.sources.table import Table


def predict(
    record: Record,
    file: Annotated[
        Path,
        typer.Argument(help="CSV, TSV, JSON or parquet file of texts, or folder of text files."),
    ],
    output: Annotated[Path, typer.Option(help="CSV file to create.")],
    form: FormatOptions,
    folders: DeviceOptions,
    text: Annotated[
        str | None, typer.Option(help="Column of the texts; a folder of text files has none.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second texts of pairs.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the classes, numbers or summaries of new texts with the saved model of a run.

    The output has the columns of the file (of a folder: name and text of each file), and
    `predicted`: the name of the class, with its `probability`, the number, or the summary.
    """
    from longspan.arena.predict import predict as predict_texts
    from longspan.files import check_new_file

    check_new_file(output)
    paths = folders.run_paths()
    table, texts = _read_texts(file, text, pair, form)
    if taken := {"predicted", "probability"} & set(table.names):
        raise OptionError(f"{file} has a column {min(taken)!r} already; rename it")
    predictions = predict_texts(record, texts, paths)
    shown = [x if isinstance(x, str) else f"{x:.6g}" for x in predictions.values]
    added: dict[str, Any] = {"predicted": shown}
    if predictions.probabilities is not None:
        added["probability"] = [f"{x:.4f}" for x in predictions.probabilities]
    names = (*table.names, *added)
    rows = [(*row, *more) for row, *more in zip(table.rows, *added.values(), strict=True)]
    _write(output, names, rows)
    if as_json:
        print_json({"output": str(output), "rows": len(rows), "columns": list(names)})
    else:
        print_text(f"{len(rows):,} predictions in {output}")


def answers(
    record: Record,
    output: Annotated[Path, typer.Option(help="File to write: JSON, or columns of CoNLL-2012.")],
    folders: DeviceOptions,
    split: SplitName = "test",
    batch_size: BatchSize = None,
    as_json: Json = False,
) -> None:
    """Answer the questions of a split, or find its coreference, with the saved model of a run.

    The output is a file for the official evaluation of the task: SQuAD, TriviaQA, HotpotQA,
    WikiHop, or the reference scorer of CoNLL-2012. That of HotpotQA has the ranked paragraphs, too,
    which a second stage reads (task.selection).
    """
    from longspan.arena.predict import write_answers

    count, unit = write_answers(record, split, folders.run_paths(), output, batch_size)
    if as_json:
        print_json({"output": str(output), "split": split, f"{unit}s": count})
    else:
        answered = counted(count, f"{unit}|{unit}s")
        print_text(f"answers to {answered} of {split} in {output}")


def _read_texts(
    file: Path, text: str | None, pair: str | None, form: FormatOptions
) -> "tuple[Table, list[tuple[str, ...]]]":
    """Return the table of a file or folder, and its texts, of pairs both.

    Raises:
        OptionError: the column of the texts is not named, or the format is unknown.
        DataError: the file is malformed, lacks a column, or has an empty text.
    """
    from longspan.data.sources.folders import has_columns
    from longspan.data.sources.table import TEXT, read_new_texts

    if text is None and has_columns(file):
        raise OptionError("predict takes --text COLUMN, the column of the texts")
    table = read_new_texts(file, form.form())
    names = (text or TEXT,) if pair is None else (text or TEXT, pair)
    texts = list(zip(*(table.column(name) for name in names), strict=True))
    if empty := [row for row, values in enumerate(texts) if not all(values)]:
        raise DataError(f"{file} has an empty text in {table.show_rows(empty)}; remove these rows")
    return table, texts


def _write(path: Path, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    from longspan.files import atomic_write

    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows(rows)
