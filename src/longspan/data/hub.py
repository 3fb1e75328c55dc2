"""Sets of the Hugging Face hub, through the `datasets` library, on demand and never silently."""

import os
from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.files import atomic_write

PARTS = ("train", "test")


def fetch(name: str, folder: Path) -> Path:
    """Write a set's training and test part as `{train,test}.parquet` into `folder`; return it.

    The set comes from the library's own cache, or else from the network. Where both files are in
    the folder already, nothing is done. What is written is read like any other local copy.

    Args:
        name: of the set on the hub, such as "stanfordnlp/imdb", or a local folder that the library
            can load.
        folder: where the files go; it is made.

    Raises:
        DataError: the library is not installed, or the set is neither cached nor reachable, or it
            lacks a part.
        RunError: the disk is full or the folder cannot be written.
    """
    paths = {part: folder / f"{part}.parquet" for part in PARTS}
    if all(path.exists() for path in paths.values()):
        return folder
    found = _load(name)
    if missing := [part for part in PARTS if part not in found]:
        raise DataError(
            f"{name} has no part {' and no part '.join(missing)}; it has {', '.join(found)}"
        )
    for part, path in paths.items():
        with atomic_write(path) as temporary:
            found[part].to_parquet(str(temporary))
    return folder


def cached(name: str) -> list[Path]:
    """The folders of parquet files of a set in the cache of the hub, of every revision there."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return sorted(cache.glob(f"datasets--{name.replace('/', '--')}/snapshots/*/plain_text"))


def _load(name: str) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"fetching {name} needs the library datasets ({error}); pip install 'longspan[hub]'"
        ) from error
    try:
        return datasets.load_dataset(name)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{name} is neither in the cache of the library datasets nor reachable ({reason}); "
            "connect to the network, or download the set by hand and name its folder by --data"
        ) from error
