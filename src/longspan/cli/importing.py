"""`longspan data import KIND PATH...` and `tokenizer`: a user's own files become a task."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from longspan.bounds import MOST_EXAMPLES, check_range
from longspan.cli.activity import Activity
from longspan.cli.common import console_callback, err, print_counts, print_note, print_text
from longspan.cli.options import Read, Text, argument, field, option, options
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.data.imports.texts import TextsDescription
    from longspan.data.sources.table import Source
    from longspan.data.sources.text import FileFormat
    from longspan.tasks.ranking.collection import CollectionFiles
    from longspan.tasks.ranking.imports import BeirDescription

Kind = Literal["texts", "summaries", "questions", "search", "corpus", "beir", "dpr"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_held_out = "Share of the texts to hold out, or a file, folder or hf:NAME."
_tested = f"{_held_out[:-1]}; of texts with classes or numbers 0: no test split."
_shares = "0.1, of corpora 0.05; of a source with splits, that of the split"
ShareOrSource = float | Path | str | None


def read_source(text: str) -> Path | str:
    """Return a path, or hf:NAME as it is."""
    from longspan.data.sources.rows import HUB

    return text if text.startswith(HUB) else Path(text)


def _read_share(text: str | None, _flag: str = "") -> ShareOrSource:
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


TextColumn = Annotated[
    Text, option("Column of the texts; a folder of texts has none.", flag="--text")
]


@options
class FormatOptions:
    """Format of text files and tables; None if not given."""

    encoding: Text = field(
        "Encoding of text files, such as latin-1; of corpora several, of which the first that "
        "fits counts: utf-8,latin-1.",
        "utf-8",
    )
    delimiter: Text = field("Character between two fields.", "comma; tab in .tsv")

    def form(self) -> "FileFormat":
        """Return the format of one file, of one encoding."""
        from longspan.data.sources.text import UTF8, FileFormat

        return FileFormat(encodings=(self.encoding or UTF8,), delimiter=self.delimiter)


@options
class HeldOutOptions:
    """Options of every import; None or False if not given."""

    name: Text = field("Name of the task.", "that of the first path")
    validation: Annotated[ShareOrSource, Read(_read_share)] = field(_held_out, _shares)
    test: Annotated[ShareOrSource, Read(_read_share)] = field(_tested, _shares)
    replace: bool = field("Replace another import of the same name.", default=False)


@options
class RowOptions(HeldOutOptions, FormatOptions):
    """Options of rows of tables; None or False if not given."""

    text: TextColumn = None
    drop_empty: bool = field("Leave out rows without a text or target.", default=False)


@options
class LabelOptions(RowOptions):
    """Options of texts with classes or numbers; None or False if not given."""

    label: Text = field(
        "Column of the classes; several columns of 0 and 1, a,b,c: any number of labels."
    )
    separator: Text = field("Character between the labels of a text, which may be several.")
    target: Text = field("Column of numbers to predict (regression), in place of --label.")
    pair: Text = field("Column of second texts, of pairs.")


@options
class SummaryOptions(RowOptions):
    """Options of texts with summaries; None or False if not given."""

    summary: Text = field("Column of the summaries of the texts.")


@options
class QuestionOptions(HeldOutOptions, FormatOptions):
    """Options of questions."""

    question: str = field("Column of the questions.", default="question")
    context: str = field("Column of the documents that have the answers.", default="context")
    answer: str = field("Column of the answers.", default="answer")


@options
class SearchOptions(HeldOutOptions, FormatOptions):
    """Options of pairs of queries and documents."""

    query: str = field("Column of the queries.", default="query")
    document: str = field("Column of the documents that answer them.", default="document")


@options
class TextOptions(LabelOptions, SummaryOptions):
    """Options of texts of one's own of both kinds; None or False if not given."""

    def flags(self, *fields: str) -> list[str]:
        """Return the flags of these options, or of all, that are given."""
        names = fields or [field.name for field in dataclasses.fields(self)]
        return [
            f"--{x.replace('_', '-')}"
            for x in names
            if getattr(self, x) is not None and getattr(self, x) is not False
        ]


@options
class ReadingOptions(FormatOptions):
    """Options of corpora and of tokenizers that are trained; None or False if not given."""

    text: TextColumn = None
    vocab_size: int | None = field("Ids of the tokenizer that is trained.", "8192")
    kind: Text = field(
        "Tokenizer that is trained: byte-level, bpe, wordpiece or unigram.", "byte-level"
    )
    document: Text = field("Document of a text file: file, paragraph or line.", "file")
    limit: int | None = field("Most documents of a path.", "all")
    skip_bad: bool = field("Leave out and count files and rows that cannot be read.", default=False)

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
class CorpusOptions(HeldOutOptions, ReadingOptions):
    """Options of corpora; None or False if not given."""

    tokenizer: Text = field(
        "Folder or name of a Hugging Face tokenizer.", "train one on the training documents"
    )
    objective: Text = field("Tokens that are predicted: masked, or next (left to right).", "masked")
    vocabulary: Text = field(
        "Tokens of --objective next: bytes, characters or tokenizer.",
        "bytes, or tokenizer if one of its options is given",
    )
    weights: Annotated[tuple[float, ...], Read(read_weights)] = field(
        "Share of each path in training batches, such as 2,1.", "by number of tokens", default=()
    )


