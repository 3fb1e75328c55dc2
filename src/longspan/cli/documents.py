"""Runs on texts of one's own: length, training, and one table with TF-IDF beside the model."""

import dataclasses
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from longspan.cli.common import IS_MAIN, print_json, print_next, print_note, print_table, print_text
from longspan.cli.importing import TextOptions, default_name, read_source, target_kind
from longspan.cli.options import ChangeOptions, Text, field, options
from longspan.cli.running import run_one
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.arena import Experiment, RunPaths
    from longspan.arena.documents.metrics import Kind
    from longspan.arena.one_run import RunChoices
    from longspan.results import DocumentRow, DocumentScores, Result
    from longspan.tasks.base import Split

WEIGHTS = ("none", "balanced")
_SIGNIFICANT = 0.05
_MOST_CLASSES = 30  # of the printed table of classes
_CONFUSED = 3  # pairs of classes that are named
_HELP = "docs/recipes/long-documents.md"


@options
class DocumentOptions:
    """Options of finetuning on texts of one's own."""

    metric: Text = field(
        "Main metric of the table, such as f1_macro; it selects the baseline.",
        "accuracy; of several labels f1_micro, of numbers r2",
    )
    class_weights: str = field(
        "Weights of the classes in the loss: none or balanced.", default=WEIGHTS[0]
    )
    threshold: float = field("Probability from which one of several labels applies.", default=0.5)
    all_texts: bool = field(
        "Repeat an earlier run, with its options, on all texts, held-out ones included: a "
        "final model, which has no score.",
        flag="--all",
        default=False,
    )
    compare: bool = field(
        "Compare ways to read long documents: whole, in chunks of 512 tokens, the first "
        "512, head and tail, words without layers; a run for each.",
        default=False,
    )


def check_document_options(documents: DocumentOptions, texts: TextOptions, *, is_own: bool) -> None:
    """Refuse values of options before anything is imported.

    Raises:
        UnknownNameError: there is no such metric or kind of weights.
        OptionError: the threshold is no probability, the metric does not fit the targets, the data
            are no texts with labels or numbers, or options of scores are given to a final model.
    """
    from longspan.arena.documents.metrics import choose_metrics
    from longspan.arena.documents.scores import check_threshold

    if not is_own and documents != DocumentOptions():
        raise OptionError(
            "--metric, --class-weights, --threshold, --all and --compare are of own texts with "
            "labels; omit them"
        )
    check_name(documents.class_weights, WEIGHTS, "kind of class weights")
    check_threshold(documents.threshold)
    if documents.all_texts:
        _check_final(documents, texts)
    if texts.label is not None or texts.target is not None:
        choose_metrics(documents.metric, target_kind(texts, texts.label or ""))


def _check_final(documents: DocumentOptions, texts: TextOptions) -> None:
    """Refuse options of held-out texts and of scores, which a final model does not have."""
    scores = {
        "--metric": documents.metric,
        "--threshold": documents.threshold != DocumentOptions().threshold,
        "--compare": documents.compare,
    }
    held_out = texts.flags("validation", *(["test"] if texts.test != 0 else []))
    given = [*held_out, *(x for x, value in scores.items() if value)]
    if given:
        raise OptionError(
            f"--all trains on all texts, so that none is left to score, got {', '.join(given)}; "
            "omit either"
        )
    if texts.replace:
        raise OptionError(
            "--all repeats a run on texts as they were imported, got --replace; run the command "
            "with --replace and without --all first, then with --all"
        )


def find_imported(data: str, texts: TextOptions, reason: str, command: str) -> str:
    """Return the name of the task that a file was imported as.

    Args:
        data: file, folder or hf:NAME.
        texts: options of texts.
        reason: what reads texts that were imported, for messages.
        command: command that imports them, for messages.

    Raises:
        OptionError: it was not, other columns were read, or it has changed since.
        DataError: the file is missing or malformed.
    """
    from longspan.data.imports.texts import has_files
    from longspan.tasks import TASKS, OwnSummaries, OwnTexts, imported_names

    name = texts.name or default_name(data)
    if name not in imported_names(OwnTexts, OwnSummaries):
        raise OptionError(f"{reason}, and {data} was not imported as {name!r}; run {command}")
    described = cast("type[OwnTexts]", TASKS[name]).description
    target = texts.label or texts.target or texts.summary
    given = {"text": texts.text, "target": target, "pair": texts.pair}
    again = command.partition(" first")[0]
    for role, column in given.items():
        if column not in (None, known := described.columns.get(role)):
            raise OptionError(
                f"{name} was imported with the {role} {known!r}, got {column!r}; omit it, or run "
                f"{again} --replace first"
            )
    if not has_files(described, read_source(data), texts.form()):
        raise OptionError(
            f"{data} has changed since it was imported as {name}; run {again} --replace first"
        )
    return name


