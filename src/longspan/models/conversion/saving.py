"""New folders that exist only once they are complete."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longspan.errors import OptionError
from longspan.files import explain_write_errors


def check_new_folder(folder: Path) -> Path:
    """Return the path of a folder that does not exist.

    Raises:
        OptionError: there is such a file or folder.
    """
    if folder.exists() or folder.is_symlink():
        raise OptionError(f"{folder} exists; name a new folder, or remove this one")
    return folder


def save_folder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model and its tokenizer; a failure leaves no folder.

    Args:
        folder: folder to create.
        model: the model.
        tokenizer: its tokenizer, or None.
        weights: weights to write; None: all of the model.

    Raises:
        RunError: the folder cannot be written.
    """
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
            made = Path(name) / folder.name
            model.save_pretrained(made, state_dict=None if weights is None else dict(weights))
            if tokenizer is not None:
                tokenizer.save_pretrained(made)
            made.rename(folder)
