"""Reading records, which are validated field by field."""

from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast

import pydantic

from longspan.config.base import defaults_of, describe_errors
from longspan.errors import DataError, LongspanError, OptionError
from longspan.files import read_json_file
from longspan.results.record import FAILED, Failure, Result

# Folders of side records, beside those of runs.
ANALYSES, EVALUATIONS, CONTEXTS = "analysis", "evaluations", "context"
DOCUMENTS = "classified"
FINAL = "final"  # folder of records of models that are trained on all texts
EFFICIENCY = "efficiency"  # folder of measurements without runs
# Folders below a folder of results that hold other files than records of finished runs;
# "snapshots" is one of old git revisions.
OTHER_FOLDERS = {
    *("work", "trials", FINAL, ANALYSES, EVALUATIONS, CONTEXTS, DOCUMENTS, EFFICIENCY, "snapshots")
}
T = TypeVar("T")


class Record(Protocol):
    """Settings class of a record, which has a field `schema`.

    Attributes:
        title: kind of record for errors, with its article.
        remedy: what to do about an invalid file.
    """

    title: ClassVar[str]
    remedy: ClassVar[str]


R = TypeVar("R", bound=Record)


def load_result(path: Path) -> Result:
    """Read the record of a finished run.

    Raises:
        DataError: the file is not a valid record of a known schema; the message lists every reason.
    """
    if path.is_dir():
        raise DataError(
            f"{path} is a folder, expected the record of a run, such as "
            "runs/PROTOCOL/TASK/ROW-HASH-SEED.json; transformers loads folders of models"
        )
    record = read_record(Result, path)
    try:
        main = record.main
    except LongspanError as error:
        remedy = "--import FILE registers the metrics of a plug-in"
        raise DataError(f"{path}: {error}; {remedy}") from error
    if missing := [split for split, x in record.scores.items() if main.name not in x.metrics]:
        raise DataError(f"{path}: scores of {', '.join(missing)} lack the main metric {main.name}")
    try:
        record.effective_config.stages()
    except LongspanError as error:
        raise DataError(f"{path}: {error}; {record.remedy}") from error
    return record


def load_failure(path: Path) -> Failure:
    """Read the record of a failed run.

    Raises:
        DataError: the file is not a valid record of a known schema; the message lists every reason.
    """
    return read_record(Failure, path)


def validate(kind: type[T], text: str, path: Path) -> T:
    """Validate JSON text as a settings class.

    Raises:
        DataError: it is invalid; the message names `path` and lists every reason.
    """
    try:
        # JSON mode is strict, but takes mappings for dataclasses and lists for tuples.
        return _adapter(cast(Hashable, kind)).validate_json(text)
    except pydantic.ValidationError as error:
        raise DataError(f"{path}: {describe_errors(error)}") from error


def read_record(kind: type[R], path: Path) -> R:
    """Read a record of the schema that its class declares.

    Raises:
        DataError: the file is invalid; the message names it and lists every reason.
    """
    _, text, content = read_json_file(path)
    expected, title, remedy = defaults_of(kind)["schema"], kind.title, kind.remedy
    if not isinstance(content, dict) or "schema" not in content:
        raise DataError(f"{path} is not {title}: it has no field 'schema'; {remedy}")
    schema = content["schema"]
    if type(schema) is not int or schema != expected:
        raise DataError(f"{path} is not {title} of schema {expected}, got {schema!r}; {remedy}")
    return validate(kind, text, path)


@cache
def _adapter(kind: Any) -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(kind)


def load_results(folders: Iterable[Path]) -> list[Result]:
    """Read all results below some folders, in a stable order.

    Raises:
        DataError: a folder does not exist or holds no result, or a record is invalid.
    """
    results = []
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder of results")
        results += [load_result(path) for path in result_paths(folder)]
    return results


def load_failures(folders: Iterable[Path]) -> list[Failure]:
    """Read all failures below some folders, in a stable order.

    Raises:
        DataError: a record is invalid.
    """
    return [load_failure(path) for folder in folders for path in failure_paths(folder)]


def record_paths(folder: Path) -> list[Path]:
    """Return the files of results and failures below a folder, in a stable order."""
    paths = (path for path in folder.rglob("*.json") if not path.name.startswith("."))
    return sorted(path for path in paths if not _other_folders(path, folder))


def result_paths(folder: Path) -> list[Path]:
    """Return the files of results below a folder, in a stable order.

    Raises:
        DataError: there is none.
    """
    paths = [path for path in record_paths(folder) if not path.name.endswith(FAILED)]
    if not paths:
        measured = folder.resolve().name == EFFICIENCY or (folder / EFFICIENCY).is_dir()
        remedy = (
            "--section efficiency shows what was measured"
            if measured
            else "run `longspan arena` first"
        )
        raise DataError(f"{folder} holds no results; {remedy}")
    return paths


def failure_paths(folder: Path) -> list[Path]:
    """Return the files of failures below a folder whose run has not finished since."""
    paths = [path for path in record_paths(folder) if path.name.endswith(FAILED)]
    return [p for p in paths if not p.with_name(p.name.removesuffix(FAILED) + ".json").exists()]


def side_record_paths(folders: Iterable[Path], name: str) -> list[Path]:
    """Return the files of side records below some folders, in a stable order.

    Args:
        folders: folders of results.
        name: `ANALYSES`, `EVALUATIONS` or `CONTEXTS`.
    """
    return [
        path
        for folder in folders
        for path in sorted(folder.rglob(f"{name}/*.json"))
        if not path.name.startswith(".") and _other_folders(path, folder) == {name}
    ]


def check_folder_name(kind: str, name: str) -> None:
    """Refuse a protocol or task whose folder of records would be taken for another one.

    Raises:
        OptionError: the name is one of `OTHER_FOLDERS`.
    """
    if name in OTHER_FOLDERS:
        raise OptionError(
            f"the name of a {kind} must differ from the folders {', '.join(sorted(OTHER_FOLDERS))} "
            f"of a runs folder, got {name!r}; choose another name"
        )


def _other_folders(path: Path, folder: Path) -> set[str]:
    """Return the parents of a file, below a folder, that hold no records of finished runs.

    The folder itself counts where it is one of measurements.
    """
    root = {EFFICIENCY} & {folder.resolve().name}
    return root | OTHER_FOLDERS.intersection(path.relative_to(folder).parts[:-1])
