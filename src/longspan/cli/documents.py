"""Runs on texts of one's own: length, training, and one table with TF-IDF beside the model."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from longspan.cli.common import IS_MAIN, print_json, print_next, print_note, print_table, print_text
from longspan.cli.importing import TextOptions, target_kind
from longspan.cli.options import ChangeOptions, Text, options
from longspan.cli.running import run_one
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.arena.documents.metrics import Kind
    from longspan.arena.one_run import RunChoices
    from longspan.results import DocumentRow, DocumentScores, Result

WEIGHTS = ("none", "balanced")
_SIGNIFICANT = 0.05
_MOST_CLASSES = 30  # of the printed table of classes
_CONFUSED = 3  # pairs of classes that are named
_HELP = "docs/recipes/long-documents.md"


@options
class DocumentOptions:
    """Options of finetuning on texts of one's own."""

    metric: Annotated[
        Text,
        typer.Option(
            help="Main metric of the table, such as f1_macro; it selects the baseline.",
            show_default="accuracy; of several labels f1_micro, of numbers r2",
        ),
    ] = None
    class_weights: Annotated[
        str, typer.Option(help="Weights of the classes in the loss: none or balanced.")
    ] = WEIGHTS[0]
    threshold: Annotated[
        float, typer.Option(help="Probability from which one of several labels applies.")
    ] = 0.5


def check_document_options(documents: DocumentOptions, texts: TextOptions, *, is_own: bool) -> None:
    """Refuse values of options before anything is imported.

    Raises:
        UnknownNameError: there is no such metric or kind of weights.
        OptionError: the threshold is no probability, the metric does not fit the targets, or the
            data are no texts with labels or numbers.
    """
    from longspan.arena.documents.metrics import choose_metrics
    from longspan.arena.documents.scores import check_threshold

    if not is_own and documents != DocumentOptions():
        raise OptionError(
            "--metric, --class-weights and --threshold are of own texts with labels; omit them"
        )
    check_name(documents.class_weights, WEIGHTS, "kind of class weights")
    check_threshold(documents.threshold)
    if texts.label is not None or texts.target is not None:
        choose_metrics(documents.metric, target_kind(texts, texts.label or ""))


def is_own_texts(task: str) -> bool:
    """Return whether a task is an import of texts with classes, labels or numbers."""
    from longspan.tasks import OwnTexts, imported_names

    return task in imported_names(OwnTexts)


def run_documents(
    task: str,
    source: str | None,
    choices: "RunChoices",
    documents: DocumentOptions,
    paths: "RunPaths",
    changes: ChangeOptions,
    as_json: bool,
) -> None:
    """Train on imported texts, from a checkpoint or a new model; print the table of documents.

    Raises:
        OptionError: the metric or the weights do not fit the targets, or the checkpoint does not.
    """
    from longspan.arena.documents.metrics import choose_metrics
    from longspan.arena.documents.scores import score_documents
    from longspan.arena.documents.start import open_start, task_coverage
    from longspan.arena.one_run import finetuning_experiment
    from longspan.tasks import TASKS, OwnTexts

    cls = cast("type[OwnTexts]", TASKS[task])
    choose_metrics(documents.metric, cast("Kind", cls.description.kind))
    if documents.class_weights != WEIGHTS[0]:
        weights = {"task.class_weights": documents.class_weights}
        choices = dataclasses.replace(choices, changes={**weights, **choices.changes})
    start = None
    if source is not None:
        start, choices = open_start(source, task, choices, paths.cache)
    experiment = finetuning_experiment(start, task, choices)
    coverage = task_coverage(task, experiment.config.task.options)
    print_note("length:", coverage)

    def show(result: "Result") -> None:
        record = paths.record_file(experiment)
        # Every process of several: preparing the model waits for all of them.
        scores = score_documents(record, paths, coverage, documents.metric, documents.threshold)
        if as_json:
            print_json(dataclasses.asdict(scores))
        elif IS_MAIN:
            _print_documents(scores, record, paths)

    run_one([experiment], paths, changes, as_json, show)


