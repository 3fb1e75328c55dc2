"""`longspan data`: data sets, built, imported, checked, described and looked at."""

import dataclasses
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from longspan.cli.common import (
    PROTOCOL,
    Cache,
    Data,
    Json,
    changes_of,
    console_callback,
    out,
    print_json,
    run_paths,
)
from longspan.errors import DataError, OptionError, check_name

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.tasks import Task

app = typer.Typer(help="Build, import, check and look at data sets.", no_args_is_help=True)

TaskName = Annotated[str, typer.Argument(help="A task; `longspan list tasks`.")]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="Take the task's options from it.",
        show_default=f"{PROTOCOL}, if the task is in it",
    ),
]
Options = Annotated[
    list[str] | None, typer.Option("--set", help="Change an option of the task: length=512.")
]

_HUB = re.compile(r"hub(?::(.+))?")
# A review may hold what a terminal takes for a command.
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\ufffd")


@app.command(name="list")
def list_(cache: Cache = None, data: Data = None, as_json: Json = False) -> None:
    """List every task: sizes, where its data is, what is built."""
    from longspan.tasks.cards import listing

    paths = _run_paths(cache, data)
    rows = listing(paths.cache, paths.data)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out.print(Text.assemble((row["name"], "bold"), "  ", row["title"]), soft_wrap=True)
        for line in _lines(row):
            out.print(Text(f"  {line}"), soft_wrap=True)