def import_files(kind: Kind, paths: Sequence[str], options: HeldOutOptions, cache: Path) -> str:
    """Import files of one's own; return the name of their task.

    Args:
        kind: kind of import.
        paths: files, folders, patterns of files or hf:NAME.
        options: options of the kind.
        cache: folder of built data sets.

    Raises:
        OptionError: an option or a path does not apply, or the name of the task is taken.
        DataError: a file is unusable; the message says why.
    """
    from longspan.arena.protocols.files import register_imports

    name = options.name or default_name(paths[0])
    _check_free(name, kind)
    if isinstance(options, CorpusOptions):
        _import_corpus(name, paths, options, cache)
    elif isinstance(options, QuestionOptions):
        _import_questions(name, read_source(paths[0]), options, cache)
    elif isinstance(options, RowOptions):
        _import_texts(name, read_source(paths[0]), options, cache, kind)
    else:
        _import_collection(name, paths[0], kind, options, cache)
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
        OwnQuestions,
        OwnSummaries,
        OwnTexts,
        imported_names,
    )

    others = {
        "corpus": (ImportedCorpus,),
        "questions": (OwnQuestions,),
        **dict.fromkeys(("search", "beir", "dpr"), (BeirTask,)),
    }
    bases = others.get(kind, (OwnTexts, OwnSummaries))
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
    name: str, source: "Source", options: RowOptions, cache: Path, kind: Kind
) -> None:
    """Import texts with classes, numbers or summaries, and print what may be wrong with them."""
    from longspan.data.imports.texts import TextsRequest, import_texts

    columns: dict[str, Any]
    if kind == "summaries":
        summary = cast("SummaryOptions", options).summary
        if options.text is None or summary is None:
            raise OptionError("import summaries takes --text COLUMN and --summary COLUMN")
        columns = {"text": options.text, "target": summary, "kind": "summary"}
    else:
        columns = _columns(source, cast("LabelOptions", options))
    request = TextsRequest(
        **columns,
        validation=options.validation,
        test=options.test,
        drop_empty=options.drop_empty,
        form=options.form(),
    )
    with Activity(err, f"reading {source}"):
        described = import_texts(cache, name, source, request, replace=options.replace)
    _print_texts(described)


def _columns(source: "Source", options: LabelOptions) -> dict[str, Any]:
    """Return the columns of the texts and of the labels or numbers, and the kind of these.

    Raises:
        OptionError: one is not named, or the texts are in a folder, which has no columns.
    """
    from longspan.data.imports.targets import SEPARATOR
    from longspan.data.sources.folders import has_columns
    from longspan.data.sources.table import LABEL, TEXT, read_table

    columns = {name: getattr(options, name) for name in ("text", "label", "target", "pair")}
    if isinstance(source, Path) and not has_columns(source):
        if flags := [f"--{name}" for name, column in columns.items() if column is not None]:
            raise OptionError(
                f"{source} is a folder, whose subfolders are the classes; omit {', '.join(flags)}"
            )
        return {"text": TEXT, "target": LABEL}
    if options.label is not None and options.target is not None:
        raise OptionError("--label (classes) and --target (numbers) exclude each other; omit one")
    target = options.label or options.target
    text = options.text
    if text is None or target is None:
        text, target = _guess_columns(source, options, text, target)
    columns_of_table = read_table(source, options.form()).names if "," in target else ()
    if target == text:
        raise OptionError(f"--text and the targets name one column, {target!r}; name two columns")
    if options.pair in (text, target):
        raise OptionError(
            f"--pair {options.pair} is a column of the texts or targets; name another"
        )
    return {
        "text": text,
        "target": target,
        "kind": target_kind(options, target, columns_of_table),
        "separator": options.separator or SEPARATOR,
        "pair": options.pair,
    }


def target_kind(
    options: LabelOptions, target: str, columns: Collection[str] = ()
) -> Literal["class", "labels", "number"]:
    """Return the kind of the targets that the options name.

    Args:
        options: options.
        target: column of the targets, or columns of labels with commas between them.
        columns: columns of the table, of which one may have a comma in its name.

    Raises:
        OptionError: numbers have a separator, or it is empty.
    """
    if options.separator == "":
        raise OptionError("--separator must be a character, got none; omit it for one class a text")
    has_labels = options.separator is not None or ("," in target and target not in columns)
    if options.target is None:
        return "labels" if has_labels else "class"
    if options.separator is not None:
        raise OptionError("--separator is of the labels of --label, not of numbers; omit it")
    return "number"


