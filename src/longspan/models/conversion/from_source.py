"""Models of ours from checkpoints of transformers: `longify` and `convert`."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from longspan.bounds import LARGEST_SEED, check_range
from longspan.errors import OptionError
from longspan.files import check_new_folder
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.conversion.checkpoint_files import (
    carry_generation,
    carry_tokenizer,
    load_tokenizer,
    save_folder,
)
from longspan.models.conversion.converter import Conversion, convert_weights
from longspan.models.conversion.from_own import is_own, longify_own
from longspan.models.conversion.plan import Extension, keep_all, make_config, plan_extension
from longspan.models.conversion.source import Source, open_source


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
        new: patterns of weights of the model that the source may lack; they start anew.
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
        _refuse_for_own(source, decoder_max_length, drop, new, revision)
        made = longify_own(
            Path(source), attention, options, positions, freeze, max_length=max_length, seed=seed
        )
        if folder is not None:
            save_folder(folder, made.model, made.tokenizer)
        return made
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


def _refuse_for_own(
    source: str | Path,
    decoder_max_length: int | None,
    drop: Collection[str],
    new: Collection[str],
    revision: str | None,
) -> None:
    """Refuse options that do not apply to a model of ours.

    Raises:
        OptionError: one is given.
    """
    if decoder_max_length is not None or drop or new or revision is not None:
        raise OptionError(
            f"{source} is an encoder of ours, in a folder; omit decoder_max_length, drop, new and "
            "revision"
        )


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
    own = longest if tokenizer is None else tokenizer.model_max_length
    return min(longest, source.embedding.max_length or own)


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
