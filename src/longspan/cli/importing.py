"""Options and steps of `longspan data import KIND PATH...`: a user's own files become a task."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.common import console_callback, print_counts, print_note, print_text
from longspan.cli.import_options import (
    KINDS,
    ImportOptions,
    Kind,
    ReadingOptions,
    TextOptions,
    read_source,
)
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.data.imports.texts import TextsDescription
    from longspan.data.sources.table import Source


def import_own(kind: str, paths: Sequence[str], options: TextOptions, cache: Path) -> str | None:
    """Import files of one's own; return the name of their task, or None for published files.

    Args:
        kind: kind of import, or a task.
        paths: files, folders, patterns of files or hf:NAME.
        options: options of all kinds.
        cache: folder of built data sets.

    Raises:
        OptionError: an option or a path does not apply, or the name of the task is taken.
        DataError: a file is unusable; the message says why.
    """
    from longspan.arena.protocols.files import register_imports

    options.refuse(kind)
    if kind != "corpus" and len(paths) > 1:
        raise OptionError(f"import {kind} takes one path, got {len(paths)}: {' '.join(paths)}")
    if kind not in KINDS:
        return None
    name = options.name or default_name(paths[0])
    _check_free(name, kind)
    if kind == "corpus":
        assert isinstance(options, ImportOptions)
        _import_corpus(name, paths, options, cache)
    elif kind == "beir":
        _import_beir(name, paths[0], options, cache)
    else:
        _import_texts(name, read_source(paths[0]), options, cache, kind == "summaries")
    register_imports(cache)
    run = "pretrain" if kind == "corpus" else "train local"
    print_note("next:", f"longspan {run} {name}")
    return name


def default_name(path: str) -> str:
    """Return the name of the task of a path that names none."""
    from longspan.data.sources.folders import table_name
    from longspan.data.sources.rows import HUB

    if path.startswith(HUB):
        return path.removeprefix(HUB).partition("#")[0].partition(":")[0].rpartition("/")[2]
    return table_name(Path(path))


def _check_free(name: str, kind: Kind) -> None:
    """Refuse the name of a mechanism, a protocol, or a task that is no import of the kind.

    Raises:
        OptionError: the name is taken.
    """
    from longspan.arena.protocols.base import protocol_names
    from longspan.arena.protocols.files import OWN
    from longspan.attention import MECHANISMS
    from longspan.tasks import (
        TASKS,
        BeirTask,
        ImportedCorpus,
        OwnSummaries,
        OwnTexts,
        imported_names,
    )

    bases = {"corpus": (ImportedCorpus,), "beir": (BeirTask,)}.get(kind, (OwnTexts, OwnSummaries))
    kinds = {
        "a mechanism": MECHANISMS,
        "a protocol": {*protocol_names(), OWN},
        "a task": TASKS.keys() - set(imported_names(*bases)),
        "this command": KINDS,
    }
    for what, names in kinds.items():
        if name in names:
            raise OptionError(f"{name!r} is the name of {what}; pass another --name")


def _import_texts(
    name: str, source: "Source", options: TextOptions, cache: Path, is_summary: bool
) -> None:
    """Import texts with classes, numbers or summaries, and print what may be wrong with them."""
    from longspan.data.imports.texts import TextsRequest, import_texts

    text, target = _summary_columns(options) if is_summary else _columns(source, options)
    request = TextsRequest(
        text=text,
        target=target,
        kind="summary" if is_summary else "class" if options.target is None else "number",
        pair=options.pair,
        validation=options.validation,
        test=options.test,
        drop_empty=options.drop_empty,
        form=options.form(),
    )
    described = import_texts(cache, name, source, request, replace=options.replace)
    _print_texts(described)


def _summary_columns(options: TextOptions) -> tuple[str, str]:
    if options.text is None or options.summary is None:
        raise OptionError("import summaries takes --text COLUMN and --summary COLUMN")
    return options.text, options.summary


def _columns(source: "Source", options: TextOptions) -> tuple[str, str]:
    """Return the columns of the texts and of the labels or numbers.

    Raises:
        OptionError: one is not named, or the texts are in a folder, which has no columns.
    """
    from longspan.data.sources.folders import has_columns
    from longspan.data.sources.table import LABEL, TEXT

    named = {name: getattr(options, name) for name in ("text", "label", "target", "pair")}
    if isinstance(source, Path) and not has_columns(source):
        if given := [f"--{name}" for name, column in named.items() if column is not None]:
            raise OptionError(
                f"{source} is a folder, whose subfolders are the classes; omit {', '.join(given)}"
            )
        return TEXT, LABEL
    if options.text is None or (options.label is None) == (options.target is None):
        raise OptionError(
            "import texts takes --text COLUMN, and either --label COLUMN (classes) or --target "
            "COLUMN (numbers)"
        )
    return options.text, options.label or options.target or ""


def _print_texts(described: "TextsDescription") -> None:
    """Print the rows of each class, rows that were left out, and what may be wrong."""
    from longspan.data.imports.targets import describe_classes, describe_shares, describe_splits

    notes = describe_classes(described.class_counts, described.classes, described.spellings)
    if described.class_counts:
        print_note("rows:", describe_splits(described.class_counts, described.classes))
        notes += describe_shares(described.sizes, described.shares)
    for note in notes:
        print_note("note:", note)
    target = "summary" if described.kind == "summary" else "target"
    messages = {
        "empty": f"row|rows without a text or {target} was|were left out",
        "in_another_split": "row|rows was|were left out whose text is in a held-out split too",
        "repeated": "row|rows repeats|repeat a text of its|their split (equal texts are in one "
        "split)",
        "without_token": "summary|summaries has|have no word for ROUGE, which scores it|them 0",
        "unseen": "held-out row|rows has|have a class that training lacks; scores count it|them",
    }
    counts = described.counts
    print_counts(counts, {name: text for name, text in messages.items() if name in counts})


def _import_corpus(name: str, paths: Sequence[str], options: ImportOptions, cache: Path) -> None:
    """Import a corpus, and print what was left out."""
    from longspan.data.corpora.imports import import_corpus
    from longspan.data.corpora.request import CorpusRequest

    held_out = (options.validation, options.test)
    validation, test = (str(x) if isinstance(x, Path) else x for x in held_out)
    request = CorpusRequest(
        paths=tuple(paths),
        weights=options.weights,
        validation=validation,
        test=test,
        **_tokens(options),
        form=options.form(),
    )
    with console_callback() as callback:
        described = import_corpus(cache, name, request, callback.on_build, replace=options.replace)
    messages = {
        "empty": "empty document|documents was|were left out",
        "repeated": "document|documents repeats|repeat another one and was|were left out",
        "in_another_split": "document|documents of a held-out path was|were left out of training",
    }
    print_counts(described.counts, messages)
    _print_unreadable(described.counts["unreadable"], described.reasons)
    if len(described.encodings) > 1:
        found = ", ".join(f"{count:,} {name}" for name, count in described.encodings.items())
        print_note("note:", f"text files by encoding: {found}")


def _tokens(options: ImportOptions) -> dict[str, Any]:
    """Return the given options of the objective and its tokens.

    Raises:
        OptionError: a tokenizer is given, and trained, or there is none.
    """
    training = options.training
    if options.tokenizer is not None and training:
        raise OptionError("--vocab-size and --kind train a tokenizer; omit them or --tokenizer")
    vocabulary = options.vocabulary or ("tokenizer" if training else None)
    if training and vocabulary != "tokenizer":
        raise OptionError(
            f"--vocab-size and --kind train a tokenizer; omit them or --vocabulary {vocabulary}"
        )
    given = {
        "objective": options.objective,
        "vocabulary": vocabulary,
        "tokenizer": options.tokenizer,
    }
    return {**training, **{name: value for name, value in given.items() if value is not None}}


def _print_unreadable(count: int, reasons: list[str]) -> None:
    """Print the number of unreadable documents and the first reasons."""
    if count:
        more = f"; and {count - len(reasons):,} more" if count > len(reasons) else ""
        print_note("note:", f"{count:,} unreadable left out: {'; '.join(reasons)}{more}")


def _import_beir(name: str, folder: str, options: TextOptions, cache: Path) -> None:
    """Import a collection, and print what was left out and splits that the folder lacks."""
    from longspan.data.own_splits import TEST, VALIDATION
    from longspan.tasks.ranking.imports import import_beir

    held_out = {VALIDATION: _share(options, "validation"), TEST: _share(options, "test")}
    with console_callback() as callback:
        described = import_beir(
            cache, name, Path(folder), held_out, callback.on_build, replace=options.replace
        )
    messages = {
        "empty_documents": "document|documents without title and text was|were left out",
        "empty_queries": "query|queries without text was|were left out",
        "judgments_of_unknown_queries": "judgment|judgments names|name a query that "
        "queries.jsonl lacks",
        "judgments_of_unknown_documents": "judgment|judgments names|name a document that "
        "corpus.jsonl lacks or has without a text",
        "missing_relevant_documents": "relevant document|documents of queries is|are not in "
        "corpus.jsonl: no ranking can find it|them, so scores leave it|them out (trec_eval counts "
        "it|them as missed)",
        "without_relevant_documents": "query|queries without a relevant document was|were left out",
        "unjudged_queries": "query|queries without a judgment was|were left out",
        "in_another_split": "query|queries was|were left out whose text is in a held-out split too",
    }
    print_counts(described.counts, messages)
    for place in described.unknown:
        print_note("note:", f"unknown id at {place}")
    for split, source in described.splits.items():
        if " of " in source:
            print_note("note:", f"{split} is {source}, as no file judges it")


def _share(options: TextOptions, split: str) -> float | None:
    given = getattr(options, split)
    if isinstance(given, float | None):
        return given
    raise OptionError(
        f"--{split} of import beir is a share of the queries, got {str(given)!r}; queries of a "
        f"file are judged in qrels/{'dev' if split == 'validation' else split}.tsv"
    )


def tokenizer(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    path: Annotated[
        list[str], typer.Argument(help="Text, JSON, CSV or parquet files, folders, or hf:NAME.")
    ],
    options: ReadingOptions,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
) -> None:
    """Train a tokenizer on texts and save it as a Hugging Face tokenizer."""
    from longspan.data.corpora.request import VOCAB_SIZE
    from longspan.data.corpora.survey import read_documents
    from longspan.data.sources.documents import CorpusSource
    from longspan.data.sources.text import ReadingReport
    from longspan.data.tokenizer_training import train_tokenizer
    from longspan.files import check_new_folder, new_folder

    check_new_folder(folder)
    form = options.form()
    report = ReadingReport(skip_bad=form.skip_bad)
    sources = [CorpusSource(path=x) for x in path]
    parts: Iterable[str] = (
        part for _, x in read_documents(sources, form, report) for part in x.parts
    )
    chosen = {"vocab_size": VOCAB_SIZE, **options.training}
    trained = train_tokenizer(parts, lowercase=lowercase, **chosen)
    with new_folder(folder) as part:
        trained.save_pretrained(part)
    _print_unreadable(report.num_bad, report.reasons)
    print_text(f"tokenizer: {folder}")
