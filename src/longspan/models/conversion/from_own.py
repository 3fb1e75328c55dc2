"""Longer models of ours from shorter ones: positions are extended, the attention may change."""

import copy
import functools
from pathlib import Path
from typing import Any

import torch

import longspan.models as models
from longspan.errors import DataError, OptionError, check_name
from longspan.files import read_json
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.conversion.checkpoint_files import load_tokenizer
from longspan.models.conversion.converter import Conversion
from longspan.models.conversion.family import POSITIONS, Weight
from longspan.models.conversion.positions import choose_method, stretch_own_table
from longspan.models.conversion.source import SourceWeight, read_tensors
from longspan.models.conversion.weights import copy_weights, load_weights


def is_own(source: str | Path) -> bool:
    """Return whether a source is a folder of a model of ours."""
    file = Path(source) / "config.json"
    content = read_json(file) if file.is_file() else None
    return isinstance(content, dict) and content.get("model_type") == LongspanConfig.model_type


def longify_own(
    folder: Path,
    attention: str | list[str] | None,
    options: dict[str, Any] | list[dict[str, Any]] | None,
    positions: str | None,
    freeze: str,
    *,
    max_length: int,
    seed: int,
) -> Conversion[LongspanPreTrainedModel]:
    """Return a longer model of an encoder of ours; see `longify` for the arguments and errors."""
    short = LongspanConfig.from_pretrained(folder)
    _check(folder, short, max_length)
    method = _choose_method(short, positions)
    config = copy.deepcopy(short)
    config.max_position_embeddings = max_length
    if attention is not None:
        config.attention, config.attention_options = attention, options or {}
    config.freeze = freeze
    is_frozen = freeze != "none" and method != "interpolate"
    config.frozen_positions = short.max_sequence_length if is_frozen else 0
    config.check()
    weights = {name: SourceWeight(name, x) for name, x in read_tensors(folder).items()}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = _model_class(folder)(config).eval()
        prefix = "" if model is model.base_model else f"{model.base_model_prefix}."
        stretch = functools.partial(stretch_own_table, short, max_length, method)
        table = [Weight(name, (name,)) for name in weights]
        _check_shapes(folder, weights, model, prefix + POSITIONS)
        state, rows, _ = copy_weights(table, weights, model, {prefix + POSITIONS: stretch}, ())
    tied = {x: f"tied to {y}" for x, y in model.all_tied_weights_keys.items()}
    rows += load_weights(model, state, tied)
    return Conversion(model, load_tokenizer(folder, max_length), tuple(rows))


def _check(folder: Path, short: LongspanConfig, max_length: int) -> None:
    """Refuse models and lengths that cannot be extended.

    Raises:
        OptionError: the model is a decoder, its positions form a grid, or the length is below its.
    """
    if short.is_decoder or short.is_encoder_decoder:
        raise OptionError(f"{folder} has a decoder, and of models of ours encoders are extended")
    if short.position_encoding == "axial":
        raise OptionError(
            f"{folder} has axial positions, whose grid decides the length; choose another source"
        )
    if max_length < short.max_position_embeddings:
        raise OptionError(
            f"max_length must be at least the {short.max_position_embeddings:,} tokens of the "
            f"source, got {max_length:,}; to shorten inputs, truncate them with the tokenizer"
        )


def _choose_method(short: LongspanConfig, method: str | None) -> str:
    """Return how positions are extended; those without parameters are kept."""
    if short.position_encoding == "learned":
        return choose_method("learned", method)
    return check_name(method or "keep", ("keep",), "method to extend positions without parameters")


def _model_class(folder: Path) -> type[LongspanPreTrainedModel]:
    """Return the class that the weights belong to.

    Raises:
        DataError: config.json names none of ours.
    """
    name = (read_json(folder / "config.json").get("architectures") or [None])[0]
    found = getattr(models, str(name), None)
    if not (isinstance(found, type) and issubclass(found, LongspanPreTrainedModel)):
        raise DataError(f"{folder / 'config.json'} names no class of longspan.models, got {name!r}")
    return found


def _check_shapes(
    folder: Path, weights: dict[str, SourceWeight], model: LongspanPreTrainedModel, table: str
) -> None:
    """Refuse mechanisms whose parameters follow the length.

    Raises:
        OptionError: a weight has another shape in the longer model.
    """
    shapes = {name: x.shape for name, x in model.state_dict().items()}
    for name, weight in weights.items():
        if name != table and name in shapes and shapes[name] != weight.tensor.shape:
            raise OptionError(
                f"{name} of {folder} has shape {tuple(weight.tensor.shape)}, and "
                f"{tuple(shapes[name])} in the longer model; choose an attention without "
                "parameters for each position"
            )
