"""Cache of built datasets: `<cache>/<task>/<key>/{train,validation,test}.arrow`, `manifest.json`.

The manifest is written last, so an interrupted build is never read; the shards it finished
(`<key>/building`) are used by the next build. A lock file keeps two processes from building the
same dataset; readers take no lock.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from longspan.data import store
from longspan.data.store import Examples
from longspan.errors import DataError, RunError, UnreadableError
from longspan.files import atomic_write, explain_read_error, file_sha256, read_json, write_json
from longspan.space import check_disk, check_memory
from longspan.temporaries import sweep_cache

logger = logging.getLogger(__name__)

SCHEMA = 3
_MANIFEST = "manifest.json"
_SCRATCH = "building"
# Opening a dataset checks the sha256 of files up to this size; larger files are checked row by row
# when they are used.
_READ_THROUGH = 1 << 28

BuildFunction = Callable[[Path], "BuildOutput"]
# Called with (description, done, total) while data is read or built; total is 0 where unknown.
ProgressCallback = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Everything that determines a built dataset; its hash names the folder."""

    task: str
    version: int  # of the task's data: examples, splits and generator
    options: dict[str, Any]
    origin: dict[str, Any]  # identity of the source files; empty for generated data

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits, the same in every process."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildSize:
    """Estimate of what a build takes, from the number and the length of its examples."""

    memory: int  # bytes at the peak
    disk: int  # bytes of the data set and of scratch files


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOutput:
    """Splits of a finished build, and their description."""

    splits: dict[str, Examples]
    source: str = ""  # description of where the examples come from; empty: that of the task
    license: str = ""  # likewise
    facts: dict[str, Any]  # counts and checksums for the manifest
    reports: dict[str, str] = dataclasses.field(default_factory=dict)  # further text files, by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitFile:
    """Size and checksums of the file of a split, as written."""

    rows: int
    bytes: int
    sha256: str
    index: str  # sha256 of everything but the sequences: offsets, labels, CRCs of the rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The record of a built dataset."""

    task: str
    version: int
    options: dict[str, Any]
    origin: dict[str, Any]
    source: str
    license: str
    facts: dict[str, Any]
    checksum: str  # sha256 of the content of the splits, independent of the file format
    files: dict[str, SplitFile]
    schema: int = SCHEMA


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltDataset:
    """A dataset that is verified and mapped into memory."""

    folder: Path
    manifest: Manifest
    splits: dict[str, Examples]


def open_dataset(
    cache: Path,
    spec: DatasetSpec,
    build: BuildFunction,
    estimate: Callable[[], BuildSize | None] | None = None,
) -> BuiltDataset:
    """Verify and map a dataset; build it first if it is missing or corrupted.

    Args:
        cache: the folder of built datasets.
        spec: the dataset.
        build: builds the splits, given a scratch folder. After an interruption the folder is kept,
            so the next build finds its shards.
        estimate: returns what `build` takes; None: little, or as much as its source files.

    Raises:
        DataError: the source files of `build` are missing or malformed.
        UnreadableError: the system does not read the dataset now; it is kept.
        NoMemoryError: the build needs more memory than is available.
        RunError: the disk is full or the cache cannot be written; nothing partial is left.
    """
    folder = cache / spec.task / spec.key
    if (dataset := _load_intact(folder, logging.DEBUG)) is not None:
        return dataset
    with _lock(folder):
        # another process may have built the dataset in the meantime
        dataset = _load_intact(folder, logging.WARNING)
        if dataset is None:
            _clear(folder, keep_scratch=True)
            sweep_cache(cache)
            if (size := estimate and estimate()) is not None:
                _check_size(size, spec.task, folder)
            _write(folder, spec, build)
            dataset = _load(folder)
    if dataset is None:
        raise RunError(f"{folder} was removed while it was opened; run the command again")
    return dataset


def find_manifest(cache: Path, spec: DatasetSpec) -> Manifest | None:
    """Return the manifest of a dataset without reading its files, or None if it is not built.

    Raises:
        DataError: the manifest is unreadable.
    """
    folder = cache / spec.task / spec.key
    return load_manifest(folder) if (folder / _MANIFEST).exists() else None


