"""Options of `longspan data import KIND PATH...`, of which other commands take some."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from longspan.bounds import MOST_EXAMPLES, check_range
from longspan.cli.options import Read, Text, option, options
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.data.sources.text import FileFormat

Kind = Literal["texts", "summaries", "corpus", "beir"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_option = functools.partial(option, panel="Own files (import texts, summaries, corpus, beir)")
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
    label: Annotated[Text, _option("--label", "Column of the classes.")] = None
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
        given = {"vocab_size": self.vocab_size, "kind": self.kind}
        return {name: value for name, value in given.items() if value is not None}

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
    "texts": {*_TABLES, "label", "target", "pair"},
    "summaries": {*_TABLES, "summary"},
    "corpus": {
        *_SHARED,
        *(field.name for field in dataclasses.fields(ImportOptions)),
    }
    - {"label", "target", "pair", "summary", "drop_empty"},
    "beir": _SHARED,
}
