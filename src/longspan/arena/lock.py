"""One process at a run: a lock that the system frees when its holder dies, and a note who it is."""

import contextlib
import datetime
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from longspan.errors import BusyError, DataError, RunError
from longspan.files import WRITE_REMEDY, read_json, remove_temporaries, write_json


@contextlib.contextmanager
def held(folder: Path, what: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock `<what>.lock` of a folder, made if absent; `<what>.json` says who does.

    The lock file stays: removing it would let two processes lock two files of one name.

    Args:
        folder: the work folder of a run.
        what: name of the lock.
        patience: seconds to wait for a holder that is about to end.

    Raises:
        BusyError: another process holds it; the message names the process, its host and since when.
        RunError: the folder cannot be written.
    """
    lock, note = FileLock(folder / f"{what}.lock"), folder / f"{what}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience, poll_interval=0.2)
    except Timeout as error:
        raise BusyError(f"{folder.name} is being run by {_holder(note)}") from error
    except OSError as error:
        raise RunError(
            f"cannot write {folder}: {error.strerror or error}; {WRITE_REMEDY}"
        ) from error
    try:
        remove_temporaries(note)
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(note, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def _holder(note: Path) -> str:
    """Who holds a lock, in words; the note may be written, or be removed, at this moment."""
    try:
        holder = read_json(note)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (DataError, TypeError, KeyError):
        return "another process"
