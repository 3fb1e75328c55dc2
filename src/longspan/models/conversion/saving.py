"""Folder of a converted model."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longspan.files import new_folder


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
        OptionError: the folder exists.
        RunError: the folder cannot be written.
    """
    with new_folder(folder) as part:
        model.save_pretrained(part, state_dict=None if weights is None else dict(weights))
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
