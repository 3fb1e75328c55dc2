"""`longspan predict | answers`: answers of a saved model to new texts, and to its task."""

import csv
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longspan.cli.activity import Activity
from longspan.cli.common import err, print_json, print_note, print_text
from longspan.cli.importing import FormatOptions
from longspan.cli.options import (
    BatchSize,
    DeviceOptions,
    Json,
    Record,
    SplitName,
    argument,
    field,
    option,
    options,
)
from longspan.errors import DataError, OptionError
from longspan.wording import counted

if TYPE_CHECKING:
    import numpy as np

    from longspan.arena import RunPaths
    from longspan.arena.documents.new_scores import NewScores
    from longspan.arena.predict import Predictions
    from longspan.data.sources.table import Table

_LINES = (".jsonl", ".ndjson")  # of an object in each line
_SUFFIXES = (".csv", *_LINES)


@options
class NewTextOptions(FormatOptions):
    """Columns of new texts, and what is written of their predictions."""

    text: str | None = field(
        "Column of the texts; a folder of text files has none.", "that of the training"
    )
    pair: str | None = field("Column of the second texts of pairs.")
    identifier: str | None = field(
        "Column of unique identifiers, the only one of the file that is written.", flag="--id"
    )
    probabilities: bool = field("Write the probability of every class.", default=False)
    threshold: float | None = field(
        "Probability from which one of several labels applies.",
        "that of the run's scores, else 0.5",
    )
    evidence: Path | None = field(
        "HTML page to create, of the words that decided the classes of the first 20 texts."
    )


def predict(
    record: Annotated[Path, argument("Record of a run, or folder that `export` has written.")],
    file: Annotated[
        Path, argument("CSV, TSV, JSON or parquet file of texts, or folder of text files.")
    ],
    output: Annotated[Path, option("File to create: .csv, or .jsonl.")],
    new: NewTextOptions,
    folders: DeviceOptions,
    as_json: Json = False,
) -> None:
    """Predict the classes, numbers or summaries of new texts with the saved model of a run.

    The output has the columns of the file (of a folder: name and text of each file), and
    `predicted`: the name of the class, with its `probability`, the number, or the summary. Where
    the file has the column of the training's classes or numbers as well, they are scored.
    """
    from longspan.arena.documents.scores import check_threshold
    from longspan.files import check_new_file

    check_new_file(output)
    if output.suffix.lower() not in _SUFFIXES:
        raise OptionError(f"--output must end in {', '.join(_SUFFIXES)}, got {output.name}")
    paths = folders.run_paths()
    if (page := new.evidence) is not None:
        _check_evidence(record, output, page)
    trained, scored = _trained_with(record, file)
    check_threshold(threshold := scored if new.threshold is None else new.threshold)
    columns = new.text or trained.get("text"), new.pair or trained.get("pair")
    table, texts = _read_texts(file, *columns, new)
    shown = _shown_columns(file, table, new, is_typed=_is_lines(output))
    predictions = _predict(record, texts, paths, threshold)
    written = {**shown, **_predicted_columns(predictions, new)}
    explained = _write_evidence(record, texts, predictions, paths, page) if page else 0
    _write(output, written)
    scores = _score(predictions, table, trained.get("target"), threshold)
    if as_json:
        facts: dict[str, Any] = {"output": str(output), "rows": len(texts), "columns": [*written]}
        facts |= {"evidence": str(page), "explained": explained} if page else {}
        print_json(facts | ({"metrics": scores.metrics} if scores else {}))
        return
    lines = [f"{len(texts):,} predictions in {output}", *([str(scores)] if scores else [])]
    lines += [f"evidence for the first {explained:,} in {page}"] if explained else []
    print_text("\n".join(lines))


def _predict(
    record: Path, texts: "list[tuple[str, ...]]", paths: "RunPaths", threshold: float
) -> "Predictions":
    """Predict with the model of a run or of an exported folder."""
    from longspan.arena.predict import predict as predict_texts
    from longspan.publishing.served_folder import predict_in_folder

    if record.is_dir():
        return predict_in_folder(record, texts, paths.device_type, threshold)
    return predict_texts(record, texts, paths, threshold=threshold)


