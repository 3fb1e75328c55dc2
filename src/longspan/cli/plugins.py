"""Options that load plug-ins and protocol files before a command starts."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.entry_points import plugin_entry_points


def _load_plugins(sources: list[str] | None) -> list[str] | None:
    """Load the plug-ins of installed packages, then those of --import."""
    if sources or plugin_entry_points():
        from longspan.arena.plugins import load_entry_points, load_plugin

        load_entry_points()
        for source in sources or ():
            load_plugin(source)
    return sources


def name_protocol(context: typer.Context, text: str | None) -> str | None:
    """Return the name of a protocol; a file is loaded, which may name the imports in the cache."""
    if text is None or Path(text).suffix not in (".py", ".toml"):
        return text
    from longspan.arena import load_protocol
    from longspan.arena.protocols.own import register_imports
    from longspan.files import cache_folder

    # A Python file may register a task itself: an import of that name is left out.
    if Path(text).suffix == ".toml":
        register_imports(context.params.get("cache") or cache_folder())
    return load_protocol(text).name


# Eager: protocol files and all other values may name what a plug-in registers, or the cache holds.
Cache = Annotated[
    Path | None,
    typer.Option(
        help="Folder of built data sets.", show_default="~/.cache/longspan", is_eager=True
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        help="Plug-in to import: a Python file, a module or a protocol file. Repeatable.",
        callback=_load_plugins,
        is_eager=True,
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        help="Protocol, `longspan list protocols`; or a file, mine.toml or mine.py.",
        callback=name_protocol,
    ),
]
ProtocolName = Annotated[
    str,
    typer.Argument(
        help="Protocol, `longspan protocols list`; or a file, mine.toml or mine.py.",
        callback=name_protocol,
    ),
]