@app.command()
def build(
    task: TaskName,
    protocol: Recipe = None,
    set_: Options = None,
    cache: Cache = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Build a task's data set into the cache, as a protocol wants it."""
    _build(_task(task, protocol, changes_of(set_)), _run_paths(cache, data), as_json)


@app.command(name="import")
def import_(
    task: TaskName,
    path: Annotated[
        str,
        typer.Argument(help="A folder or an archive; or hub, or hub:NAME, for Hugging Face's."),
    ],
    protocol: Recipe = None,
    set_: Options = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Build a task's data set from published files that you have, and from nothing else."""
    from longspan.data import hub
    from longspan.tasks.cards import generated

    chosen = _task(task, protocol, changes_of(set_), released=True)
    if generated(chosen):
        raise OptionError(
            f"{task} is generated, it reads no files; run `longspan data build {task}`"
        )
    paths = _run_paths(cache, None)
    if not (named := _HUB.fullmatch(path)):
        _build(chosen, dataclasses.replace(paths, data=Path(path)), as_json)
        return
    name = named[1] or chosen.info.hub
    if name is None:
        raise OptionError(f"longspan knows no set of the hub for {task}; pass hub:NAME or a path")
    paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache, prefix=".hub-") as folder:
        fetched = hub.fetch_parquet(name, Path(folder))
        _build(chosen, dataclasses.replace(paths, data=fetched), as_json)


@app.command()
def verify(
    task: Annotated[str | None, typer.Argument(help="A task.", show_default="all")] = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Check every byte of the built data sets against their records."""
    from longspan.data.cache import verify as check
    from longspan.tasks import TASKS

    if task is not None:
        check_name(task, TASKS, "task")
    folder = _run_paths(cache, None).cache
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder of built data sets; pass --cache FOLDER")
    found = check(folder, task)
    if as_json:
        print_json({"cache": str(folder), "verified": [str(path) for path in found]})
        return
    out.print(Text(f"{len(found)} data sets in {folder} are as they were built"), soft_wrap=True)
    for path, record in found.items():
        count, size = (sum(getattr(x, y) for x in record.files.values()) for y in ("rows", "bytes"))
        what = f"  {path}: {count:,} examples, {size:,} bytes, {record.source}"
        out.print(Text(what), soft_wrap=True)


@app.command()
def card(
    task: TaskName, protocol: Recipe = None, set_: Options = None, cache: Cache = None
) -> None:
    """Print the data card of a task in Markdown; figures are those of the built set."""
    from longspan.tasks import cards

    chosen = _task(task, protocol, changes_of(set_))
    sys.stdout.write(cards.card(chosen, _run_paths(cache, None).cache))


@app.command()
def show(
    task: TaskName,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    row: Annotated[int, typer.Option(help="The first example, from 0.")] = 0,
    count: Annotated[int, typer.Option(help="How many examples.")] = 1,
    png: Annotated[Path | None, typer.Option(help="Draw the example into this file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the example into this file.")] = None,
    protocol: Recipe = None,
    set_: Options = None,
    cache: Cache = None,
) -> None:
    """Print examples of a built data set, or draw one."""
    from longspan.tasks import SPLITS

    chosen = _task(task, protocol, changes_of(set_))
    name = next(one for one in SPLITS if one == check_name(split, SPLITS, "split"))
    if count < 1:
        raise OptionError(f"--count is 1 or more, got {count}")
    if (png or svg) and count > 1:
        raise OptionError(f"a picture is of one example; leave --count {count} out")
    _open_built(chosen, _run_paths(cache, None).cache)
    if png or svg:
        _draw(chosen.svg(name, row), task, png, svg)
        return
    shown = [f"{name} {at}\n{chosen.show(name, at)}\n" for at in range(row, row + count)]
    sys.stdout.write("\n".join(shown).translate(_CONTROL))


def _task(
    name: str, protocol: str | None, changes: dict[str, Any], *, released: bool = False
) -> "Task":
    """A task with the options of a protocol, changed; if `released` its files are wanted."""
    from longspan.arena import get
    from longspan.tasks import TASKS, build

    cls = TASKS[check_name(name, TASKS, "task")]
    recipe = get(protocol or PROTOCOL)
    if protocol is not None:
        check_name(name, recipe.tasks, f"task of protocol {protocol!r}")
    options = dict(recipe.parts(name)[0].options) if name in recipe.tasks else {}
    if released and "source" in {field.name for field in dataclasses.fields(cls.Options)}:
        options["source"] = "release"
    return build(name, {**options, **changes})


def _run_paths(cache: Path | None, data: Path | None) -> "RunPaths":
    return run_paths(Path("runs"), cache, data, None)


def _open_built(task: "Task", cache: Path) -> None:
    """Open a built set, or say which ones there are."""
    from longspan.tasks.cards import sets

    if task.open_built(cache):
        return
    name = task.info.name
    others = [_words(one["options"]) for one in sets(task, cache) if one["problem"] is None]
    raise DataError(
        f"{name} is not built with these options; run `longspan data build {name}` with the same "
        f"--protocol and --set{', or ask for what is built: ' * bool(others)}{'; '.join(others)}"
    )


def _build(task: "Task", paths: "RunPaths", as_json: bool) -> None:
    """Build a set behind a bar and say what was built."""
    from longspan.tasks import SPLITS
    from longspan.tasks.cards import changed, values

    with console_callback() as callback:
        task.open(paths.cache, paths.data, callback.on_build)
    record: dict[str, Any] = {
        "task": task.info.name,
        "folder": str(task.built.folder),
        "options": changed(task, values(task)),
        **dict(zip(SPLITS, map(task.size, SPLITS), strict=True)),
        "source": task.source,
        "checksum": task.checksum,
    }
    if as_json:
        print_json(record)
        return
    for name, value in record.items():
        out.print(Text(f"{name}: {_words(value)}"), soft_wrap=True)


def _draw(picture: str | None, task: str, png: Path | None, svg: Path | None) -> None:
    """Write a picture as one file or two."""
    from longspan.files import atomic_write

    if picture is None:
        raise OptionError(
            f"an example of {task} is text, it has no picture; leave --png, --svg out"
        )
    files = {}
    if svg:
        files[svg] = picture.encode()
    if png:
        import vl_convert

        files[png] = vl_convert.svg_to_png(picture)
    for path, content in files.items():
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)


def _lines(row: dict[str, Any]) -> list[str]:
    """What is said of one task in the list."""
    sizes = " / ".join(f"{count:,}" for count in row["sizes"].values())
    here = "generated" if row["generated"] else row["missing"] or "its files are here"
    lines = [f"{sizes} examples ({', '.join(row['sizes'])})", f"source: {here}"]
    for one in row["built"]:
        if one["problem"]:
            lines.append(f"unusable: {one['problem']}")
            continue
        rows = sum(one["rows"].values())
        lines.append(
            f"built: {_words(one['options'])}: {rows:,} examples, {one['bytes']:,} bytes, "
            f"{one['source']}"
        )
    return lines


def _words(value: object) -> str:
    """A value as text; options that are not the defaults as one would set them."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        pairs = {k: v if isinstance(v, str) else json.dumps(v) for k, v in value.items()}
        return " ".join(f"{name}={one}" for name, one in pairs.items()) or "default options"
    return str(value)
