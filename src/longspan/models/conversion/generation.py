"""Generation defaults of a source, such as its beams and start token."""

import copy
from pathlib import Path

from transformers import GenerationConfig, PreTrainedModel

from longspan.errors import DataError
from longspan.files import read_json

FILE = "generation_config.json"


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
    own = (folder / FILE).is_file()
    path = folder / (FILE if own else "config.json")
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no generation defaults; download it again")
    read = GenerationConfig.from_dict if own else GenerationConfig.from_model_config
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
