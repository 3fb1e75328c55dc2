"""`longspan data import KIND PATH...` and `tokenizer`: a user's own files become a task."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from longspan.bounds import MOST_EXAMPLES, check_range
from longspan.cli.common import console_callback, print_counts, print_note, print_text
from longspan.cli.options import Read, Text, option, options
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.data.imports.texts import TextsDescription
    from longspan.data.sources.table import Source
    from longspan.data.sources.text import FileFormat

Kind = Literal["texts", "summaries", "corpus", "beir", "dpr"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_option = functools.partial(option, panel="Own files (import texts, summaries, corpus, beir, dpr)")
_corpus = functools.partial(option, panel="Corpora (import corpus)")
_held_out = "Share of the texts to hold out, or a file, folder or hf:NAME."
_shares = "0.1, of corpora 0.05; of a source with splits, that of the split"
ShareOrSource = float | Path | str | None


def read_source(text: str) -> Path | str:
    """Return a path, or hf:NAME as it is."""
    from longspan.data.sources.rows import HUB

    return text if text.startswith(HUB) else Path(text)


def read_share(text: str | None, _flag: str = "") -> ShareOrSource:
    """Return a share such as 0.1, or else a path or hf:NAME; None if not given."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return read_source(str(text))


def read_weights(text: str | None, flag: str) -> tuple[float, ...]:
    """Return comma-separated weights; none if not given.

    Raises:
        OptionError: one is not a number.
    """
    try:
        return tuple(float(x) for x in text.split(",")) if text else ()
    except ValueError:
        raise OptionError(f"{flag} must be numbers such as 2,1, got {text!r}") from None


TextColumn = Annotated[Text, _option("--text", "Column of the texts; a folder of texts has none.")]


@options
class FormatOptions:
    """Format of text files and tables; None if not given."""

    encoding: Annotated[
        Text,
        _option(
            "--encoding",
            "Encoding of text files, such as latin-1; of corpora several, of which the first that "
            "fits counts: utf-8,latin-1.",
            "utf-8",
        ),
    ] = None
    delimiter: Annotated[
        Text, _option("--delimiter", "Character between two fields.", "comma; tab in .tsv")
    ] = None

    def form(self) -> "FileFormat":
        """Return the format of one file, of one encoding."""
        from longspan.data.sources.text import UTF8, FileFormat

        return FileFormat(encodings=(self.encoding or UTF8,), delimiter=self.delimiter)


@options
class TextOptions(FormatOptions):
    """Options of texts of one's own; None or False if not given."""

    text: TextColumn = None
    label: Annotated[
        Text,
        _option(
            "--label",
            "Column of the classes; several columns of 0 and 1, a,b,c: any number of labels.",
        ),
    ] = None
    separator: Annotated[
        Text,
        _option("--separator", "Character between the labels of a text, which may be several."),
    ] = None
    target: Annotated[
        Text, _option("--target", "Column of numbers to predict (regression), in place of --label.")
    ] = None
    summary: Annotated[Text, _option("--summary", "Column of the summaries of the texts.")] = None
    pair: Annotated[Text, _option("--pair", "Column of second texts, of pairs.")] = None
    name: Annotated[Text, _option("--name", "Name of the task.", "that of the first path")] = None
    validation: Annotated[
        ShareOrSource, Read(read_share), _option("--validation", _held_out, _shares)
    ] = None
    test: Annotated[ShareOrSource, Read(read_share), _option("--test", _held_out, _shares)] = None
    drop_empty: Annotated[
        bool, _option("--drop-empty", "Leave out rows without a text or target.")
    ] = False
    replace: Annotated[bool, _option("--replace", "Replace another import of the same name.")] = (
        False
    )

    def refuse(self, task: str) -> None:
        """Refuse options that do not apply to a kind of import, or to the files of a task.

        Raises:
            OptionError: one is given.
        """
        for name, value in vars(self).items():
            kinds = [kind for kind in KINDS if name in _APPLY[kind]]
            if task not in kinds and value not in (None, False, ()):
                raise OptionError(
                    f"--{name.replace('_', '-')} applies to `data import {'|'.join(kinds)}`, not "
                    f"to {task}; omit it"
                )


