"""Shards of a long build; an interrupted build resumes with those it has finished.

The file of a shard is complete or absent.
"""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longspan.errors import DataError
from longspan.files import atomic_write, read_file

Arrays = dict[str, np.ndarray]

_DIGEST = hashlib.sha256().digest_size


def get_or_build(folder: Path, number: int, build: Callable[[], Arrays]) -> Arrays:
    """Return a shard: read it if an interrupted build wrote it, else build and write it.

    Args:
        folder: folder of the shards, inside the scratch folder of a build.
        number: index of the shard.
        build: returns the arrays of the shard.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    path = folder / f"shard-{number:06d}"
    if (arrays := _read(path)) is not None:
        return arrays
    arrays, buffer = build(), io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(hashlib.sha256(buffer.getbuffer()).digest())
        file.write(buffer.getbuffer())
    return arrays


def _read(path: Path) -> Arrays | None:
    """Return the arrays of a shard, or None if it is absent or damaged."""
    try:
        content = read_file(path)
    except (OSError, DataError):
        return None
    if hashlib.sha256(memoryview(content)[_DIGEST:]).digest() != content[:_DIGEST]:
        return None
    with np.load(io.BytesIO(content[_DIGEST:]), allow_pickle=False) as shard:
        return {name: shard[name] for name in shard.files}
