"""Options and steps of `longspan data import texts`: texts of one's own become a task."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import print_counts, print_note
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.data.own_texts import OwnDescription
    from longspan.data.summaries.stored import SummariesDescription

KINDS = ("texts", "csv")  # in place of a task; csv is the earlier name
PANEL = "Own texts (import texts)"
Encoding = Annotated[str, typer.Option(help="Encoding of the file, such as latin-1.")]
Delimiter = Annotated[
    str | None,
    typer.Option(help="Character between two fields.", show_default="comma; tab in .tsv"),
]
OwnEncoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        help="Encoding of the file, such as latin-1.",
        show_default="utf-8",
        rich_help_panel=PANEL,
    ),
]
OwnDelimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        help="Character between two fields.",
        show_default="comma; tab in .tsv",
        rich_help_panel=PANEL,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text", help="Column of the texts; a folder of texts has none.", rich_help_panel=PANEL
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", help="Column of the classes.", rich_help_panel=PANEL)
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Column of numbers to predict (regression), in place of --label.",
        rich_help_panel=PANEL,
    ),
]
SummaryColumn = Annotated[
    str | None,
    typer.Option(
        "--summary",
        help="Column of the summaries of the texts (import summaries).",
        rich_help_panel=PANEL,
    ),
]
PairColumn = Annotated[
    str | None,
    typer.Option("--pair", help="Column of second texts, of pairs.", rich_help_panel=PANEL),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Name of the task.",
        show_default="that of the file",
        rich_help_panel=PANEL,
    ),
]
Validation = Annotated[
    str | None,
    typer.Option(
        "--validation",
        help="Share of the texts to hold out, or a file or folder.",
        show_default="0.1; of a folder with splits, that of the split",
        rich_help_panel=PANEL,
    ),
]
Test = Annotated[
    str | None,
    typer.Option(
        "--test",
        help="Share of the texts to hold out, or a file or folder.",
        show_default="0.1; of a folder with splits, that of the split",
        rich_help_panel=PANEL,
    ),
]
DropEmpty = Annotated[
    bool,
    typer.Option(
        "--drop-empty",
        help="Leave out rows without a text or target.",
        rich_help_panel=PANEL,
    ),
]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Replace other texts of the same name.", rich_help_panel=PANEL),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Options that apply to `import texts` alone; None or False if not given.

    Some apply to `import summaries` too, and `summary` to it alone.
    """

    text: str | None
    label: str | None
    target: str | None
    summary: str | None
    pair: str | None
    name: str | None
    validation: str | None
    test: str | None
    encoding: str | None
    delimiter: str | None
    drop_empty: bool
    replace: bool

    def refuse(self, task: str, allowed: Collection[str] = ()) -> None:
        """Refuse these options for the published files of a task, or for another import.

        Args:
            task: task or kind of import.
            allowed: options that apply all the same.

        Raises:
            OptionError: one is given.
        """
        refuse_given(self, "texts", task, allowed)


def refuse_given(options: object, kind: str, task: str, allowed: Collection[str] = ()) -> None:
    """Refuse options of one kind of import for a task, or for another kind.

    Args:
        options: data class of the options; None or False if not given.
        kind: kind of import that they apply to.
        task: task or kind of import.
        allowed: options that apply all the same.

    Raises:
        OptionError: one is given.
    """
    for name, value in vars(options).items():
        if name not in allowed and value not in (None, False):
            raise OptionError(
                f"--{name.replace('_', '-')} applies to `data import {kind}`, not to {task}; "
                "omit it"
            )


def import_file(path: Path, options: OwnOptions, cache: Path) -> "OwnDescription":
    """Import a file or folder of texts, register it as a task, and print what was left out.

    Raises:
        OptionError: a column is not named, or the name of the task is taken.
        DataError: the file is unusable; the message says why.
    """
    from longspan.arena.protocols.own import register_imports
    from longspan.data.own_classes import describe_classes, describe_shares, describe_splits
    from longspan.data.own_import import ImportRequest, import_texts, requested_shares
    from longspan.data.table_folders import table_name
    from longspan.data.text_files import UTF8, FileFormat
    from longspan.tasks import own_names

    if options.summary is not None:
        raise OptionError(
            "--summary applies to `data import summaries`, not to texts; omit it, or the classes"
        )
    text, target = _columns(path, options)
    name = options.name or table_name(path)
    check_free(name, own_names())
    request = ImportRequest(
        text=text,
        target=target,
        is_regression=options.target is not None,
        pair=options.pair,
        validation=share_or_file(options.validation),
        test=share_or_file(options.test),
        drop_empty=options.drop_empty,
        file_format=FileFormat(encoding=options.encoding or UTF8, delimiter=options.delimiter),
    )
    described = import_texts(cache, name, path, request, replace=options.replace)
    register_imports(cache)
    notes = describe_classes(described.class_counts, described.classes, described.spellings)
    if described.class_counts:
        print_note("rows:", describe_splits(described.class_counts, described.classes))
        notes += describe_shares(described.sizes, requested_shares(path, request))
    for note in notes:
        print_note("note:", note)
    print_notes(described, "target")
    return described


def _columns(path: Path, options: OwnOptions) -> tuple[str, str]:
    """Return the columns of the texts and of the labels or numbers.

    Raises:
        OptionError: one is not named, or the texts are in a folder, which has no columns.
    """
    from longspan.data.class_folders import LABEL, TEXT
    from longspan.data.table_folders import has_columns

    named = {name: getattr(options, name) for name in ("text", "label", "target", "pair")}
    if not has_columns(path):
        if given := [f"--{name}" for name, column in named.items() if column is not None]:
            raise OptionError(
                f"{path} is a folder, whose subfolders are the classes; omit {', '.join(given)}"
            )
        return TEXT, LABEL
    if options.text is None or (options.label is None) == (options.target is None):
        raise OptionError(
            "import texts takes --text COLUMN, and either --label COLUMN (classes) or --target "
            "COLUMN (numbers)"
        )
    return options.text, options.label or options.target or ""


def check_free(name: str, replaceable: Collection[str]) -> None:
    """Refuse the name of a mechanism, a protocol or another task.

    Args:
        name: name of an import.
        replaceable: tasks that an import of this kind may replace.

    Raises:
        OptionError: the name is taken.
    """
    from longspan.arena.protocols.base import protocol_names
    from longspan.arena.protocols.own import NAME
    from longspan.attention import MECHANISMS
    from longspan.tasks import TASKS

    kinds = {
        "a mechanism": MECHANISMS,
        "a protocol": {*protocol_names(), NAME},
        "a task": TASKS.keys() - set(replaceable),
        "this command": {*KINDS, "corpus", "beir", "summaries"},
    }
    for kind, names in kinds.items():
        if name in names:
            raise OptionError(f"{name!r} is the name of {kind}; pass another --name")


def share_or_path(text: str | None, default: float) -> float | str:
    """Parse a share such as 0.1, or else the path of a file or folder."""
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        return text


def share_or_file(text: str | None) -> float | Path | None:
    """Parse a share such as 0.1, or else the path of a file or folder; None if not given."""
    if text is None:
        return None
    found = share_or_path(text, 0.0)
    return Path(found) if isinstance(found, str) else found


def print_notes(described: "OwnDescription | SummariesDescription", target: str) -> None:
    """Print the rows that were left out, the repeated ones, and the next command.

    Args:
        described: import.
        target: what a row has besides its text.
    """
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
    print_note("next:", f"longspan train local {described.name}")