@options
class ReadingOptions(FormatOptions):
    """Options of corpora and of tokenizers that are trained; None or False if not given."""

    text: TextColumn = None
    vocab_size: Annotated[
        int | None,
        _corpus("--vocab-size", "Ids of the tokenizer that is trained.", "8192"),
    ] = None
    kind: Annotated[
        Text,
        _corpus(
            "--kind",
            "Tokenizer that is trained: byte-level, bpe, wordpiece or unigram.",
            "byte-level",
        ),
    ] = None
    document: Annotated[
        Text,
        _corpus("--document", "Document of a text file: file, paragraph or line.", "file"),
    ] = None
    limit: Annotated[int | None, _corpus("--limit", "Most documents of a path.", "all")] = None
    skip_bad: Annotated[
        bool,
        _corpus("--skip-bad", "Leave out and count files and rows that cannot be read."),
    ] = False

    @property
    def training(self) -> dict[str, Any]:
        """The given options of the tokenizer that is trained."""
        arguments = {"vocab_size": self.vocab_size, "kind": self.kind}
        return {name: value for name, value in arguments.items() if value is not None}

    def form(self) -> "FileFormat":
        """Return the format of the files, of several encodings.

        Raises:
            OptionError: the limit is out of range.
            UnknownNameError: there is no such document of a file.
        """
        from longspan.data.sources import text

        if self.limit is not None:
            check_range("--limit", self.limit, 1, MOST_EXAMPLES)
        units = get_args(text.DocumentUnit)
        unit = check_name(self.document or "file", units, "document of a text file")
        return text.FileFormat(
            text=self.text or "text",
            document=cast("text.DocumentUnit", unit),
            encodings=tuple((self.encoding or text.UTF8).split(",")),
            delimiter=self.delimiter,
            limit=self.limit,
            skip_bad=self.skip_bad,
        )


@options
class ImportOptions(TextOptions, ReadingOptions):
    """Options of all kinds of imports; None or False if not given."""

    tokenizer: Annotated[
        Text,
        _corpus(
            "--tokenizer",
            "Folder or name of a Hugging Face tokenizer.",
            "train one on the training documents",
        ),
    ] = None
    objective: Annotated[
        Text,
        _corpus(
            "--objective", "Tokens that are predicted: masked, or next (left to right).", "masked"
        ),
    ] = None
    vocabulary: Annotated[
        Text,
        _corpus(
            "--vocabulary",
            "Tokens of --objective next: bytes, characters or tokenizer.",
            "bytes, or tokenizer if one of its options is given",
        ),
    ] = None
    weights: Annotated[
        tuple[float, ...],
        Read(read_weights),
        _corpus(
            "--weights",
            "Share of each path in training batches, such as 2,1.",
            "by number of tokens",
        ),
    ] = ()


