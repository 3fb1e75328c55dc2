"""Options and steps of `longspan data import corpus` and `longspan data tokenizer`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from longspan.bounds import MOST_EXAMPLES, check_range
from longspan.cli.common import console_callback, print_counts, print_note, print_text
from longspan.cli.own_texts import OwnOptions, check_free, refuse_given, share_or_path
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.data.corpora.documents import CorpusFormat
    from longspan.data.corpora.imports import CorpusDescription

KIND = "corpus"  # in place of a task
PANEL = "Corpora (import corpus)"
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="Folder or name of a Hugging Face tokenizer.",
        show_default="train one on the training documents",
        rich_help_panel=PANEL,
    ),
]
VocabSize = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        help="Ids of the tokenizer that is trained.",
        show_default="8192",
        rich_help_panel=PANEL,
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        help="Tokenizer that is trained: byte-level, bpe, wordpiece or unigram.",
        show_default="byte-level",
        rich_help_panel=PANEL,
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="Tokens that are predicted: masked, or next (left to right).",
        show_default="masked",
        rich_help_panel=PANEL,
    ),
]
Vocabulary = Annotated[
    str | None,
    typer.Option(
        "--vocabulary",
        help="Tokens of --objective next: bytes, characters or tokenizer.",
        show_default="bytes, or tokenizer if one of its options is given",
        rich_help_panel=PANEL,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Share of each path in training batches, such as 2,1.",
        show_default="by number of tokens",
        rich_help_panel=PANEL,
    ),
]
DocumentUnit = Annotated[
    str | None,
    typer.Option(
        "--document",
        help="Document of a text file: file, paragraph or line.",
        show_default="file",
        rich_help_panel=PANEL,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", help="Most documents of a path.", show_default="all", rich_help_panel=PANEL
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out and count files and lines that cannot be read.",
        rich_help_panel=PANEL,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option("--text", help="Column or field of the texts.", show_default="text"),
]
Encodings = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        help="Encodings of text files; the first that fits counts: utf-8,latin-1.",
        show_default="utf-8",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Options that apply to corpora alone; None or False if not given."""

    tokenizer: str | None = None
    vocab_size: int | None = None
    kind: str | None = None
    objective: str | None = None
    vocabulary: str | None = None
    weights: str | None = None
    document: str | None = None
    limit: int | None = None
    skip_bad: bool = False

    def refuse(self, task: str) -> None:
        """Refuse these options for anything but a corpus.

        Raises:
            OptionError: one is given.
        """
        refuse_given(self, KIND, task)

    def form(self, text: str | None, encoding: str | None) -> "CorpusFormat":
        """Return the format of the files.

        Args:
            text: column of the texts.
            encoding: encodings of text files, separated by commas.

        Raises:
            OptionError: the limit is out of range.
            UnknownNameError: there is no such document of a file.
        """
        from typing import get_args

        from longspan.data.corpora import documents

        defaults = documents.CorpusFormat()
        units = get_args(documents.DocumentUnit)
        if self.limit is not None:
            check_range("--limit", self.limit, 1, MOST_EXAMPLES)
        unit = check_name(self.document or defaults.document, units, "document of a text file")
        return documents.CorpusFormat(
            text=text or defaults.text,
            document=cast("documents.DocumentUnit", unit),
            encodings=tuple(encoding.split(",")) if encoding else defaults.encodings,
            limit=self.limit,
            skip_bad=self.skip_bad,
        )


def import_paths(
    names: list[str], shared: OwnOptions, options: CorpusOptions, cache: Path
) -> "CorpusDescription":
    """Import a corpus, register it as a task, and print what was left out.

    Args:
        names: name of the corpus, then its paths.
        shared: options of `import texts`, of which corpora have some.
        options: options of corpora alone.
        cache: folder of built data sets.

    Raises:
        OptionError: an option is invalid, or the name of the task is taken.
        DataError: a file is unusable; the message has file and line.
    """
    from longspan.arena.protocols.own import register_imports
    from longspan.data.corpora.imports import import_corpus
    from longspan.data.corpora.request import CorpusRequest
    from longspan.tasks import corpus_names

    name, *paths = names
    if not paths:
        raise OptionError("import corpus takes a name and paths: corpus NAME PATH...")
    dataclasses.replace(
        shared, text=None, encoding=None, validation=None, test=None, replace=False
    ).refuse("a corpus")
    check_free(name, corpus_names())
    request = CorpusRequest(
        paths=tuple(paths),
        weights=_parse_weights(options.weights),
        validation=_share_or_path(shared.validation),
        test=_share_or_path(shared.test),
        **_tokens(options),
        form=options.form(shared.text, shared.encoding),
    )
    with console_callback() as callback:
        described = import_corpus(cache, name, request, callback.on_build, replace=shared.replace)
    register_imports(cache)
    _print_notes(described)
    return described


def tokenizer(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    path: Annotated[
        list[str], typer.Argument(help="Text, JSONL or parquet files, folders, or hf:NAME.")
    ],
    vocab_size: VocabSize = None,
    kind: Kind = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    text: TextColumn = None,
    encoding: Encodings = None,
    document: DocumentUnit = None,
    limit: Limit = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train a tokenizer on texts and save it as a Hugging Face tokenizer."""
    options = CorpusOptions(
        vocab_size=vocab_size, kind=kind, document=document, limit=limit, skip_bad=skip_bad
    )
    _train(folder, path, options.form(text, encoding), options, lowercase)
    print_text(f"tokenizer: {folder}")


def _train(
    folder: Path, paths: list[str], form: "CorpusFormat", options: CorpusOptions, lowercase: bool
) -> None:
    from longspan.data.corpora.documents import ReadingReport
    from longspan.data.corpora.request import VOCAB_SIZE
    from longspan.data.corpora.sources import Source
    from longspan.data.corpora.survey import read_documents
    from longspan.data.tokenizer_training import train_tokenizer
    from longspan.files import check_new_folder, new_folder

    check_new_folder(folder)
    report = ReadingReport(skip_bad=form.skip_bad)
    sources = [Source(path=path) for path in paths]
    parts = (part for _, x in read_documents(sources, form, report) for part in x.parts)
    chosen = {"vocab_size": VOCAB_SIZE, **_training(options)}
    trained = train_tokenizer(parts, lowercase=lowercase, **chosen)
    with new_folder(folder) as part:
        trained.save_pretrained(part)
    _print_unreadable(report.num_bad, report.reasons)


def _tokens(options: CorpusOptions) -> dict[str, Any]:
    """Return the given options of the objective and its tokens.

    Raises:
        OptionError: a tokenizer is given, and trained, or there is none.
    """
    training = _training(options)
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


def _share_or_path(text: str | None) -> float | str | None:
    return None if text is None else share_or_path(text, 0.0)


def _training(options: CorpusOptions) -> dict[str, Any]:
    """Return the given options of the tokenizer that is trained."""
    given = {"vocab_size": options.vocab_size, "kind": options.kind}
    return {name: value for name, value in given.items() if value is not None}


def _parse_weights(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(x) for x in text.split(",")) if text else ()
    except ValueError:
        raise OptionError(f"--weights must be numbers such as 2,1, got {text!r}") from None


def _print_notes(described: "CorpusDescription") -> None:
    """Print what was left out."""
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


def _print_unreadable(count: int, reasons: list[str]) -> None:
    """Print the number of unreadable documents and the first reasons."""
    if count:
        more = f"; and {count - len(reasons):,} more" if count > len(reasons) else ""
        print_note("note:", f"{count:,} unreadable left out: {'; '.join(reasons)}{more}")
