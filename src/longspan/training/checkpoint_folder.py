"""Folders of checkpoints, as `save_pretrained` writes them: configuration, weights, identity."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub.errors import StrictDataclassError
from transformers.utils import logging as transformers_logging

from longspan.errors import DataError, LongspanError, reason_of
from longspan.files import check_folder, file_sha256, read_json
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.models.conversion.source import weight_files
from longspan.training.checkpoint import UNREADABLE

Model = TypeVar("Model", bound=LongspanPreTrainedModel)


def weights_sha256(folder: Path) -> str:
    """Return the sha256 of a checkpoint's weights; of shards, that of their list.

    Raises:
        DataError: the folder has no weights.
    """
    digests = [file_sha256(file) for file in weight_files(folder)]
    return digests[0] if len(digests) == 1 else hashlib.sha256(str(digests).encode()).hexdigest()


def read_config(folder: Path) -> LongspanConfig:
    """Return the configuration of a checkpoint.

    Raises:
        DataError: it cannot be read, or is no configuration of this library.
    """
    content = read_json(folder / "config.json")
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind != LongspanConfig.model_type:
        raise DataError(
            f"{folder} is a checkpoint of model_type {kind!r}, expected "
            f"{LongspanConfig.model_type!r}; convert it with longspan convert or longspan longify"
        )
    try:
        return LongspanConfig.from_pretrained(folder)
    except (LongspanError, OSError, TypeError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'} cannot be read ({error})") from error


def load_pretrained(cls: type[Model], folder: Path, remedy: str) -> Model:
    """Load a model, without a progress bar.

    Args:
        cls: class of the model.
        folder: folder of its checkpoint.
        remedy: end of the message for a checkpoint that cannot be loaded.

    Raises:
        DataError: a file is missing or damaged, or weights of the model are missing.
    """
    try:
        with _hidden_progress_bar():
            loaded: Any = cls.from_pretrained(check_folder(folder), output_loading_info=True)
    except (*UNREADABLE, StrictDataclassError) as error:
        reason = reason_of(error)
        raise DataError(f"{folder} cannot be read ({reason}); {remedy}") from error
    model, loading_info = loaded
    if missing := sorted(loading_info["missing_keys"]):
        raise DataError(
            f"{folder} lacks {len(missing)} weights of {cls.__name__}, such as {missing[0]}; "
            f"{remedy}"
        )
    return model


@contextlib.contextmanager
def _hidden_progress_bar() -> Iterator[None]:
    """Hide the progress bar with which transformers loads weights."""
    is_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_enabled:
            transformers_logging.enable_progress_bar()