def _print_documents(scores: "DocumentScores", record: Path, paths: "RunPaths") -> None:
    """Print one table of all runs on the documents and the baselines, and what it says.

    Args:
        scores: scores of a run and of the baselines.
        record: record of the run.
        paths: folder of results, whose other runs on the same documents are rows too.
    """
    metrics = [*scores.rows[0].metrics]
    columns = (f"{scores.task}: {scores.documents:,} documents of {scores.split}", *metrics, "time")
    rows = [*_load_rows(scores, paths.runs), *scores.rows[1:]]
    print_table(columns, (_cells(row, metrics) for row in rows), right=columns[1:])
    model = scores.rows[0]
    if 0 < len(model.classes) <= _MOST_CLASSES:
        names = ("class", "precision", "recall", "f1", "documents")
        classes = (
            (name, *(f"{x:.3f}" for x in values), f"{count:,.0f}")
            for name, (*values, count) in model.classes.items()
        )
        print_table(names, classes, right=names[1:])
    if model.classes:
        for line in (*_confusions(model), f"Class weights: {scores.class_weights}."):
            print_text(line)
    print_text(_verdict(scores))
    file = record.parent / scores.subfolder / scores.filename
    print_text(f"All scores: {file}")
    words = ("predict", record, "NEW", "--output", "predicted.csv")
    print_next(*words, cache=paths.cache)


def _load_rows(scores: "DocumentScores", runs: Path) -> "Iterator[DocumentRow]":
    """Yield a row for each configuration that ran on the documents, with means over its seeds."""
    from longspan.results import DocumentScores, load_side_records

    documents = (scores.task, scores.rows_sha256, scores.split, scores.threshold)
    by_name: dict[str, list[DocumentRow]] = {}
    for x in load_side_records(DocumentScores, [runs]):
        if (x.task, x.rows_sha256, x.split, x.threshold) == documents:
            row = x.rows[0]
            by_name.setdefault(f"{x.protocol} {row.name} {x.config_hash}", []).append(row)
    for first, *others in by_name.values():
        rows, count = [first, *others], 1 + len(others)
        metrics: dict[str, float | None] = {
            name: sum(row.metrics[name] or 0 for row in rows) / count
            for name in first.metrics
            if all(row.metrics.get(name) is not None for row in rows)
        }
        options = {**first.options, "seeds": count} if others else first.options
        seconds = sum(row.seconds for row in rows) / count
        yield dataclasses.replace(first, options=options, metrics=metrics, seconds=seconds)


def _cells(row: "DocumentRow", metrics: list[str]) -> tuple[str, ...]:
    options = ", ".join(f"{name} {x}" for name, x in row.options.items())
    return (
        f"{row.name} ({options})" if options else row.name,
        *("-" if x is None else f"{x:.3f}" for x in map(row.metrics.get, metrics)),
        f"{row.seconds / 60:.1f} min" if row.seconds >= 60 else f"{row.seconds:.1f} s",
    )


def _confusions(row: "DocumentRow") -> list[str]:
    """Return the pairs of classes that are most often confused, as one line."""
    pairs = [
        (count, true, predicted)
        for true, counts in zip(row.classes, row.confusion, strict=False)
        for predicted, count in zip(row.classes, counts, strict=True)
        if true != predicted and count
    ]
    pairs.sort(key=lambda pair: -pair[0])
    named = "; ".join(f"{a!r} as {b!r} {count:,}" for count, a, b in pairs[:_CONFUSED])
    return [f"Most often confused: {named}."] if named else []


def _verdict(scores: "DocumentScores") -> str:
    """Return the sentence that compares the run with TF-IDF.

    The test is of the errors, so it decides who wins, and the metric, such as ECE, does not.
    """
    from longspan.arena.documents.metrics import METRICS

    model, baseline = scores.rows[:2]
    name, p = scores.metric, scores.p_value
    values = (model.metrics[name], baseline.metrics[name])
    if None in values:
        return f"{name} is undefined on these documents; choose another --metric."
    signed = [METRICS[name].signed(x) for x in values if x is not None]
    ours, theirs = scores.fewer_errors
    if p is None or p >= _SIGNIFICANT:
        verb = "is not told apart from"
    else:
        verb = "loses to" if ours < theirs else "beats"
    text = f"{model.name} {verb} {baseline.name}: {name} {values[0]:.3f} against {values[1]:.3f}"
    if p is not None:
        counts = f"fewer errors on {ours:,} documents against {theirs:,}"
        text += f" ({counts}, sign test: p = {p:.2g})"
    is_worse = verb == "loses to" or signed[0] <= signed[1]
    advice = f" Worse than TF-IDF? See {_HELP}." if is_worse else ""
    return f"{text}.{advice}"
