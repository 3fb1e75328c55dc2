"""Built sets: `<cache>/<task>/<key>/{train,validation,test}.arrow` and `manifest.json`.

The manifest is written last, so an interrupted build leaves nothing that is read; the parts it has
made (`<key>/building`) serve the next one. A lock beside the folder keeps two processes from
building the same set; readers take no lock.
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
from longspan.errors import DataError, RunError
from longspan.files import cache_folder, file_sha256, read_json, write_json

logger = logging.getLogger(__name__)

SCHEMA = 2
_MANIFEST = "manifest.json"
_SCRATCH = "building"
# Opening a set reads files of up to so many bytes through; the rows of larger ones are compared
# with their CRCs as they are handed out.
_READ_THROUGH = 1 << 28

Build = Callable[[Path], "Built"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a built set follows from; its hash names the folder."""

    task: str
    version: int  # of the task: examples, splits and the code that makes them
    options: dict[str, Any]
    origin: dict[str, Any]  # identity of the source files; empty for generated data

    @property
    def key(self) -> str:
        """Sixteen hex digits, the same in every process."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """What a build returns: the splits, and what is worth knowing about them."""

    splits: dict[str, Examples]
    source: str  # where the examples came from, in words
    license: str
    facts: dict[str, Any]  # counts and checksums that the manifest keeps


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One split's file, as it was written."""

    rows: int
    bytes: int
    sha256: str
    index: str  # sha256 of all but the sequences: offsets, labels, CRCs of the rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The record of a built set."""

    task: str
    version: int
    options: dict[str, Any]
    origin: dict[str, Any]
    source: str
    license: str
    facts: dict[str, Any]
    checksum: str  # sha256 over the content of the splits, whatever wrote the files
    files: dict[str, FileRecord]
    schema: int = SCHEMA


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltSet:
    """A set that is ready: verified and mapped."""

    folder: Path
    manifest: Manifest
    splits: dict[str, Examples]


def default_folder() -> Path:
    """`$LONGSPAN_CACHE`, or `~/.cache/longspan`."""
    return cache_folder()


def open_set(cache: Path, recipe: Recipe, build: Build) -> BuiltSet:
    """Verify and map the set of this recipe; build it first if it is absent or corrupted.

    Args:
        cache: the folder of built sets.
        recipe: what the set follows from.
        build: makes it. It is given a folder for what memory does not hold; that folder outlives
            an interruption, so that `Parts` in it need not be made again, and nothing else.

    Raises:
        DataError: `build` found its source absent or foreign.
        RunError: the disk is full or the cache cannot be written; nothing partial is left.
    """
    folder = cache / recipe.task / recipe.key
    with contextlib.suppress(DataError):
        if (found := _load(folder)) is not None:
            return found
    with _lock(folder):
        # another process may have built it in the meantime
        try:
            found = _load(folder)
        except DataError as error:
            logger.warning("building %s again: %s", folder, error)
            found = None
        if found is None:
            _write(folder, recipe, build)
            found = _load(folder)
    if found is None:
        raise RunError(f"{folder} vanished while it was opened; another process cleared the cache")
    return found


def recorded(cache: Path, recipe: Recipe) -> Manifest | None:
    """The record of the set of this recipe, its files unread; None without one.

    Raises:
        DataError: it is unreadable.
    """
    path = cache / recipe.task / recipe.key / _MANIFEST
    return _read_manifest(path) if path.exists() else None


def open_any(cache: Path, task: str, version: int, options: dict[str, Any]) -> BuiltSet | None:
    """The set built with these options from whatever source, the one with most rows; or None.

    For when the source is no longer there. A corrupted set is passed over with a warning.
    """
    candidates = []
    for manifest_path in sorted((cache / task).glob(f"*/{_MANIFEST}")):
        try:
            manifest = _read_manifest(manifest_path)
            if (manifest.version, manifest.options) == (version, options):
                candidates.append(_load(manifest_path.parent))
        except DataError as error:
            logger.warning("passing over %s: %s", manifest_path.parent, error)
    ready = [candidate for candidate in candidates if candidate is not None]
    return max(ready, key=lambda one: sum(map(len, one.splits.values())), default=None)


def folders(cache: Path, task: str | None = None) -> list[Path]:
    """The folders of built sets, of one task or of all."""
    return sorted(path.parent for path in cache.glob(f"{task or '*'}/*/{_MANIFEST}"))


def manifest(folder: Path) -> Manifest:
    """The record of the set in a folder.

    Raises:
        DataError: it is unreadable.
    """
    return _read_manifest(folder / _MANIFEST)


def manifests(cache: Path) -> dict[Path, Manifest]:
    """The record of every built set in the cache, by folder.

    Raises:
        DataError: a manifest is unreadable.
    """
    return {folder: manifest(folder) for folder in folders(cache)}


