"""Parts of a build that takes minutes: what an interrupted build has made is not made again."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longspan.files import atomic_write

Arrays = dict[str, np.ndarray]

_DIGEST = hashlib.sha256().digest_size


class Parts:
    """Numbered parts of one build, each a file that is whole or not there."""

    def __init__(self, folder: Path):
        """Keep the parts in `folder`, the scratch folder of a build."""
        self.folder = folder

    def made(self, number: int, make: Callable[[], Arrays]) -> Arrays:
        """Part `number`: from an earlier, interrupted build, else made and kept.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        path = self.folder / f"part-{number:06d}"
        if (there := _read(path)) is not None:
            return there
        arrays, packed = make(), io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            file.write(hashlib.sha256(packed.getbuffer()).digest())
            file.write(packed.getbuffer())
        return arrays


def _read(path: Path) -> Arrays | None:
    """The arrays of a part; None where there is no part, or not as it was written."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(memoryview(content)[_DIGEST:]).digest() != content[:_DIGEST]:
        return None
    with np.load(io.BytesIO(content[_DIGEST:]), allow_pickle=False) as part:
        return {name: part[name] for name in part.files}
