"""Models of ours from checkpoints: `longify` and `convert`."""

import copy
import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

import longspan.models as models
from longspan.bounds import LARGEST_SEED, check_range
from longspan.errors import DataError, OptionError, check_name
from longspan.files import check_new_folder, read_json
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.conversion.checkpoint_files import (
    SERVING,
    carry_generation,
    carry_tokenizer,
    load_tokenizer,
    save_folder,
)
from longspan.models.conversion.converter import Conversion, convert_weights
from longspan.models.conversion.family import POSITIONS, Weight
from longspan.models.conversion.plan import (
    Extension,
    check_length,
    keep_all,
    make_config,
    plan_extension,
)
from longspan.models.conversion.positions import choose_method, stretch_own_table
from longspan.models.conversion.source import Source, SourceWeight, open_source, read_tensors
from longspan.models.conversion.weights import copy_weights, load_weights


def longify(
    source: str | Path,
    *,
    max_length: int,
    attention: str | list[str] | None = None,
    out: str | Path | None = None,
    options: dict[str, Any] | list[dict[str, Any]] | None = None,
    positions: str | None = None,
    freeze: str = "none",
    decoder_max_length: int | None = None,
    drop: Collection[str] = (),
    new: Collection[str] = (),
    revision: str | None = None,
    seed: int = 0,
) -> Conversion[LongspanPreTrainedModel]:
    """Convert a pretrained model into a longer one with another attention.

    The source is an encoder or an encoder-decoder, whose decoder keeps full attention. The outputs
    for a short input equal those of the source if the attention covers the input ("full", or a
    window as long) and the positions of the source are kept.

    Args:
        source: folder of a checkpoint, or its name on the Hugging Face Hub; its `model_type` is in
            `longspan.models.conversion.families.FAMILIES`. Or a folder of an encoder of ours.
        max_length: maximum number of tokens of the encoder, at least that of the source.
        attention: name of the mechanism, or a list with a name for each layer; None: that of the
            source. Of encoder-decoders, that of the encoder.
        out: folder to write, with the tokenizer; None: nothing is written.
        options: options of the mechanism, or a list with those of each layer.
        positions: how positions are extended, see `longspan.models.conversion.positions`; None: the
            first method for the kind of positions that the source has.
        freeze: "none", or "all-but-positions" to train only the positions beyond those of the
            source, see `longspan.models.base`.
        decoder_max_length: maximum number of tokens of the decoder, at least that of the source,
            which None keeps.
        drop: patterns of weights of the source to drop, beyond those that have no use.
        new: patterns of weights of the model that the source may lack; their values are random.
        revision: revision of a source on the Hub.
        seed: seed of new weights.

    Raises:
        OptionError: the source cannot be converted, an option is invalid, a length is below that
            of the source, or `out` exists.
        UnknownNameError: a mechanism, option or method does not exist.
        DataError: weights are missing, left over, damaged or pickled, or the tokenizer does not
            match.
        RunError: `out` cannot be written.
    """
    check_range("seed", seed, 0, LARGEST_SEED)
    folder = None if out is None else check_new_folder(Path(out))
    if is_own(source):
        if decoder_max_length is not None or drop or new or revision is not None:
            raise OptionError(
                f"{source} is an encoder of ours, in a folder; omit decoder_max_length, drop, new "
                "and revision"
            )
        conversion = _longify_own(
            Path(source), attention, options, positions, freeze, max_length=max_length, seed=seed
        )
        if folder is not None:
            _save_longer(conversion, Path(source) / SERVING, folder, max_length)
        return conversion
    opened = open_source(source, revision)
    extension = plan_extension(
        opened,
        attention,
        options,
        positions,
        freeze,
        max_length=max_length,
        decoder_max_length=decoder_max_length,
    )
    return _convert(opened, extension, max_length, folder, drop, new, seed)


def convert(
    source: str | Path,
    *,
    out: str | Path | None = None,
    drop: Collection[str] = (),
    new: Collection[str] = (),
    revision: str | None = None,
    seed: int = 0,
) -> Conversion[LongspanPreTrainedModel]:
    """Convert a checkpoint of transformers into a model with the same attention and outputs.

    See `longify` for the arguments and errors, and `to_transformers` for the way back.
    """
    check_range("seed", seed, 0, LARGEST_SEED)
    folder = None if out is None else check_new_folder(Path(out))
    opened = open_source(source, revision)
    extension = keep_all(opened.family, opened.config)
    length = _text_length(opened, extension.max_length)
    return _convert(opened, extension, length, folder, drop, new, seed)


def _text_length(source: Source, longest: int) -> int:
    """Return the tokens after which texts are cut; sentence-transformers may cut earlier."""
    if source.embedding is None:
        return longest
    tokenizer = load_tokenizer(source.folder)
    limit = longest if tokenizer is None else tokenizer.model_max_length
    return min(longest, source.embedding.max_length or limit)


def _convert(
    source: Source,
    extension: Extension,
    length: int,
    folder: Path | None,
    drop: Collection[str],
    new: Collection[str],
    seed: int,
) -> Conversion[LongspanPreTrainedModel]:
    config = make_config(source.family, source.config, extension)
    if source.embedding is not None:
        config.pooling, config.similarity = source.embedding.pooling, source.embedding.similarity
    tokenizer = carry_tokenizer(source.folder, source.config, length)
    model, rows = convert_weights(source, config, extension.positions, drop, new, seed)
    carry_generation(source.folder, model)
    if folder is not None:
        save_folder(folder, model, tokenizer)
    return Conversion(model, tokenizer, rows)


def is_own(source: str | Path) -> bool:
    """Return whether a source is a folder of a model of ours."""
    file = Path(source) / "config.json"
    content = read_json(file) if file.is_file() else None
    return isinstance(content, dict) and content.get("model_type") == LongspanConfig.model_type


def _longify_own(
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
    _check_own(folder, short, max_length)
    if short.position_encoding == "learned":
        method = choose_method("learned", positions)
    else:  # positions without parameters are kept
        what = "method to extend positions without parameters"
        method = check_name(positions or "keep", ("keep",), what)
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
        _check_own_shapes(folder, weights, model, prefix + POSITIONS)
        state, rows, _ = copy_weights(table, weights, model, {prefix + POSITIONS: stretch}, ())
    tied = {x: f"tied to {y}" for x, y in model.all_tied_weights_keys.items()}
    rows += load_weights(model, state, tied)
    return Conversion(model, load_tokenizer(folder, max_length), tuple(rows))


def _save_longer(conversion: Conversion, file: Path, folder: Path, max_length: int) -> None:
    """Write a longer model; a classifier that reads head and tail of a text has a longer tail."""
    serving = read_json(file) if file.is_file() else None
    if serving is not None and (kept := serving.get("kept")):
        serving["kept"] = [kept[0], max_length - kept[0]]
    save_folder(folder, conversion.model, conversion.tokenizer, serving=serving)


def _check_own(folder: Path, short: LongspanConfig, max_length: int) -> None:
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
    check_length("max_length", max_length, short.max_position_embeddings)


def _model_class(folder: Path) -> type[LongspanPreTrainedModel]:
    """Return the class that the weights belong to.

    Raises:
        DataError: config.json names none of ours.
    """
    name = (read_json(folder / "config.json").get("architectures") or [None])[0]
    model_class = getattr(models, str(name), None)
    if not (isinstance(model_class, type) and issubclass(model_class, LongspanPreTrainedModel)):
        raise DataError(f"{folder / 'config.json'} names no class of longspan.models, got {name!r}")
    return model_class


def _check_own_shapes(
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
