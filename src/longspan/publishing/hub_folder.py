"""Folders that the Hugging Face hub shows and transformers loads."""

import copy
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from longspan.errors import OptionError
from longspan.files import new_folder
from longspan.models import LongspanPreTrainedModel
from longspan.publishing.remote_code import write_remote_code
from longspan.publishing.served_folder import Serving


def write_hub_folder(
    model: LongspanPreTrainedModel,
    folder: Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    card: str | None = None,
    serving: Serving | None = None,
) -> Path:
    """Write a model with everything that loading it needs; return the folder.

    The folder has `config.json`, `model.safetensors` and the code of the model, so that
    `AutoModel.from_pretrained(folder, trust_remote_code=True)` works where longspan is not
    installed. It appears whole, or not at all.

    Args:
        model: model to save.
        folder: folder to create.
        tokenizer: its tokenizer, which `AutoTokenizer` then loads.
        card: content of README.md.
        serving: how a classifier reads its texts.

    Raises:
        OptionError: the folder exists, the model is not one of longspan, or a class of it cannot be
            imported from a file.
        RunError: the folder cannot be written.
    """
    if not isinstance(model, LongspanPreTrainedModel):
        raise OptionError(
            f"{type(model).__name__} is no model of longspan; save it with its own save_pretrained"
        )
    with new_folder(folder) as part:
        model.save_pretrained(part)
        config = copy.deepcopy(model.config)
        config.auto_map = write_remote_code(model, part)
        config.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        if serving is not None:
            serving.save(part)
        if card is not None:
            (part / "README.md").write_text(card, encoding="utf-8")
    return folder
