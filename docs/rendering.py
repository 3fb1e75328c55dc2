"""What the pages share: types in words, and a folder that holds the pages and nothing else."""

from pathlib import Path
from typing import Literal, get_args, get_origin


def words(hint) -> str:
    """A type as one would say it: the choices of a Literal, the parts of a union."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice!r}`" for choice in parts)
    if get_origin(hint) is list:
        return f"list of {words(parts[0])}"
    if parts:
        return " or ".join(words(part) for part in parts)
    return "None" if hint is type(None) else hint.__name__


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