_SHARED = {"name", "validation", "test", "replace"}
_TABLES = {*_SHARED, "text", "encoding", "delimiter", "drop_empty"}
_APPLY: dict[Kind, set[str]] = {
    "texts": {*_TABLES, "label", "target", "pair", "separator"},
    "summaries": {*_TABLES, "summary"},
    "corpus": {
        *_SHARED,
        *(field.name for field in dataclasses.fields(ImportOptions)),
    }
    - {"label", "target", "pair", "summary", "separator", "drop_empty"},
    "beir": _SHARED,
    "dpr": _SHARED,
}


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
    elif kind in ("beir", "dpr"):
        _import_collection(name, paths[0], kind, options, cache)
    else:
        _import_texts(name, read_source(paths[0]), options, cache, kind == "summaries")
    register_imports(cache)
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

    collections = {"beir": (BeirTask,), "dpr": (BeirTask,)}
    bases = {"corpus": (ImportedCorpus,), **collections}.get(kind, (OwnTexts, OwnSummaries))
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
    from longspan.data.imports.targets import SEPARATOR
    from longspan.data.imports.texts import TextsRequest, import_texts

    text, target = _summary_columns(options) if is_summary else _columns(source, options)
    request = TextsRequest(
        text=text,
        target=target,
        kind="summary" if is_summary else target_kind(options, target),
        separator=options.separator or SEPARATOR,
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

    columns = {name: getattr(options, name) for name in ("text", "label", "target", "pair")}
    if isinstance(source, Path) and not has_columns(source):
        if flags := [f"--{name}" for name, column in columns.items() if column is not None]:
            raise OptionError(
                f"{source} is a folder, whose subfolders are the classes; omit {', '.join(flags)}"
            )
        return TEXT, LABEL
    if options.label is not None and options.target is not None:
        raise OptionError("--label (classes) and --target (numbers) exclude each other; omit one")
    target = options.label or options.target
    if options.text is None or target is None:
        return _guess_columns(source, options, options.text, target)
    if target == options.text:
        raise OptionError(f"--text and the targets name one column, {target!r}; name two columns")
    return options.text, target


def target_kind(options: TextOptions, target: str) -> Literal["class", "labels", "number"]:
    """Return the kind of the targets that the options name.

    Raises:
        OptionError: numbers have a separator.
    """
    has_labels = options.separator is not None or "," in target
    if options.target is None:
        return "labels" if has_labels else "class"
    if options.separator is not None:
        raise OptionError("--separator is of the labels of --label, not of numbers; omit it")
    return "number"


def _guess_columns(
    source: "Source", options: TextOptions, text: str | None, target: str | None
) -> tuple[str, str]:
    """Return the columns of texts and classes where they are evident, and say so.

    They are in a table of two columns, of which the longer values are texts; and in one with the
    columns text and label.

    Raises:
        OptionError: they are not.
    """
    from longspan.data.sources.table import LABEL, TEXT, read_table

    table = read_table(source, options.form())
    names = [x for x in table.names if x not in (text, target)]
    num_missing = (text is None) + (target is None)
    if num_missing == len(names) and options.pair is None:
        sizes = {x: sum(map(len, table.column(x))) for x in names}
        names.sort(key=sizes.__getitem__)
    elif not {x for x, y in ((TEXT, text), (LABEL, target)) if y is None} - set(names):
        names = [LABEL, TEXT]
    else:
        raise OptionError(
            f"{source} has the columns {', '.join(table.names)}: pass --text COLUMN, and either "
            "--label COLUMN (classes) or --target COLUMN (numbers)"
        )
    text, target = text or names[-1], target or names[0]
    print_note("columns:", f"texts in {text!r}, classes in {target!r}")
    return text, target


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
        encodings = ", ".join(f"{count:,} {name}" for name, count in described.encodings.items())
        print_note("note:", f"text files by encoding: {encodings}")


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
    arguments = {
        "objective": options.objective,
        "vocabulary": vocabulary,
        "tokenizer": options.tokenizer,
    }
    return {**training, **{name: value for name, value in arguments.items() if value is not None}}


def _print_unreadable(count: int, reasons: list[str]) -> None:
    """Print the number of unreadable documents and the first reasons."""
    if count:
        more = f"; and {count - len(reasons):,} more" if count > len(reasons) else ""
        print_note("note:", f"{count:,} unreadable left out: {'; '.join(reasons)}{more}")


def _import_collection(
    name: str, folder: str, layout: str, options: TextOptions, cache: Path
) -> None:
    """Import a collection, and print what was left out and splits that the folder lacks."""
    from longspan.data.own_splits import NAMES, TEST, VALIDATION
    from longspan.tasks.ranking.imports import import_collection

    held_out = {split: _share(options, NAMES[split], layout) for split in (VALIDATION, TEST)}
    with console_callback() as callback:
        described = import_collection(
            cache,
            name,
            Path(folder),
            held_out,
            callback.on_build,
            layout=layout,
            replace=options.replace,
        )
    corpus, queries, *_ = described.files
    messages = {
        "empty_documents": "document|documents without title and text was|were left out",
        "empty_queries": "query|queries without text was|were left out",
        "judgments_of_unknown_queries": "judgment|judgments names|name a query that "
        f"{queries} lacks",
        "judgments_of_unknown_documents": "judgment|judgments names|name a document that "
        f"{corpus} lacks or has without a text",
        "missing_relevant_documents": "relevant document|documents of queries is|are not in "
        f"{corpus}: no ranking can find it|them, so scores leave it|them out (trec_eval counts "
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


def _share(options: TextOptions, split: str, layout: str) -> float | None:
    share = getattr(options, split)
    if isinstance(share, float | None):
        return share
    stem = "dev" if split == "validation" else split
    file = {"beir": f"qrels/{stem}.tsv", "dpr": f"a file such as nq-{stem}.json"}[layout]
    raise OptionError(
        f"--{split} of import {layout} is a share of the queries, got {str(share)!r}; queries of a "
        f"file are judged in {file}"
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
    arguments = {"vocab_size": VOCAB_SIZE, **options.training}
    trained = train_tokenizer(parts, lowercase=lowercase, **arguments)
    with new_folder(folder) as part:
        trained.save_pretrained(part)
    _print_unreadable(report.num_bad, report.reasons)
    print_text(f"tokenizer: {folder}")
