"""Checksums of the files in a checkpoint's folder.

`checksums.json` is written after the other files and holds their sizes and sha256, so no damaged
tensor, state or configuration is loaded.
"""

from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.files import file_sha256, read_json, write_json
from longspan.temporaries import sweep_temporaries

CHECKSUMS = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Record size and sha256 of every file in a folder, except hidden ones.

    Raises:
        RunError: the folder cannot be written.
    """
    sweep_temporaries(folder)  # not after listing them, as writing the file does
    names = sorted(path.name for path in folder.iterdir())
    listed = [name for name in names if name != CHECKSUMS and not name.startswith(".")]
    write_json(folder / CHECKSUMS, {"files": {name: _describe(folder / name) for name in listed}})


def verify_checksums(folder: Path) -> None:
    """Compare every file in a folder with its recorded size and sha256.

    Raises:
        DataError: a file is missing or damaged; the message names it.
    """
    content = read_json(folder / CHECKSUMS)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict):
        raise DataError(f"{folder / CHECKSUMS} does not list files")
    for name, recorded in files.items():
        if (actual := _describe(folder / name)) != recorded:
            raise DataError(
                f"{folder / name} is damaged: found {_format(actual)}, expected {_format(recorded)}"
            )


def _describe(path: Path) -> dict[str, Any]:
    """Return size and sha256 of a file.

    Raises:
        DataError: it is missing or cannot be read.
    """
    sha256 = file_sha256(path)
    return {"bytes": path.stat().st_size, "sha256": sha256}


def _format(file: Any) -> str:
    if not isinstance(file, dict):
        return repr(file)[:40]
    return f"{file.get('bytes')} bytes with sha256 {str(file.get('sha256'))[:12]}"
