"""Tokenizer of a source, for the length of the converted model."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from longspan.errors import DataError
from longspan.files import check_folder

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")


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
    return any(path for pattern in FILES for path in folder.glob(pattern))


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
