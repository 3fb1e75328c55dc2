"""Records of a folder, now or at a git revision."""

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from longspan.errors import DataError
from longspan.results.reading import load_failures, load_result, record_paths
from longspan.results.record import FAILED, Failure, Result

FOLDER = Path("results")  # of a revision without a folder


def load_version(source: str, folder: Path | None = None) -> list[Result | Failure]:
    """Load the records of a folder, or those of a folder at a git revision.

    Args:
        source: a folder, `REVISION` or `REVISION:FOLDER`, with the folder relative to the working
            directory.
        folder: folder at `REVISION`; None: `results`.

    Raises:
        DataError: there is no such folder or revision, or a record is invalid.
    """
    if Path(source).is_dir():
        return _load(Path(source))
    revision, _, path = source.partition(":")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path) if path else folder or FOLDER
        extracted = _extract(revision, folder, Path(temporary))
        try:
            return _load(extracted)
        except DataError as error:
            raise DataError(str(error).replace(str(extracted), f"{revision}:{folder}")) from error


def _load(folder: Path) -> list[Result | Failure]:
    results = [load_result(x) for x in record_paths(folder) if not x.name.endswith(FAILED)]
    return [*results, *load_failures([folder])]


def _extract(revision: str, folder: Path, target: Path) -> Path:
    """Extract a folder at a git revision; return its path below `target`."""
    # git names the files relative to the directory in which it runs.
    directory, paths = (folder, []) if folder.is_dir() else (Path(), [str(folder)])
    command = ["git", "-C", str(directory), "archive", "--format=tar", revision, *paths]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except OSError as error:
        raise DataError(f"git cannot be run ({error.strerror}); pass folders") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise DataError(
            f"{revision} is no folder, and git finds no {folder} at such a revision ({reason}); "
            "pass FOLDER, REVISION or REVISION:FOLDER"
        ) from error
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")
    return target.joinpath(*paths)