def answers(
    record: Record,
    output: Annotated[Path, option("File to write: JSON, or columns of CoNLL-2012.")],
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


def _predicted_columns(predictions: "Predictions", new: NewTextOptions) -> dict[str, Any]:
    """Return the columns that predictions add."""
    added: dict[str, Any] = {"predicted": predictions.values}
    if predictions.probabilities is not None:
        added["probability"] = _shorten(predictions.probabilities)
    if new.probabilities:
        added |= {f"p({x})": _shorten(y) for x, y in predictions.by_class.items()}
    return added


def _shorten(values: "np.ndarray") -> list[float]:
    """Return probabilities with six digits behind the zeros, which keep those of rare classes."""
    return [float(f"{x:.6g}") for x in values]


def _check_evidence(record: Path, output: Path, page: Path) -> None:
    """Check that a page of evidence can be made and written.

    Raises:
        OptionError: the file exists, or is that of the predictions; or the run has no classes of
            single texts.
    """
    from longspan.arena.documents.evidence import check_explained
    from longspan.files import check_new_file

    check_new_file(page)
    if record.is_dir():
        raise OptionError(
            f"--evidence needs the record of the run, whose training texts are the average that "
            f"it compares with, got the folder {record}"
        )
    if page.resolve() == output.resolve():
        raise OptionError(
            f"--output and --evidence must be two files, got {page} twice; name another --evidence"
        )
    check_explained(record)


def _write_evidence(
    record: Path,
    texts: "list[tuple[str, ...]]",
    predictions: "Predictions",
    paths: "RunPaths",
    page: Path,
) -> int:
    """Write the page of evidence for the first texts; return their number."""
    from longspan.arena.documents.evidence import MOST_EXPLAINED, explain
    from longspan.arena.documents.evidence_page import make_page
    from longspan.files import atomic_write

    first = [text for (text,) in texts[:MOST_EXPLAINED]]
    by_class = {name: x[: len(first)] for name, x in predictions.by_class.items()}
    with Activity(err, f"explaining {len(first)} predictions"):
        found = explain(record, first, by_class, paths)
    with atomic_write(page) as temporary:
        temporary.write_text(make_page(found, record.stem, len(texts)), encoding="utf-8")
    return len(found)


def _trained_with(record: Path, file: Path) -> tuple[dict[str, str], float]:
    """Return the columns of the texts that a model was trained on, by role, and its threshold.

    There are no columns of other tasks, and none for a folder of texts.
    """
    from longspan.data.sources.folders import has_columns
    from longspan.publishing.served_folder import load_serving, scored_threshold
    from longspan.results import load_result
    from longspan.tasks import TASKS

    if record.is_dir():
        serving = load_serving(record)
        columns, threshold = serving.columns, serving.threshold
    else:
        cls = TASKS.get(load_result(record).task)
        columns = dict(getattr(getattr(cls, "description", None), "columns", {}))
        threshold = scored_threshold(record)
    return columns if has_columns(file) else {}, threshold


def _score(
    predictions: "Predictions", table: "Table", target: str | None, threshold: float
) -> "NewScores | None":
    """Return the scores of predictions on the targets of the file.

    There are none of summaries, and none where a note says that targets do not fit.
    """
    from longspan.arena.documents.new_scores import score_predictions
    from longspan.data.imports.targets import label_separator, read_labels

    is_text = not predictions.by_class and isinstance(predictions.values[0], str)
    is_single = target in table.names
    if target is None or is_text or not (is_single or {*target.split(",")} <= {*table.names}):
        return None
    try:
        given = read_labels(table, target, label_separator([*predictions.by_class]))
        return score_predictions(predictions, given, threshold)
    except DataError as error:
        print_note("note:", f"the column {target!r} does not score the predictions: {error}")
        return None


def _shown_columns(
    file: Path, table: "Table", new: NewTextOptions, *, is_typed: bool
) -> dict[str, list[Any]]:
    """Return the columns that are written as they are: that of the identifiers, or all.

    Args:
        file: file of the texts.
        table: its content.
        new: options.
        is_typed: keep numbers, booleans and nulls of JSON and parquet, which CSV writes as text.

    Raises:
        OptionError: one has the name of a prediction.
        DataError: there is no such column, two have one name, or an identifier is missing or
            doubled.
    """
    identifier = new.identifier
    names = table.names if identifier is None else (identifier,)
    for name in names:
        if name in ("predicted", "probability") or (new.probabilities and name.startswith("p(")):
            raise OptionError(f"{file} has a column {name!r} already; rename it")
    if identifier is None:
        if doubled := [x for x in names if names.count(x) > 1]:
            raise DataError(
                f"{file} has several columns {doubled[0]!r}; rename all but one, or pass --id"
            )
        if is_typed:
            return {name: table.typed(name) for name in names}
        cells = zip(*table.rows, strict=True)
        return {x: list(values) for x, values in zip(names, cells, strict=True)}
    values = table.column(identifier)
    counts = Counter(values)
    if wrong := [row for row, x in enumerate(values) if not x or counts[x] > 1]:
        kind = "doubled" if values[wrong[0]] else "missing"
        raise DataError(
            f"{file}: an identifier of --id {identifier} is {kind} in {table.show_rows(wrong)}; "
            "correct them, or omit --id to write all columns"
        )
    return {identifier: table.typed(identifier) if is_typed else values}


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


def _is_lines(path: Path) -> bool:
    """Return whether a file has an object in each line."""
    return path.suffix.lower() in _LINES


def _write(path: Path, columns: Mapping[str, list[Any]]) -> None:
    """Write columns as CSV, or as one JSON object a line."""
    from longspan.files import atomic_write

    rows = zip(*columns.values(), strict=True)
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        if _is_lines(path):
            for row in rows:
                values = dict(zip(columns, row, strict=True))
                stream.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")
            return
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)