def is_own_texts(task: str) -> bool:
    """Return whether a task is an import of texts with classes, labels or numbers."""
    from longspan.tasks import OwnTexts, imported_names

    return task in imported_names(OwnTexts)


def run_documents(
    task: str,
    data: str | None,
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
    from longspan.arena.documents.start import task_coverage
    from longspan.arena.documents.ways import compare_ways
    from longspan.tasks import TASKS, OwnTexts

    cls = cast("type[OwnTexts]", TASKS[task])
    choose_metrics(documents.metric, cast("Kind", cls.description.kind))
    experiments = [_make_experiment(task, source, choices, documents, paths)]
    if documents.all_texts:
        where = ("--data", data) if data else (task,)
        words = ("longspan", "finetune", *([source] if source else []), *where)
        _run_final(experiments[0], shlex.join(words), paths, changes, as_json)
        return
    if documents.compare:
        length = experiments[0].config.task.options["length"]
        ways = compare_ways(choices, length, is_new=source is None)
        experiments = [_make_experiment(task, source, x, documents, paths) for x in ways]
    print_note("length:", task_coverage(task, experiments[0].config.task.options))

    def show(_: "Result") -> None:
        split: Split = "test" if cls.description.sizes["test"] else "validation"
        # Every process of several: preparing a model waits for all of them.
        scores = [_score(x, documents, split, paths) for x in experiments]
        if as_json:
            rows = [dataclasses.asdict(x) for x in scores]
            print_json(rows if documents.compare else rows[0])
        elif IS_MAIN:
            _print_documents(scores, [paths.record_file(x) for x in experiments], paths)

    run_one(experiments, paths, changes, as_json, show)


def _score(
    experiment: "Experiment", documents: DocumentOptions, split: "Split", paths: "RunPaths"
) -> "DocumentScores":
    """Score a finished run beside the baselines."""
    from longspan.arena.documents.scores import score_documents
    from longspan.arena.documents.start import task_coverage

    coverage = task_coverage(experiment.task, experiment.config.task.options)
    metric, threshold = documents.metric, documents.threshold
    return score_documents(paths.record_file(experiment), paths, coverage, metric, threshold, split)


def _make_experiment(
    task: str,
    source: str | None,
    choices: "RunChoices",
    documents: DocumentOptions,
    paths: "RunPaths",
) -> "Experiment":
    """Return the experiment of a run on imported texts, from a checkpoint or a new model."""
    from longspan.arena.documents.start import open_start
    from longspan.arena.one_run import finetuning_experiment

    if documents.class_weights != WEIGHTS[0]:
        weights = {"task.class_weights": documents.class_weights}
        choices = dataclasses.replace(choices, changes={**weights, **choices.changes})
    start = None
    if source is not None:
        start, choices = open_start(source, task, choices, paths.cache)
    return finetuning_experiment(start, task, choices)


def _run_final(
    earlier: "Experiment",
    command: str,
    paths: "RunPaths",
    changes: ChangeOptions,
    as_json: bool,
) -> None:
    """Train a final model on all texts, and say what its number of steps is from.

    Args:
        earlier: experiment of the run that is repeated.
        command: command that makes that run, for messages.
        paths: folders of results and data, and the device.
        changes: whether it is planned alone.
        as_json: print JSON.

    Raises:
        OptionError: there is no such run.
        DataError: it was trained on other texts.
    """
    from longspan.arena.documents.final import final_experiment, load_earlier

    record, result = load_earlier(earlier, paths, command)
    experiment, final = final_experiment(earlier, result), paths.for_final()

    def show(trained: "Result") -> None:
        file = final.record_file(experiment)
        if as_json:
            facts = {"record": str(file), "earlier": str(record), "steps": trained.steps}
            print_json({**facts, "scores": trained.scores})
        elif IS_MAIN:
            print_text(
                f"Trained on all texts for {trained.steps:,} steps, those of the best checkpoint "
                f"of {record}. No text is held out, so the model has no score; the one of that "
                "run, which learned from fewer texts, is its estimate."
            )
            print_text(f"Final model: {file}")
            print_next("predict", file, "NEW", "--output", "predicted.csv", cache=final.cache)

    run_one([experiment], final, changes, as_json, show)


def _print_documents(
    scores: "list[DocumentScores]", records: list[Path], paths: "RunPaths"
) -> None:
    """Print one table of all runs on the documents and the baselines, and what it says.

    Args:
        scores: scores of each run, and of the baselines.
        records: records of the runs.
        paths: folder of results, whose other runs on the same documents are rows too.
    """
    first, record = scores[0], records[0]
    metrics = [*first.rows[0].metrics]
    columns = (f"{first.task}: {first.documents:,} documents of {first.split}", *metrics, "time")
    rows = sorted(_load_rows(first, paths.runs), key=lambda row: _rank(row, metrics[0]))
    shared, labels = _short_labels(rows)
    labeled = [*zip(labels, rows, strict=True), *((x.label, x) for x in first.rows[1:])]
    print_table(columns, (_cells(*pair, metrics) for pair in labeled), right=columns[1:])
    if shared:
        print_text(f"All runs: {', '.join(f'{name} {x}' for name, x in shared.items())}.")
    if first.split == "validation":
        print_text(
            "There is no test split, so these are scores on validation, which selected the "
            "checkpoint and the strength of TF-IDF too: they are too high for new texts."
        )
    if len(scores) == 1:
        _print_classes(first)
    elif first.rows[0].classes:
        print_text(f"Class weights: {first.class_weights}.")
    names = _short_labels([x.rows[0] for x in scores])[1] if len(scores) > 1 else []
    names = names or [first.rows[0].name]
    verdicts = [_verdict(x, name) for name, x in zip(names, scores, strict=True)]
    for text, _ in verdicts:
        print_text(text)
    if any(is_worse for _, is_worse in verdicts):
        print_text(f"Worse than TF-IDF? See {_HELP}.")
    folder = record.parent / first.subfolder
    print_text(f"All scores: {folder / first.filename if len(scores) == 1 else folder}")
    words = ("predict", record, "NEW", "--output", "predicted.csv")
    print_next(*words, cache=paths.cache)


def _print_classes(scores: "DocumentScores") -> None:
    """Print the scores of each class, which are confused most, and the weights in training."""
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


def _load_rows(scores: "DocumentScores", runs: Path) -> "Iterator[DocumentRow]":
    """Yield a row for each configuration that ran on the documents, with means over its seeds."""
    from longspan.results import DocumentScores, load_side_records

    by_name: dict[str, list[DocumentRow]] = {}
    for x in load_side_records(DocumentScores, [runs]):
        if x.task == scores.task and x.scored == scores.scored:
            row = x.rows[0]
            by_name.setdefault(f"{x.protocol} {row.name} {x.config_hash}", []).append(row)
    for first, *others in by_name.values():
        rows, count = [first, *others], 1 + len(others)
        metrics: dict[str, float | None] = {
            name: sum(row.metrics[name] or 0 for row in rows) / count
            for name in first.metrics
            if all(row.metrics.get(name) is not None for row in rows)
        }
        options = {**first.options, **(_spread(rows) if others else {})}
        seconds = sum(row.seconds for row in rows) / count
        yield dataclasses.replace(first, options=options, metrics=metrics, seconds=seconds)


def _rank(row: "DocumentRow", name: str) -> float:
    """Return what sorts rows by a metric, the best first and those without it last."""
    from longspan.arena.documents.metrics import METRICS

    value = row.metrics.get(name)
    return math.inf if value is None else -METRICS[name].signed(value)


def _spread(rows: "list[DocumentRow]") -> dict[str, str | int]:
    """Return the number of seeds, and the range of the main metric over them."""
    main = next(iter(rows[0].metrics))
    values = [x for row in rows if (x := row.metrics.get(main)) is not None]
    ranges = {main: f"{min(values):.3f} to {max(values):.3f}"} if values else {}
    return {"seeds": len(rows), **ranges}


def _cells(label: str, row: "DocumentRow", metrics: list[str]) -> tuple[str, ...]:
    return (
        label,
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


def _short_labels(rows: "list[DocumentRow]") -> tuple[dict[str, Any], list[str]]:
    """Return the options that all of several rows share but the length, and labels without them."""
    options = [row.options for row in rows]
    shared = {
        name: x
        for name, x in options[0].items()
        if len(rows) > 1 and name != "length" and all((name, x) in y.items() for y in options)
    }
    own = [{name: x for name, x in y.items() if name not in shared} for y in options]
    labels = [dataclasses.replace(x, options=y).label for x, y in zip(rows, own, strict=True)]
    return shared, labels


def _verdict(scores: "DocumentScores", title: str) -> tuple[str, bool]:
    """Return the sentence that compares a run, which has a title, with TF-IDF; is the run worse?

    The test is of the errors, so it decides who wins, and the metric, such as ECE, does not.
    """
    from longspan.arena.documents.metrics import METRICS

    model, baseline = scores.rows[:2]
    name, p = scores.metric, scores.p_value
    values = (model.metrics[name], baseline.metrics[name])
    if None in values:
        return f"{name} is undefined on these documents; choose another --metric.", False
    signed = [METRICS[name].signed(x) for x in values if x is not None]
    ours, theirs = scores.fewer_errors
    if p is None or p >= _SIGNIFICANT:
        verb = "is not told apart from"
    else:
        verb = "loses to" if ours < theirs else "beats"
    text = f"{title} {verb} {baseline.name}: {name} {values[0]:.3f} against {values[1]:.3f}"
    if p is not None:
        counts = f"fewer errors on {ours:,} documents against {theirs:,}"
        text += f" ({counts}, sign test: p = {p:.2g})"
    return f"{text}.", verb == "loses to" or signed[0] <= signed[1]
