"""`longspan data`: build, import, verify, describe and show data sets."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer.core import TyperGroup

from longspan.cli.activity import Activity
from longspan.cli.common import (
    console_callback,
    err,
    print_json,
    print_next,
    print_note,
    print_text,
)
from longspan.cli.importing import (
    CorpusOptions,
    HeldOutOptions,
    Kind,
    LabelOptions,
    QuestionOptions,
    SearchOptions,
    SummaryOptions,
    import_files,
    tokenizer,
)
from longspan.cli.options import (
    DEFAULT_PROTOCOL,
    App,
    CacheOptions,
    DataOptions,
    Json,
    Pairs,
    SplitName,
    argument,
    default_protocol,
    field,
    name_protocol,
    options,
)
from longspan.errors import DataError, OptionError, check_name

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.tasks import Task

app = App("data", help="Build, import, verify and show data sets.")

TaskName = Annotated[str, argument("Task; `longspan list tasks`.")]


@options
class TaskOptions:
    """Options of a task: those of a protocol, and changes to them."""

    protocol: str | None = field(
        "Protocol, or file of one, whose task options to use.",
        f"{DEFAULT_PROTOCOL}, if it has the task",
        callback=name_protocol,
    )
    changes: Pairs = field("Set an option of the task: length=512.", flag="--set", default=dict)

    def build(self, name: str, *, released: bool = False) -> "Task":
        """Return the task of a name.

        Args:
            name: name of the task.
            released: set an option `source` to read published files.
        """
        from longspan.arena import get
        from longspan.tasks import TASKS, build

        cls = TASKS[check_name(name, TASKS, "task")]
        definition = get(self.protocol or default_protocol([name], DEFAULT_PROTOCOL))
        if self.protocol is not None:
            definition.check_task(name)
        values = dict(definition.recipe(name).task_options) if name in definition.tasks else {}
        if released and "source" in {field.name for field in dataclasses.fields(cls.Options)}:
            values["source"] = "release"
        return build(name, {**values, **self.changes})


_HUB = re.compile(r"hub|hf:(.+)")
# Reviews may contain control characters, which a terminal would execute.
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\ufffd")


@app.command(name="list")
def list_(folders: DataOptions, as_json: Json = False) -> None:
    """List the tasks with their sizes, sources and built data sets."""
    from longspan.tasks.data_cards import list_tasks

    paths = folders.run_paths()
    rows = list_tasks(paths.cache, paths.data)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print_text(Text.assemble((row["name"], "bold"), "  ", row["title"]))
        for line in _lines(row):
            print_text(f"  {line}")


@app.command()
def build(
    task: TaskName, choices: TaskOptions, folders: DataOptions, as_json: Json = False
) -> None:
    """Build a task's data set into the cache, with the options of a protocol."""
    paths = folders.run_paths()
    _build(choices.build(task), paths, as_json)


@options
class ImportOptions(TaskOptions, CacheOptions):
    """Options of the task that is built, and the cache."""


class _ImportGroup(TyperGroup):
    """Kinds of imports; another first word is a task, whose published files are read."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the first word, or that of published files with all words.

        Raises:
            OptionError: an option is of another kind.
        """
        words = args if args[0] in self.commands else ["TASK", *args]
        flags = {
            name: {y for x in one.params for y in x.opts} for name, one in self.commands.items()
        }
        for flag in (x.partition("=")[0] for x in args if x.startswith("--")):
            kinds = [name for name in flags if flag in flags[name]]
            if kinds and words[0] not in kinds:
                raise OptionError(
                    f"{flag} applies to `data import {'|'.join(kinds)}`, not to {args[0]}; omit it"
                )
        return super().resolve_command(ctx, words)


imports = App(
    "data import",
    help="Build data sets from files: those of a published TASK, or one's own by kind.",
    cls=_ImportGroup,
    subcommand_metavar="KIND|TASK PATH [OPTIONS]",
)
app.add_typer(imports, name="import")