def find_built(
    cache: Path, task: str, version: int, options: dict[str, Any], key: str | None = None
) -> BuiltDataset | None:
    """Return the largest dataset built with these options, or None.

    Used if the source files are gone. A corrupted dataset is skipped with a warning, and a choice
    between several is reported.

    Args:
        cache: the folder of built datasets.
        task: name of the task.
        version: its version.
        options: its options.
        key: that of the only dataset which counts; None: all, from any source.
    """
    candidates = []
    for folder in built_folders(cache, task):
        if key not in (None, folder.name):
            continue
        try:
            manifest = load_manifest(folder)
            if (manifest.version, manifest.options) == (version, options):
                candidates.append(_load(folder))
        except DataError as error:
            logger.warning("skipping %s: %s", folder, error)
    ready = [candidate for candidate in candidates if candidate is not None]
    largest = max(ready, key=lambda one: sum(map(len, one.splits.values())), default=None)
    if largest is not None and len(ready) > 1:
        logger.warning(
            "%d data sets of %s with these options are built; using the largest, %s (checksum %s)",
            len(ready),
            task,
            largest.manifest.source,
            largest.manifest.checksum[:8],
        )
    return largest


def built_folders(cache: Path, task: str | None = None) -> list[Path]:
    """Return the folders of built datasets, of one task or of all."""
    return sorted(path.parent for path in cache.glob(f"{task or '*'}/*/{_MANIFEST}"))


def load_manifest(folder: Path) -> Manifest:
    """Load the manifest of the dataset in a folder.

    Raises:
        DataError: the manifest is damaged.
        UnreadableError: the system does not read it now.
    """
    path, remedy = folder / _MANIFEST, f"delete {folder} to rebuild it"
    try:
        record = read_json(path)
    except UnreadableError:
        raise
    except DataError as error:
        raise DataError(f"{error}; or {remedy}") from error
    names = {field.name for field in dataclasses.fields(Manifest)}
    if not isinstance(record, dict) or record.keys() != names or record["schema"] != SCHEMA:
        raise DataError(f"{path} is not a manifest of schema {SCHEMA}; {remedy}")
    try:
        files = {split: SplitFile(**file) for split, file in record["files"].items()}
    except (TypeError, AttributeError) as error:
        raise DataError(f"{path}: files are malformed ({error}); {remedy}") from error
    return Manifest(**{**record, "files": files})


def verify(cache: Path, task: str | None = None) -> dict[Path, Manifest]:
    """Check every byte of the built datasets of a task, or of all, against their manifests.

    Returns:
        The manifest of each dataset, by folder.

    Raises:
        DataError: a dataset differs; the message lists each one with the remedy.
    """
    manifests, errors = {}, []
    sweep_cache(cache)
    for folder in built_folders(cache, task):
        try:
            manifests[folder] = _verify(folder)
        except DataError as error:
            errors.append(str(error))
    if errors:
        raise DataError("; ".join(errors))
    return manifests


def _verify(folder: Path) -> Manifest:
    """Check the files of a dataset, and that the manifest belongs to the folder."""
    dataset = _load(folder, thorough=True)
    if dataset is None:
        raise DataError(f"{folder} was removed while it was verified; run the command again")
    record = dataset.manifest
    names = [field.name for field in dataclasses.fields(DatasetSpec)]
    if DatasetSpec(**{name: getattr(record, name) for name in names}).key != folder.name:
        raise DataError(f"{folder} has the manifest of another dataset; delete {folder}")
    if _content_checksum(dataset.splits) != record.checksum:
        raise DataError(f"{folder} does not match its recorded checksum; delete {folder}")
    return record


def _load_intact(folder: Path, level: int) -> BuiltDataset | None:
    """Return a dataset as `_load` does, or None if it is corrupted, which is logged at a level."""
    try:
        return _load(folder)
    except UnreadableError:
        raise
    except DataError as error:
        logger.log(level, "rebuilding %s: %s", folder, error)
        return None


