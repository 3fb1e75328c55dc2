"""Files of a checkpoint beside its weights: tokenizer, generation defaults, the written folder."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from longspan.errors import DataError
from longspan.files import check_folder, new_folder, read_json, write_json

SERVING = "longspan.json"  # how a classifier reads its texts, and the threshold of its labels
GENERATION = "generation_config.json"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")


def carry_tokenizer(folder: Path, config: Any, max_length: int) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a checkpoint with a new `model_max_length`; None if it has none.

    Raises:
        DataError: the tokenizer cannot be read, or its ids are not those of the model.
    """
    tokenizer = load_tokenizer(folder, max_length)
    if tokenizer is None:
        return None
    if reasons := _mismatches(tokenizer, config):
        raise DataError(
            f"the tokenizer in {folder} is not that of the model: {'; '.join(reasons)}; "
            "restore the files of the checkpoint"
        )
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has files of a tokenizer."""
    return any(path for pattern in _TOKENIZER for path in folder.glob(pattern))


def load_tokenizer(folder: Path, max_length: int | None = None) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a folder, or None if it has none.

    Args:
        folder: folder of a checkpoint.
        max_length: new `model_max_length`; None: that of the tokenizer.

    Raises:
        DataError: the tokenizer cannot be read.
    """
    if not has_tokenizer(folder):
        return None
    changes = {} if max_length is None else {"model_max_length": max_length}
    try:
        return AutoTokenizer.from_pretrained(check_folder(folder), **changes)
    except (OSError, ValueError, TypeError, ImportError, KeyError) as error:
        raise DataError(f"the tokenizer in {folder} cannot be read ({error})") from error


def _mismatches(tokenizer: PreTrainedTokenizerBase, config: Any) -> list[str]:
    largest, reasons = max(tokenizer.get_vocab().values(), default=0), []
    if largest >= config.vocab_size:
        reasons.append(f"its largest id is {largest}, vocab_size is {config.vocab_size}")
    pads = (tokenizer.pad_token_id, config.pad_token_id)
    if None not in pads and pads[0] != pads[1]:
        reasons.append(f"its pad_token_id is {pads[0]}, that of the model {pads[1]}")
    return reasons


def carry_generation(folder: Path, model: PreTrainedModel) -> None:
    """Give a converted model the generation defaults of its source.

    They are those of `generation_config.json`, or for older checkpoints of `config.json`, from
    which transformers 5 does not read them. A model that does not generate is left as it is.

    Args:
        folder: folder of the source.
        model: converted model.

    Raises:
        DataError: the file cannot be read, or transformers does not save such defaults.
    """
    if not model.can_generate():
        return
    has_file = (folder / GENERATION).is_file()
    path = folder / (GENERATION if has_file else "config.json")
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no generation defaults; download it again")
    read = GenerationConfig.from_dict if has_file else GenerationConfig.from_model_config
    try:
        model.generation_config = read(content)
        model.generation_config.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"the generation defaults of {path} cannot be saved again: {reason}"
        ) from error


def copy_generation(source: PreTrainedModel, model: PreTrainedModel) -> None:
    """Give a model the generation defaults of another, if both generate."""
    if source.can_generate() and model.can_generate():
        model.generation_config = copy.deepcopy(source.generation_config)


def save_folder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    weights: Mapping[str, Tensor] | None = None,
    serving: Mapping[str, Any] | None = None,
) -> None:
    """Write a model and its tokenizer; a failure leaves no folder.

    Args:
        folder: folder to create.
        model: the model.
        tokenizer: its tokenizer, or None.
        weights: weights to write; None: all of the model.
        serving: content of `SERVING`; None: there is no such file.

    Raises:
        OptionError: the folder exists.
        RunError: the folder cannot be written.
    """
    with new_folder(folder) as part:
        model.save_pretrained(part, state_dict=None if weights is None else dict(weights))
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        if serving is not None:
            write_json(part / SERVING, dict(serving))
