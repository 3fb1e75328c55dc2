"""Helpers of the rendered pages: types as text, and writing of a folder of pages."""

from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin


def words(hint) -> str:
    """Return a type as text: the choices of a Literal, the members of a union."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice!r}`" for choice in parts)
    if get_origin(hint) is Annotated:
        bounds = [bound for part in parts[1:] for bound in bounds_of(part)]
        return f"{words(parts[0])} {', '.join(bounds)}"
    if get_origin(hint) is list:
        return f"list of {words(parts[0])}"
    if parts:
        return " or ".join(words(part) for part in parts)
    return "None" if hint is type(None) else hint.__name__


def bounds_of(constraint) -> list[str]:
    """Return the bounds of a pydantic field, or of one of its constraints, as text."""
    constraints = getattr(constraint, "metadata", [constraint])
    symbols = {"gt": ">", "ge": "≥", "lt": "below", "le": "≤"}
    return [
        f"{symbol} {getattr(one, name)}"
        for one in constraints
        for name, symbol in symbols.items()
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
