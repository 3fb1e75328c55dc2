"""Sources of questions that are one or two JSON files, plain or gzip."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.errors import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonFiles(SourceFiles):
    """Files of one copy, in the order in which they are asked for."""

    form: str
    found: tuple[Path, ...]

    @property
    def paths(self) -> list[Path]:
        """Files."""
        return list(self.found)

    @property
    def origin(self) -> dict[str, Any]:
        """Form, names, and sha256 of the content."""
        return {"form": self.form, "sha256": self.checksums()}


def find_json_files(data: Path | None, names: Sequence[str], task: str, form: str) -> JsonFiles:
    """Find JSON files by their names, with or without the suffix .gz.

    Args:
        data: folder of the files, or the file itself if there is one name. None: $LONGSPAN_DATA,
            then $LONGSPAN_TEST_DATA. In a folder, its subfolders `qa` and that of the task's name
            are searched too.
        names: names of the files.
        task: name of the task.
        form: name of the format.

    Raises:
        DataError: a file is missing; the message says how to pass it.
    """
    paths = search_paths(data, f"the files {' and '.join(names)}")
    for path in paths:
        if path.is_file() and len(names) == 1:
            return JsonFiles(form=form, found=(path,))
        for folder in (path, path / task, path / "qa"):
            found = [_plain_or_gzip(folder / name) for name in names]
            if all(found):
                return JsonFiles(form=form, found=tuple(one for one in found if one))
    raise DataError(
        f"{' and '.join(names)}: not here (searched {format_paths(paths)}); download to "
        f"FOLDER and run `longspan data build {task} --data FOLDER`"
    )


def _plain_or_gzip(path: Path) -> Path | None:
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((one for one in candidates if one.is_file()), None)
