"""Helpers of the rendered pages: types as text, and writing of a folder of pages."""

from pathlib import Path
from typing import Literal, get_args, get_origin


def words(hint) -> str:
    """Return a type as text: the choices of a Literal, the members of a union."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice!r}`" for choice in parts)
    if get_origin(hint) is list:
        return f"list of {words(parts[0])}"
    if parts:
        return " or ".join(words(part) for part in parts)
    return "None" if hint is type(None) else hint.__name__


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files into a folder and delete all others."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
