"""Temporary files and folders of atomic writes, and removal of those whose writer has died.

A temporary file or folder is named `.<target>.longspan-<machine>-<random>`, and its writer locks
it. The system releases the lock when the writer dies, so another process of the machine can tell
one in use from one that was left behind. Locks of other machines may be invisible; their files are
removed a day after the last change.
"""

import contextlib
import functools
import glob
import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_AGE = 24 * 3600.0  # seconds after which a file without a visible lock counts as left behind
EARLIER = ".earlier"  # what a folder replaces, in its temporary between two renames
_NAME = re.compile(r"\.(?P<target>.+)\.longspan-(?P<machine>[0-9a-f]{8})-[0-9a-f]{8}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def locked_temporary(path: Path) -> Iterator[Path]:
    """Create an empty file beside `path`, lock it and yield it; remove it if it is still there.

    Raises:
        OSError: the file cannot be created.
    """
    with _create_locked(path, is_folder=False) as temporary:
        yield temporary


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[Path]:
    """Create an empty folder beside `path`, lock it and yield it; remove it with its content.

    Raises:
        OSError: the folder cannot be created.
    """
    with _create_locked(path, is_folder=True) as temporary:
        yield temporary


def sweep_temporaries(folder: Path) -> None:
    """Remove the temporary files and folders in a folder whose writers have died."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_abandoned(Path(entry.path), match["machine"])


def sweep_cache(cache: Path) -> None:
    """Remove what killed builds and imports left in a cache and the folders in it."""
    for folder in (cache, *cache.glob("*/")):
        sweep_temporaries(folder)


def remove_temporaries(path: Path) -> None:
    """Remove every temporary file of `path`; the caller holds a lock that excludes writers."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        temporary.unlink(missing_ok=True)


@functools.cache
def machine_id() -> str:
    """Return eight digits that are equal in the processes that see each other's locks."""
    try:
        # Equal in all containers of a machine, whose locks are those of one kernel.
        identity = _BOOT_ID.read_text()
    except OSError:
        identity = socket.gethostname()
    return hashlib.sha256(identity.encode()).hexdigest()[:8]


@contextlib.contextmanager
def _create_locked(path: Path, *, is_folder: bool) -> Iterator[Path]:
    """Create a temporary and lock it; before, remove those in its folder that were left behind."""
    sweep_temporaries(path.parent)
    descriptor, temporary = _create(path, is_folder)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            _remove(temporary)
        if descriptor is not None:
            os.close(descriptor)


def _create(path: Path, is_folder: bool) -> tuple[int | None, Path]:
    """Create a temporary; return the descriptor that holds its lock, and its path."""
    while True:
        name = f".{path.name}.longspan-{machine_id()}-{secrets.token_hex(4)}"
        temporary = path.with_name(name)
        if is_folder:
            temporary.mkdir(0o700)
        else:
            os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
        if fcntl is None:
            return None, temporary
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            descriptor = os.open(temporary, _open_flags(temporary))
            # A file system without locks leaves it to its age.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(temporary, descriptor):
                return descriptor, temporary
            os.close(descriptor)


def _open_flags(temporary: Path) -> int:
    """Return how to open what is locked; a folder cannot be opened for writing."""
    return os.O_RDONLY if temporary.is_dir() else os.O_RDWR


def _is_at(temporary: Path, descriptor: int) -> bool:
    """Return whether a path is that of an open file or folder."""
    try:
        return os.path.samestat(temporary.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_abandoned(temporary: Path, machine: str) -> None:
    """Remove a temporary unless its writer may be alive.

    Raises:
        OSError: the writer holds the lock, or it cannot be removed.
    """
    if fcntl is None or machine != machine_id():
        _remove_old(temporary)
        return
    descriptor = os.open(temporary, _open_flags(temporary) | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        _remove_old(temporary)
    else:
        _remove(temporary)
    finally:
        os.close(descriptor)


def _remove_old(temporary: Path) -> None:
    """Remove a temporary of unknown state a day after its last change."""
    files = (temporary, *temporary.rglob("*")) if temporary.is_dir() else (temporary,)
    if time.time() - max(path.lstat().st_mtime for path in files) > MAX_AGE:
        _remove(temporary)


def _remove(temporary: Path) -> None:
    """Remove a temporary; a folder that its writer died replacing goes back to its place."""
    target, earlier = _NAME.fullmatch(temporary.name), temporary / EARLIER
    if (
        target
        and earlier.is_dir()
        and not (place := temporary.with_name(target["target"])).exists()
    ):
        earlier.rename(place)
    if temporary.is_dir() and not temporary.is_symlink():
        shutil.rmtree(temporary)
    else:
        temporary.unlink(missing_ok=True)
