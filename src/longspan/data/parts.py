"""Parts of a build that takes minutes: what an interrupted build has made is not made again."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longspan.files import replacing

Arrays = dict[str, np.ndarray]


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
        path = self.folder / f"part-{number:06d}.npz"
        if (there := _read(path)) is not None:
            return there
        arrays = make()
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        return arrays


def _read(path: Path) -> Arrays | None:
    """The arrays of a part, each compared with its CRC; None where there is no whole part."""
    try:
        with np.load(path, allow_pickle=False) as part:
            return {name: part[name] for name in part.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
