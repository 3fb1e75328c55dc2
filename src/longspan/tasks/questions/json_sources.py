"""Sources of questions that are one or two JSON files, plain or gzip."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longspan.data import archives
from longspan.data.parquet import split_files
from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.errors import MissingSourceError


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


def find_json_files(
    data: Path | None, names: Sequence[str], task: str, form: str, splits: Sequence[str] = ()
) -> JsonFiles:
    """Find JSON files by their names, with or without the suffix .gz, or parquet files of the hub.

    Args:
        data: folder of the files, or the file itself if there is one name. None: $LONGSPAN_DATA,
            then $LONGSPAN_TEST_DATA. In a folder, its subfolders `qa` and that of the task's name
            are searched too.
        names: names of the files.
        task: name of the task.
        form: name of the format.
        splits: splits of the hub that have the content of the files; none: not read.

    Raises:
        DataError: a file is missing; the message says how to pass it.
    """
    paths = search_paths(data, f"the files {' and '.join(names)}")
    for path in paths:
        if len(names) == 1 and path.is_file() and not archives.is_archive(path):
            return JsonFiles(form=form, found=(path,))
        for folder in (path, path / task, path / "qa"):
            found = [_plain_or_gzip(folder / name) for name in names]
            if all(found):
                return JsonFiles(form=form, found=tuple(one for one in found if one))
        # Other data sets have files of these names.
        shards = [split_files(path, split) for split in splits] if data is not None else []
        if shards and all(shards):
            return JsonFiles(form=f"{form} parquet", found=tuple(one[0] for one in shards))
    or_parquet = f", nor parquet files of {' and '.join(splits)}" if splits else ""
    missing = f"{names[0]} is" if len(names) == 1 else f"{' and '.join(names)} are"
    raise MissingSourceError(
        f"{missing} not here{or_parquet} (searched {format_paths(paths)}); "
        f"download them to FOLDER and run `longspan data build {task} --data FOLDER`"
    )


def _plain_or_gzip(path: Path) -> Path | None:
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((one for one in candidates if one.is_file()), None)
