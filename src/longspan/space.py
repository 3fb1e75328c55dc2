"""Free memory and disk space, and the refusal of what cannot fit, before it is allocated.

The system lends memory that it does not have: a tensor that is too large is created without an
error, and the process is killed while it fills it.
"""

import contextlib
import errno
import shutil
from pathlib import Path

from longspan.errors import NoMemoryError, RunError

SYSTEM = Path("/proc/meminfo")
# Folder of a container's control group, and its files of the limit and the use: versions 2 and 1.
CONTAINERS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# Messages of torch, in errors without a class of their own, when memory is exhausted.
_NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED")


def available_memory() -> int | None:
    """Return the bytes that this process can still take, swap included; None if unknown.

    Cached files count as available, since the kernel drops them on demand.
    """
    try:
        free = read_field(SYSTEM, "MemAvailable:") + read_field(SYSTEM, "SwapFree:")
    except OSError:
        return None
    for folder, limit, used in CONTAINERS:
        # no such control group, or the limit is "max"
        with contextlib.suppress(OSError, ValueError):
            cached = read_field(folder / "memory.stat", "inactive_file", unit=1)
            use = int((folder / used).read_text()) - cached
            free = min(free, int((folder / limit).read_text()) - use)
    return max(free, 0)


def check_memory(needed: int, what: str, remedy: str, available: int | None = None) -> None:
    """Refuse what cannot fit into memory.

    Args:
        needed: bytes.
        what: what needs them, for the message.
        remedy: what to change, for the message.
        available: bytes of another device; None: those of this process.

    Raises:
        NoMemoryError: more is needed than is available.
    """
    available = available_memory() if available is None else available
    if available is not None and needed > available:
        raise NoMemoryError(
            f"{what} needs {format_bytes(needed)} of memory, and {format_bytes(available)} are "
            f"available; {remedy}"
        )


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory is exhausted."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch.OutOfMemoryError is a RuntimeError.
    message = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(words in message for words in _NO_MEMORY)
    )


def check_disk(needed: int, folder: Path, what: str, remedy: str) -> None:
    """Refuse what cannot fit on the disk of a folder, which need not exist.

    Raises:
        RunError: more is needed than is free.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise RunError(
            f"{what} needs {format_bytes(needed)} on the disk of {folder}, and "
            f"{format_bytes(free)} are free; {remedy}"
        )


def format_bytes(count: int) -> str:
    """Return a number of bytes in the largest unit that is not larger, such as 1.5 GiB."""
    power = min((max(count, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    return f"{count / 1024**power:.4g} {UNITS[power]}"


def read_field(file: Path, field: str, unit: int = 1024) -> int:
    """Return a field of a file of the kernel in bytes; 0 if it is absent.

    Args:
        file: file with one field in a line, such as `MemAvailable:   2048 kB`.
        field: its name.
        unit: bytes of the number's unit.
    """
    for line in file.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * unit
    return 0
