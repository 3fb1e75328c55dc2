"""A lock on a run's folder, which the system releases when the process that holds it dies."""

import contextlib
import datetime
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from longspan.errors import BusyError, DataError, RunError
from longspan.files import WRITE_REMEDY, read_json, write_json
from longspan.temporaries import remove_temporaries


@contextlib.contextmanager
def hold_lock(folder: Path, name: str, *, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock `<name>.lock` of a folder and describe the holder in `<name>.json`.

    The lock file is never removed: otherwise two processes could lock two files of one name.

    Args:
        folder: the run's folder; created if absent.
        name: name of the lock.
        timeout: seconds to wait for another process to release the lock.

    Raises:
        BusyError: another process holds the lock; the message names process, host and time.
        RunError: the folder cannot be written.
    """
    lock, holder_file = FileLock(folder / f"{name}.lock"), folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout, poll_interval=0.2)
    except Timeout as error:
        raise BusyError(
            f"Another process holds this run's lock{_describe_holder(holder_file)}."
        ) from error
    except OSError as error:
        raise RunError(
            f"cannot write {folder}: {error.strerror or error}; {WRITE_REMEDY}"
        ) from error
    try:
        remove_temporaries(holder_file)
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(holder_file, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        yield
    finally:
        holder_file.unlink(missing_ok=True)
        lock.release()


def _describe_holder(holder_file: Path) -> str:
    """Return " (pid ..., host ..., since ...)", or nothing if the file cannot be read."""
    # The holder may be writing or removing the file at this moment.
    try:
        holder = read_json(holder_file)
        return f" (pid {holder['pid']}, host {holder['host']}, since {holder['since']})"
    except (DataError, TypeError, KeyError):
        return ""
