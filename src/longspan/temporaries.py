"""Temporary files of atomic writes, and removal of those whose writer has died.

A temporary file is named `.<target>.longspan-<machine>-<random>`, and its writer locks it. The
system releases the lock when the writer dies, so another process of the machine can tell a file in
use from one that was left behind. Locks of other machines may be invisible; their files are removed
after a day.
"""

import contextlib
import functools
import glob
import hashlib
import os
import re
import secrets
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
_NAME = re.compile(r"\..+\.longspan-(?P<machine>[0-9a-f]{8})-[0-9a-f]{8}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def locked_temporary(path: Path) -> Iterator[Path]:
    """Create an empty file beside `path`, lock it and yield it; remove it if it is still there.

    Raises:
        OSError: the file cannot be created.
    """
    descriptor, temporary = _create(path)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def sweep_temporaries(folder: Path) -> None:
    """Remove the temporary files in a folder whose writers have died."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_abandoned(Path(entry.path), match["machine"])


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


def _create(path: Path) -> tuple[int | None, Path]:
    """Create a temporary file; return the descriptor that holds its lock, and its path."""
    while True:
        name = f".{path.name}.longspan-{machine_id()}-{secrets.token_hex(4)}"
        temporary = path.with_name(name)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            os.close(descriptor)
            return None, temporary
        # A file system without locks leaves the file to its age.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # swept before it was locked


def _remove_abandoned(temporary: Path, machine: str) -> None:
    """Remove a temporary file unless its writer may be alive.

    Raises:
        OSError: the writer holds the lock, or the file cannot be removed.
    """
    if fcntl is None or machine != machine_id():
        _remove_old(temporary)
        return
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        _remove_old(temporary)
    else:
        temporary.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _remove_old(temporary: Path) -> None:
    """Remove a temporary file of unknown state after a day."""
    if time.time() - temporary.stat().st_mtime > MAX_AGE:
        temporary.unlink(missing_ok=True)