@imports.command("TASK")
def published(
    task: TaskName,
    path: Annotated[
        str, argument("Folder or archive; or hub, or hf:NAME, of the Hugging Face hub.")
    ],
    choices: ImportOptions,
    as_json: Json = False,
) -> None:
    """Build the data set of a task from its published files, or from the hub."""
    from longspan.data import hub
    from longspan.tasks.data_cards import is_generated
    from longspan.temporaries import locked_folder

    data_set, paths = choices.build(task, released=True), choices.run_paths()
    if is_generated(data_set):
        raise OptionError(
            f"{task} is generated and reads no files; run `longspan data build {task}`"
        )
    if not (match := _HUB.fullmatch(path)):
        _build(data_set, dataclasses.replace(paths, data=Path(path)), as_json)
        return
    repository = match[1] or data_set.info.hub
    if repository is None:
        raise OptionError(f"{task} has no known data set on the hub; pass hf:NAME or a path")
    paths.cache.mkdir(parents=True, exist_ok=True)
    with locked_folder(paths.cache / "hub") as folder:
        with Activity(err, f"downloading {repository}"):
            fetched = hub.fetch_parquet(repository, folder)
        _build(data_set, dataclasses.replace(paths, data=fetched), as_json)


_FILES = "CSV, TSV, JSON, parquet or Arrow file, a pattern or folder of them, or hf:NAME"
_KINDS: dict[Kind, tuple[type[HeldOutOptions], str, str]] = {
    "texts": (
        LabelOptions,
        f"{_FILES}; or a folder with a subfolder for each class, or for each split with these.",
        "Make a task of texts with classes or numbers. Unless they are given, the splits follow "
        "from a hash of the text.",
    ),
    "summaries": (SummaryOptions, f"{_FILES}.", "Make a task whose model writes summaries."),
    "questions": (
        QuestionOptions,
        f"JSON file in the format of SQuAD, or a {_FILES}.",
        "Make a task whose model marks answers in documents. Questions about one document are in "
        "one split.",
    ),
    "search": (
        SearchOptions,
        f"{_FILES.removesuffix(', or hf:NAME')}.",
        "Make a retrieval task of pairs of queries and documents; all documents are searched.",
    ),
    "corpus": (
        CorpusOptions,
        "Text files, tables, patterns or folders of them, or hf:NAME.",
        "Make a task of masked language modeling, or with --objective next of left-to-right.",
    ),
    "beir": (
        HeldOutOptions,
        "Folder of corpus.jsonl, queries.jsonl and qrels/*.tsv.",
        "Make a retrieval task of a collection in the layout of BEIR.",
    ),
    "dpr": (
        HeldOutOptions,
        "Folder of psgs_w100.tsv and nq-train.json.",
        "Make a retrieval task in the layout of DPR; documents are the articles of the passages.",
    ),
}


def _add_kind(kind: Kind, options: type[HeldOutOptions], place: str, about: str) -> None:
    """Add the command of a kind of imports, with its options alone."""

    def command(
        path: list[str], files: HeldOutOptions, choices: ImportOptions, as_json: Json = False
    ) -> None:
        paths = choices.run_paths()
        places = [path] if isinstance(path, str) else path
        name = import_files(kind, places, files, paths.cache)
        _build(choices.build(name), paths, as_json)
        command = "pretrain" if kind == "corpus" else "train"
        print_next(command, "local", name, cache=paths.cache)

    typed = list[str] if kind == "corpus" else str
    where = Annotated[typed, argument(place)]  # type: ignore[valid-type]
    command.__annotations__ |= {"path": where, "files": options}
    command.__name__, command.__doc__ = kind, f"{about} It is named after the first path."
    imports.command()(command)


for _kind, _settings in _KINDS.items():
    _add_kind(_kind, *_settings)


app.command()(tokenizer)


@app.command()
def verify(
    folders: CacheOptions,
    task: Annotated[str | None, argument("Task.", "all")] = None,
    as_json: Json = False,
) -> None:
    """Verify the checksums of built data sets."""
    from longspan.data.cache import verify as check
    from longspan.tasks import TASKS

    folder = folders.run_paths().cache
    if task is not None:
        check_name(task, TASKS, "task")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder of built data sets; pass --cache FOLDER")
    data_sets = check(folder, task)
    if as_json:
        print_json({"cache": str(folder), "verified": [str(path) for path in data_sets]})
        return
    print_text(f"{len(data_sets)} data sets in {folder} verified")
    for path, record in data_sets.items():
        count, size = (sum(getattr(x, y) for x in record.files.values()) for y in ("rows", "bytes"))
        what = f"  {path}: {count:,} rows, {size:,} bytes, {record.source}"
        print_text(what)


@app.command()
def card(task: TaskName, choices: TaskOptions, folders: CacheOptions) -> None:
    """Print the data card of a task in Markdown, with statistics if it is built."""
    from longspan.tasks import data_cards

    paths = folders.run_paths()
    sys.stdout.write(data_cards.write_card(choices.build(task), paths.cache))