def verify(cache: Path, task: str | None = None) -> dict[Path, Manifest]:
    """Check every byte of the built sets of a task, or of all, against their records.

    Raises:
        DataError: sets that differ, each with the remedy.
    """
    sound, wrong = {}, []
    for folder in folders(cache, task):
        try:
            sound[folder] = _verified(folder)
        except DataError as error:
            wrong.append(str(error))
    if wrong:
        raise DataError("; ".join(wrong))
    return sound


def _verified(folder: Path) -> Manifest:
    """Check the files of a set, and that its record is its own."""
    found = _load(folder, thorough=True)
    if found is None:
        raise DataError(f"{folder} vanished while it was verified")
    record = found.manifest
    names = [field.name for field in dataclasses.fields(Recipe)]
    if Recipe(**{name: getattr(record, name) for name in names}).key != folder.name:
        raise DataError(f"{folder} holds the record of another set; delete {folder}")
    if _content(found.splits) != record.checksum:
        raise DataError(f"{folder} does not match its recorded checksum; delete {folder}")
    return record


def _load(folder: Path, thorough: bool = False) -> BuiltSet | None:
    """Verify and map a set, reading large files through only if `thorough`; None without one.

    Raises:
        DataError: it is corrupted; the message names the file.
    """
    path = folder / _MANIFEST
    if not path.exists():
        return None
    manifest = _read_manifest(path)
    splits = {}
    for split, record in manifest.files.items():
        splits[split] = _checked(folder / f"{split}.arrow", record, thorough)
    return BuiltSet(folder=folder, manifest=manifest, splits=splits)


def _checked(file: Path, record: FileRecord, thorough: bool) -> Examples:
    remedy = f"delete {file.parent} to have it built again"
    try:
        size = file.stat().st_size
        if size != record.bytes:
            raise DataError(f"{file} has {size} bytes, its record says {record.bytes}; {remedy}")
        if (thorough or size <= _READ_THROUGH) and file_sha256(file) != record.sha256:
            raise DataError(f"{file} does not match its recorded sha256; {remedy}")
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror or error}); {remedy}") from error
    examples = store.read_examples(file)
    if size > _READ_THROUGH and examples.index_checksum() != record.index:
        raise DataError(f"{file}: its labels or offsets do not match their record; {remedy}")
    return examples


def _read_manifest(path: Path) -> Manifest:
    record = read_json(path)
    names = {field.name for field in dataclasses.fields(Manifest)}
    if not isinstance(record, dict) or record.keys() != names or record["schema"] != SCHEMA:
        raise DataError(f"{path} is no manifest of schema {SCHEMA}; delete {path.parent}")
    try:
        files = {split: FileRecord(**file) for split, file in record["files"].items()}
    except (TypeError, AttributeError) as error:
        raise DataError(f"{path}: files are malformed ({error}); delete {path.parent}") from error
    return Manifest(**{**record, "files": files})


def _write(folder: Path, recipe: Recipe, build: Build) -> None:
    """Build the set; whatever goes wrong none of it is read, and a refusal leaves nothing."""
    _clear(folder, keep_scratch=True)
    try:
        _write_manifest(folder, recipe, build(folder / _SCRATCH))
    except KeyboardInterrupt:
        _clear(folder, keep_scratch=True)
        raise
    except BaseException:
        _clear(folder)
        raise
    shutil.rmtree(folder / _SCRATCH, ignore_errors=True)


def _write_manifest(folder: Path, recipe: Recipe, built: Built) -> None:
    """Write the splits, then the manifest that makes them a set."""
    files, splits = {}, {}
    for split, examples in built.splits.items():
        path = folder / f"{split}.arrow"
        store.write_examples(path, examples)
        written = store.read_examples(path)
        files[split] = FileRecord(
            rows=len(written),
            bytes=path.stat().st_size,
            file_sha256=file_sha256(path),
            index=written.index_checksum(),
        )
        splits[split] = written
    manifest = Manifest(
        **dataclasses.asdict(recipe),
        source=built.source,
        license=built.license,
        facts=built.facts,
        checksum=_content(splits),
        files=files,
    )
    write_json(folder / _MANIFEST, dataclasses.asdict(manifest))


def _content(splits: dict[str, Examples]) -> str:
    """sha256 over the content of the splits, whatever wrote the files."""
    content = hashlib.sha256()
    for split, examples in splits.items():
        content.update(f"{split} {examples.checksum()}\n".encode())
    return content.hexdigest()


def _clear(folder: Path, *, keep_scratch: bool = False) -> None:
    """Remove a set, its manifest first; a folder that is not of the set stops it."""
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
        raise RunError(f"cannot clear {folder} ({error.strerror or error}); remove it") from error


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a set; the system frees it if this process dies."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that builds %s", folder)
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
