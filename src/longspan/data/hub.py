"""Datasets of the Hugging Face hub, fetched on request through the `datasets` library."""

import os
from pathlib import Path
from typing import Any

from longspan.data.parquet import SOURCE_SPLITS
from longspan.errors import DataError, reason_of
from longspan.files import atomic_write


def fetch_parquet(name: str, folder: Path) -> Path:
    """Write the training and test split of a dataset to `folder` and return the folder.

    The files are `train.parquet` and `test.parquet`; they are read like any other local copy. If
    both exist, nothing is done. The dataset comes from the cache of the `datasets` library, or
    else from the network.

    Args:
        name: name on the hub, such as "stanfordnlp/imdb", or a local folder that the library can
            load.
        folder: the folder to write to; it is created.

    Raises:
        DataError: the library is not installed, the dataset is neither cached nor reachable, or a
            split is missing.
        RunError: the disk is full or the folder cannot be written.
    """
    paths = {split: folder / f"{split}.parquet" for split in SOURCE_SPLITS}
    if all(path.exists() for path in paths.values()):
        return folder
    dataset = _load(name)
    if missing := [split for split in SOURCE_SPLITS if split not in dataset]:
        raise DataError(f"{name} lacks split {', '.join(missing)}; it has {', '.join(dataset)}")
    for split, path in paths.items():
        with atomic_write(path) as temporary:
            dataset[split].to_parquet(str(temporary))
    return folder


def cached_folders(name: str) -> list[Path]:
    """Return the folders of parquet files of a dataset in the hub's cache, of every revision."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return sorted(cache.glob(f"datasets--{name.replace('/', '--')}/snapshots/*/plain_text"))


def import_datasets(purpose: str) -> Any:
    """Return the library `datasets`.

    Args:
        purpose: what needs it, for the message.

    Raises:
        DataError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{purpose} needs the library datasets ({error}); pip install 'longspan[hub]'"
        ) from error
    return datasets


def _load(name: str) -> dict[str, Any]:
    datasets = import_datasets(f"fetching {name}")
    try:
        return datasets.load_dataset(name)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = reason_of(error)
        raise DataError(
            f"{name} is neither in the cache of the library datasets nor reachable ({reason}); "
            "connect to the network, or download it by hand and pass its folder as --data"
        ) from error
