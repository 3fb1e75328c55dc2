"""Folder of a converted model."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longspan.files import new_folder


def save_folder(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Write a model and its tokenizer; a failure leaves no folder.

    Raises:
        OptionError: the folder exists.
        RunError: the folder cannot be written.
    """
    with new_folder(folder) as part:
        model.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