def _load(folder: Path, thorough: bool = False) -> BuiltDataset | None:
    """Verify and map a dataset, or return None if the folder has none.

    Args:
        folder: of the dataset.
        thorough: check the sha256 of large files too.

    Raises:
        DataError: the dataset is corrupted; the message names the file.
        UnreadableError: the system does not read it now.
    """
    if not (folder / _MANIFEST).exists():
        return None
    manifest = load_manifest(folder)
    splits = {
        split: _read_split(folder / f"{split}.arrow", record, thorough)
        for split, record in manifest.files.items()
    }
    return BuiltDataset(folder=folder, manifest=manifest, splits=splits)


def _read_split(file: Path, record: SplitFile, thorough: bool) -> Examples:
    remedy = f"delete {file.parent} to rebuild it"
    try:
        size = file.stat().st_size
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist; {remedy}") from error
    except OSError as error:
        raise explain_read_error(file, error) from error
    if size != record.bytes:
        raise DataError(f"{file} has {size} bytes, expected {record.bytes}; {remedy}")
    if (thorough or size <= _READ_THROUGH) and file_sha256(file) != record.sha256:
        raise DataError(f"{file} does not match its recorded sha256; {remedy}")
    examples = store.read_examples(file)
    if size > _READ_THROUGH and examples.index_checksum() != record.index:
        raise DataError(f"{file}: labels or offsets do not match their recorded sha256; {remedy}")
    return examples


def _check_size(size: BuildSize, task: str, folder: Path) -> None:
    """Refuse a build that cannot fit into memory or on the disk, beside its finished shards."""
    activity, remedy = f"building the data set of {task}", "choose fewer or shorter examples"
    check_memory(size.memory, activity, remedy)
    scratch = (path for path in (folder / _SCRATCH).rglob("*") if path.is_file())
    needed = size.disk - sum(path.stat().st_size for path in scratch)
    cache = folder.parent.parent
    check_disk(needed, cache, activity, f"{remedy}, or set LONGSPAN_CACHE")


def _write(folder: Path, spec: DatasetSpec, build: BuildFunction) -> None:
    """Build a dataset; an error removes all of it, an interruption keeps the scratch folder."""
    try:
        _write_manifest(folder, spec, build(folder / _SCRATCH))
    except KeyboardInterrupt:
        _clear(folder, keep_scratch=True)
        raise
    except BaseException:
        _clear(folder)
        raise
    shutil.rmtree(folder / _SCRATCH, ignore_errors=True)


def _write_manifest(folder: Path, spec: DatasetSpec, built: BuildOutput) -> None:
    """Write the splits, then the manifest, which makes the dataset visible."""
    files, splits = {}, {}
    for split, examples in built.splits.items():
        path = folder / f"{split}.arrow"
        store.write_examples(path, examples)
        stored_examples = store.read_examples(path)
        files[split] = SplitFile(
            rows=len(stored_examples),
            bytes=path.stat().st_size,
            sha256=file_sha256(path),
            index=stored_examples.index_checksum(),
        )
        splits[split] = stored_examples
    for name, text in built.reports.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace")
    manifest = Manifest(
        **dataclasses.asdict(spec),
        source=built.source,
        license=built.license,
        facts=built.facts,
        checksum=_content_checksum(splits),
        files=files,
    )
    write_json(folder / _MANIFEST, dataclasses.asdict(manifest))


def _content_checksum(splits: dict[str, Examples]) -> str:
    """Return the sha256 of the content of the splits, independent of the file format."""
    content = hashlib.sha256()
    for split, examples in splits.items():
        content.update(f"{split} {examples.checksum()}\n".encode())
    return content.hexdigest()


def _clear(folder: Path, *, keep_scratch: bool = False) -> None:
    """Remove a dataset, its manifest first; fail on a folder that is not part of it."""
    try:
        (folder / _MANIFEST).unlink(missing_ok=True)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name != _SCRATCH:
                path.unlink()
            elif not keep_scratch:
                shutil.rmtree(path)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise RunError(
            f"cannot clear {folder} ({error.strerror or error}); remove it by hand"
        ) from error


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a dataset; the system releases the lock if this process dies."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting: another process is building %s", folder)
            lock.acquire()
    except OSError as error:
        reason = error.strerror or error
        raise RunError(
            f"cannot write the cache {folder.parent} ({reason}); set LONGSPAN_CACHE"
        ) from error
    try:
        yield
    finally:
        lock.release()