@app.command()
def show(
    task: TaskName,
    choices: TaskOptions,
    folders: CacheOptions,
    split: SplitName = "train",
    row: int = field("First example, counted from 0.", default=0),
    count: int = field("Number of examples.", default=1),
    output: Path | None = field("Picture of the example to write: FILE.svg or FILE.png."),
) -> None:
    """Print examples of a built data set, or write one as a picture."""
    from longspan.tasks import SPLITS

    paths = folders.run_paths()
    data_set = choices.build(task)
    name = next(one for one in SPLITS if one == check_name(split, SPLITS, "split"))
    if count < 1:
        raise OptionError(f"--count must be at least 1, got {count}")
    if output is not None and (count > 1 or output.suffix not in (".png", ".svg")):
        raise OptionError(
            f"--output takes one example, FILE.svg or FILE.png; got {output} and --count {count}"
        )
    _open_built(data_set, paths.cache)
    if output is not None:
        _draw(data_set.svg(name, row), task, output)
        return
    shown = [f"{name} {at}\n{data_set.show(name, at)}\n" for at in range(row, row + count)]
    sys.stdout.write("\n".join(shown).translate(_CONTROL))


def _open_built(task: "Task", cache: Path) -> None:
    """Open a built data set.

    Raises:
        DataError: it is not built; the message lists those that are.
    """
    from longspan.tasks.data_cards import list_built

    if task.open_built(cache):
        return
    name = task.info.name
    alternatives = [
        _format(one["options"]) for one in list_built(task, cache) if one["problem"] is None
    ]
    built = (
        f", or use the options of a built one: {'; '.join(alternatives)}" if alternatives else ""
    )
    raise DataError(
        f"{name} is not built with these options; run `longspan data build {name}` with the same "
        f"--protocol and --set{built}"
    )


def _build(task: "Task", paths: "RunPaths", as_json: bool) -> None:
    """Build a data set with a progress bar, and print what was built."""
    from longspan.tasks import SPLITS
    from longspan.tasks.data_cards import changed_options

    with console_callback() as callback:
        task.open(paths.cache, paths.data, callback.on_build)
    record: dict[str, Any] = {
        "task": task.info.name,
        "folder": str(task.dataset.folder),
        "options": changed_options(task, dataclasses.asdict(task.options)),
        **dict(zip(SPLITS, map(task.size, SPLITS), strict=True)),
        "source": task.source,
        "checksum": task.checksum,
    }
    notes = task.build_notes
    if as_json:
        print_json(record | ({"notes": notes} if notes else {}))
        return
    for name, value in record.items():
        print_text(f"{name}: {_format(value)}")
    for note in notes:
        print_note("note:", note)


def _draw(picture: str | None, task: str, path: Path) -> None:
    """Write a picture as SVG or PNG."""
    from longspan.files import atomic_write

    if picture is None:
        raise OptionError(f"examples of {task} are text and have no picture; omit --output")
    content = picture.encode()
    if path.suffix == ".png":
        import vl_convert

        content = vl_convert.svg_to_png(picture)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def _lines(row: dict[str, Any]) -> list[str]:
    """Return the lines of a task in the list."""
    here = "generated" if row["generated"] else row["missing"] or "files available"
    lines = [
        f"with default options: {_sizes(row['sizes'])}",
        f"source: {here}",
    ]
    for one in row["built"]:
        if one["problem"]:
            lines.append(f"unusable: {one['problem']}")
            continue
        rows = sum(one["rows"].values())
        lines.append(
            f"built: {_format(one['options'])}: {rows:,} rows, {one['bytes']:,} bytes, "
            f"{one['source']}, checksum {one['checksum'][:8]}"
        )
    return lines


def _sizes(sizes: dict[str, int]) -> str:
    """Return the numbers of examples as text."""
    if not sizes:
        return "number of examples not known before the build"
    counts = " / ".join(f"{count:,}" for count in sizes.values())
    return f"{counts} examples ({', '.join(sizes)})"


def _format(value: object) -> str:
    """Return a value as text; options in the form that --set takes."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        pairs = {k: v if isinstance(v, str) else json.dumps(v) for k, v in value.items()}
        return " ".join(f"{name}={one}" for name, one in pairs.items()) or "default options"
    return str(value)