def _guess_columns(
    source: "Source", options: LabelOptions, text: str | None, target: str | None
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
    noun = {"class": "classes", "labels": "labels", "number": "numbers"}
    what = noun[target_kind(options, target, table.names)]
    print_note("columns:", f"texts in {text!r}, {what} in {target!r}")
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
    print_counts(described.counts, messages)


def _import_questions(name: str, source: "Source", options: QuestionOptions, cache: Path) -> None:
    """Import questions, and print what was left out."""
    from longspan.data.own_splits import TEST, VALIDATION
    from longspan.tasks.questions.imports import QuestionColumns, import_questions

    with Activity(err, f"reading {source}"):
        described = import_questions(
            cache,
            name,
            source,
            {VALIDATION: options.validation, TEST: options.test},
            QuestionColumns(
                question=options.question, context=options.context, answer=options.answer
            ),
            options.form(),
            replace=options.replace,
        )
    messages = {
        "empty": "row|rows without a question or document was|were left out",
        "without_answer": "question|questions without an answer was|were left out",
        "answers_misplaced": "answer|answers is|are not at the given place, or not in the "
        "document; scores count it|them, training does not",
        "in_another_split": "training question|questions about a document of a held-out split was|"
        "were left out",
    }
    print_counts(described.counts, messages)


def _import_corpus(name: str, paths: Sequence[str], options: CorpusOptions, cache: Path) -> None:
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


def _tokens(options: CorpusOptions) -> dict[str, Any]:
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
    name: str, place: str, layout: str, options: HeldOutOptions, cache: Path
) -> None:
    """Import a collection, and print what was left out and splits that the folder lacks."""
    from longspan.data.own_splits import SPLITS, TEST, VALIDATION
    from longspan.tasks.ranking.imports import import_collection
    from longspan.tasks.ranking.pair_table import read_pairs

    folder: Path | CollectionFiles = Path(place)
    if isinstance(options, SearchOptions):
        folder = read_pairs(Path(place), options.query, options.document, options.form())
    held_out = {split: _share(options, SPLITS[split], layout) for split in (VALIDATION, TEST)}
    with console_callback() as callback:
        described = import_collection(
            cache,
            name,
            folder,
            held_out,
            callback.on_build,
            layout=layout,
            replace=options.replace,
        )
    _print_collection(described)


def _print_collection(described: "BeirDescription") -> None:
    """Print what was left out, and splits that the folder lacks."""
    files = [*described.files]
    corpus, queries = files[0], files[min(1, len(files) - 1)]  # a table has both
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


def _share(options: HeldOutOptions, split: str, layout: str) -> float | None:
    share = getattr(options, split)
    if isinstance(share, float | None):
        return share
    stem = "dev" if split == "validation" else split
    files = {
        "beir": f"; queries of a file are judged in qrels/{stem}.tsv",
        "dpr": f"; queries of a file are judged in a file such as nq-{stem}.json",
    }
    raise OptionError(
        f"--{split} of import {layout} is a share of the queries, got {str(share)!r}"
        f"{files.get(layout, '')}"
    )


def tokenizer(
    path: Annotated[list[str], argument("Text, JSON, CSV or parquet files, folders, or hf:NAME.")],
    output: Annotated[Path, option("Folder to create.")],
    options: ReadingOptions,
    lowercase: bool = field("Ignore case.", default=False),
) -> None:
    """Train a tokenizer on texts and save it as a Hugging Face tokenizer.

    Of one folder with splits, as `data import corpus` finds them, it reads those of train.
    """
    from longspan.data.corpora.request import VOCAB_SIZE, CorpusRequest
    from longspan.data.corpora.survey import read_documents
    from longspan.data.own_splits import SPLITS, TRAIN
    from longspan.data.sources.text import ReadingReport
    from longspan.data.tokenizer_training import train_tokenizer
    from longspan.files import check_new_folder, new_folder

    check_new_folder(output)
    form = options.form()
    report = ReadingReport(skip_bad=form.skip_bad)
    _, every, _ = CorpusRequest(paths=tuple(path)).resolve()
    sources = [source for source in every if source.split == SPLITS[TRAIN]]
    parts: Iterable[str] = (
        part for _, x in read_documents(sources, form, report) for part in x.parts
    )
    arguments = {"vocab_size": VOCAB_SIZE, **options.training}
    trained = train_tokenizer(parts, lowercase=lowercase, **arguments)
    with new_folder(output) as part:
        trained.save_pretrained(part)
    _print_unreadable(report.num_bad, report.reasons)
    print_text(f"tokenizer: {output}")
