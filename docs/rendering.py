"""Helpers of the rendered pages: types as text, and writing of a folder of pages."""

from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def words(hint) -> str:
    """Return a type as text: the choices of a Literal, the members of a union, bounds."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return f"{words(parts[0])} {' and '.join(bounds(parts[1:]))}"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice!r}`" for choice in parts)
    if get_origin(hint) is list:
        return f"list of {words(parts[0])}"
    if parts:
        return " or ".join(words(part) for part in parts)
    return "None" if hint is type(None) else hint.__name__


def bounds(constraints) -> list[str]:
    """Return the bounds among the constraints of an annotated type."""
    # pydantic wraps several bounds in one object with the attribute metadata.
    flat = [one for x in constraints for one in getattr(x, "metadata", [x])]
    return [
        f"{sign} {getattr(one, name):,}"
        for one in flat
        for name, sign in SIGNS.items()
        if hasattr(one, name)
    ]


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files into a folder and delete all others."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
