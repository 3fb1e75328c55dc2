"""`longspan data`: data sets, built, checked and looked at."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.common import Cache, Data, Json, Protocol, out, places_of, print_json, watching
from longspan.errors import DataError, known

app = typer.Typer(help="Build and check data sets.", no_args_is_help=True)


@app.command()
def build(
    task: Annotated[str, typer.Argument(help="A task; `longspan list tasks`.")],
    protocol: Protocol = "lra-small",
    cache: Cache = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Build a task's data set into the cache, as a protocol wants it."""
    from longspan.arena import get
    from longspan.tasks import TASKS

    chosen = get(protocol)
    spec, _, _ = chosen.parts(known(task, chosen.tasks, f"task of protocol {protocol!r}"))
    built = TASKS[task](TASKS[task].Options(**spec.options))
    places = places_of(Path("runs"), cache, data, None)
    with watching() as watcher:
        built.open(places.cache, places.data, watcher.building)
    sizes = {split: built.size(split) for split in ("train", "validation", "test")}
    record = {"task": task, **sizes, "source": built.source, "checksum": built.checksum}
    if as_json:
        print_json(record)
        return
    for name, value in record.items():
        out.print(f"{name}: {value}", highlight=False)


@app.command()
def verify(cache: Cache = None, as_json: Json = False) -> None:
    """Check every built data set against its recorded sizes and checksums."""
    from longspan.data.cache import manifests
    from longspan.data.cache import verify as check

    folder = places_of(Path("runs"), cache, None, None).cache
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder of built data sets; pass --cache FOLDER")
    check(folder)
    found = [str(path) for path in manifests(folder)]
    if as_json:
        print_json({"cache": str(folder), "verified": found})
        return
    out.print(f"{len(found)} data sets in {folder} are as they were built")
