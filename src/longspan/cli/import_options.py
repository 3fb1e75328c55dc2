"""Options of `longspan data import KIND PATH...`, of which other commands take some."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_type_hints

import typer

from longspan.bounds import MOST_EXAMPLES, check_range
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.data.sources.text import FileFormat

Kind = Literal["texts", "summaries", "corpus", "beir"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PANEL, _CORPUS = "Own files (import texts, summaries, corpus, beir)", "Corpora (import corpus)"


def _option(flag: str, text: str, default: str | None = None, panel: str = _PANEL) -> Any:
    return typer.Option(
        flag, help=text, show_default=True if default is None else default, rich_help_panel=panel
    )


_held_out = "Share of the texts to hold out, or a file, folder or hf:NAME."
_shares = "0.1, of corpora 0.05; of a source with splits, that of the split"
Text = str | None
TextColumn = Annotated[Text, _option("--text", "Column of the texts; a folder of texts has none.")]
Encoding = Annotated[
    Text,
    _option(
        "--encoding",
        "Encoding of text files, such as latin-1; of corpora several, of which the first that fits "
        "counts: utf-8,latin-1.",
        "utf-8",
    ),
]
Delimiter = Annotated[
    Text, _option("--delimiter", "Character between two fields.", "comma; tab in .tsv")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of texts of one's own; None or False if not given."""

    text: TextColumn = None
    label: Annotated[Text, _option("--label", "Column of the classes.")] = None
    target: Annotated[
        Text, _option("--target", "Column of numbers to predict (regression), in place of --label.")
    ] = None
    summary: Annotated[Text, _option("--summary", "Column of the summaries of the texts.")] = None
    pair: Annotated[Text, _option("--pair", "Column of second texts, of pairs.")] = None
    name: Annotated[Text, _option("--name", "Name of the task.", "that of the first path")] = None
    validation: Annotated[Text, _option("--validation", _held_out, _shares)] = None
    test: Annotated[Text, _option("--test", _held_out, _shares)] = None
    encoding: Encoding = None
    delimiter: Delimiter = None
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
            if task not in kinds and value not in (None, False):
                raise OptionError(
                    f"--{name.replace('_', '-')} applies to `data import {'|'.join(kinds)}`, not "
                    f"to {task}; omit it"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options of corpora and of tokenizers that are trained; None or False if not given."""

    text: TextColumn = None
    encoding: Encoding = None
    delimiter: Delimiter = None
    vocab_size: Annotated[
        int | None,
        _option("--vocab-size", "Ids of the tokenizer that is trained.", "8192", _CORPUS),
    ] = None
    kind: Annotated[
        Text,
        _option(
            "--kind",
            "Tokenizer that is trained: byte-level, bpe, wordpiece or unigram.",
            "byte-level",
            _CORPUS,
        ),
    ] = None
    document: Annotated[
        Text,
        _option("--document", "Document of a text file: file, paragraph or line.", "file", _CORPUS),
    ] = None
    limit: Annotated[
        int | None, _option("--limit", "Most documents of a path.", "all", _CORPUS)
    ] = None
    skip_bad: Annotated[
        bool,
        _option(
            "--skip-bad", "Leave out and count files and rows that cannot be read.", panel=_CORPUS
        ),
    ] = False

    @property
    def training(self) -> dict[str, Any]:
        """The given options of the tokenizer that is trained."""
        given = {"vocab_size": self.vocab_size, "kind": self.kind}
        return {name: value for name, value in given.items() if value is not None}

    def form(self) -> "FileFormat":
        """Return the format of the files.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportOptions(TextOptions, ReadingOptions):
    """Options of all kinds of imports; None or False if not given."""

    tokenizer: Annotated[
        Text,
        _option(
            "--tokenizer",
            "Folder or name of a Hugging Face tokenizer.",
            "train one on the training documents",
            _CORPUS,
        ),
    ] = None
    objective: Annotated[
        Text,
        _option(
            "--objective",
            "Tokens that are predicted: masked, or next (left to right).",
            "masked",
            _CORPUS,
        ),
    ] = None
    vocabulary: Annotated[
        Text,
        _option(
            "--vocabulary",
            "Tokens of --objective next: bytes, characters or tokenizer.",
            "bytes, or tokenizer if one of its options is given",
            _CORPUS,
        ),
    ] = None
    weights: Annotated[
        Text,
        _option(
            "--weights",
            "Share of each path in training batches, such as 2,1.",
            "by number of tokens",
            _CORPUS,
        ),
    ] = None


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


def takes_options(cls: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a data class in place of its `options` (decorator)."""

    def replace_parameter(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(cls, include_extras=True)
        fields = {
            field.name: inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(cls)
        }
        signature = inspect.signature(command)
        others = [x for name, x in signature.parameters.items() if name != "options"]
        parameters = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in others]

        @functools.wraps(command)
        def take(**values: Any) -> None:
            options = cls(**{name: values.pop(name) for name in fields})
            command(**values, options=options)

        del take.__dict__["__wrapped__"]
        merged = [*parameters, *fields.values()]
        take.__dict__["__signature__"] = signature.replace(parameters=merged)
        take.__annotations__ = {x.name: x.annotation for x in merged}
        return take

    return replace_parameter
