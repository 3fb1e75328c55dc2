"""Generation defaults of a source, such as its beams and start token."""

import copy
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from longspan.errors import DataError
from longspan.files import read_json

FILE = "generation_config.json"


def carry_generation(folder: Path, config: Any, model: PreTrainedModel) -> None:
    """Give a converted model the generation defaults of its source.

    They are those of `generation_config.json`, or for older checkpoints of `config.json`. A model
    that does not generate is left as it is.

    Args:
        folder: folder of the source.
        config: configuration of the source.
        model: converted model.

    Raises:
        DataError: the file cannot be read, or transformers does not save such defaults.
    """
    if not model.can_generate():
        return
    if not (folder / FILE).is_file():
        model.generation_config = GenerationConfig.from_model_config(config)
        return
    content = read_json(folder / FILE)
    if not isinstance(content, dict):
        raise DataError(f"{folder / FILE} holds no generation defaults; download it again")
    try:
        model.generation_config = GenerationConfig.from_dict(content)
        model.generation_config.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{folder / FILE} cannot be saved again: {reason}") from error


def copy_generation(source: PreTrainedModel, model: PreTrainedModel) -> None:
    """Give a model the generation defaults of another, if both generate."""
    if source.can_generate() and model.can_generate():
        model.generation_config = copy.deepcopy(source.generation_config)
