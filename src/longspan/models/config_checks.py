"""Checks of a model's configuration."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from transformers.activations import ACT2FN

from longspan.attention import MECHANISMS
from longspan.attention.build import check_mechanism
from longspan.bounds import LARGEST_RATE, range_error
from longspan.config.architecture import declared
from longspan.errors import OptionError, check_name
from longspan.models.adaptive import adaptive_refusals
from longspan.models.parts import check_parts, cross_attention_refusals
from longspan.models.positions import axial_refusals
from longspan.models.relative import image_side, relative_refusals

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig

_PROBLEM_TYPES = (
    None,
    "single_label_classification",
    "multi_label_classification",
    "regression",
)
_OF_LAYERS = ("attention", "attention_options", "rotary_base")  # one value, or one for each layer
_OF_IMAGES = (("position", "relative_2d"), ("stem", "convolution"))
Reasons = Iterator[str]
# Fields that transformers and its tools add to a configuration.
TRANSFORMERS_FIELDS = {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
}


def check_config(config: "LongspanConfig") -> None:
    """Check all values of a configuration.

    Raises:
        OptionError: values are invalid; the message lists every reason.
        UnknownNameError: a choice, mechanism, option or backend does not exist.
    """
    for field, names in declared(config, "choices").items():
        check_name(getattr(config, field), names, field)
    for field in ("hidden_act", "classifier_activation"):
        check_name(getattr(config, field), ACT2FN, field)
    reasons = [*_size_refusals(config)] or [*_attention_refusals(config)]
    if not reasons:
        _check_layers(config)
        reasons = [reason for rule in _RULES for reason in rule(config)] or check_parts(config)
    if reasons:
        raise OptionError(f"LongspanConfig: {'; '.join(reasons)}")


def _size_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why numbers are out of their bounds."""
    for name, bounds in declared(config, "bounds").items():
        number = getattr(config, name)
        if number is not None and (error := range_error(name, number, *bounds)):
            yield error
    for name in declared(config, "share"):
        if not 0 <= (share := getattr(config, name)) < 1:
            yield f"{name} must be in [0, 1), got {share}"


def _attention_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why lists of mechanisms and options do not fit the layers."""
    layers = config.num_hidden_layers
    for name in _OF_LAYERS:
        value = getattr(config, name)
        if isinstance(value, list) and len(value) != layers:
            yield (
                f"{name} must be one value or a list of num_hidden_layers={layers} values, "
                f"got {len(value)}"
            )
    options = config.attention_options
    if isinstance(config.attention, list) and isinstance(options, dict) and options:
        yield "attention_options must be a list, one dict for each layer, if attention is a list"


def _check_layers(config: "LongspanConfig") -> None:
    """Raise UnknownNameError for a mechanism, option or backend that does not exist."""
    for layer, name in enumerate(config.attention_names):
        check_mechanism(name, config.layer_options(layer), config.attention_backend)


def _layered_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why options with a value for each layer do not fit the layers."""
    layers, reasons = config.num_hidden_layers, []
    for layer, name in enumerate(config.attention_names if layers else ()):
        reasons += layered_refusals(name, config.layer_options(layer), layers)
    yield from dict.fromkeys(reasons)


def layered_refusals(name: str, options: Mapping[str, Any], layers: int) -> list[str]:
    """Return the reasons why options of a mechanism do not have a value for each layer.

    Args:
        name: mechanism.
        options: options, of which lists for the layers are checked.
        layers: number of layers of the model.
    """
    return [
        f"{option} of {name} must be one value, or a list with one for each of the {layers} "
        f"layers, got {len(values)}"
        for option, depth in MECHANISMS[name].layered_options.items()
        if isinstance(values := options.get(option), list)
        and (not values or _depth(values) == depth)
        and len(values) != layers
    ]


def _depth(value: Any) -> int:
    """Return how deeply lists are nested, judged by their first items."""
    return 1 + _depth(value[0]) if isinstance(value, list) and value else 0


def _width_refusals(config: "LongspanConfig") -> Reasons:
    if config.attention_head_size is None and config.hidden_size % config.num_attention_heads:
        yield (
            f"hidden_size={config.hidden_size} must be a multiple of "
            f"num_attention_heads={config.num_attention_heads}, or set attention_head_size"
        )


def _rotary_refusals(config: "LongspanConfig") -> Reasons:
    if config.position_encoding == "rotary" and config.head_dim % 2:
        yield (
            f"rotary positions require an even head width, got {config.head_dim}; "
            "change num_attention_heads or position"
        )
    if any(not 1 < base < math.inf for base in config.rotary_bases):
        yield f"rotary_base must be a finite number above 1, got {config.rotary_base}"


def _image_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reason why the inputs are no images for the fields that require them."""
    fields = [
        f"{field}={value!r}" for field, value in _OF_IMAGES if getattr(config, field) == value
    ]
    pixels = config.max_position_embeddings
    if fields and image_side(pixels) is None:
        yield (
            f"{' and '.join(fields)}: requires a square image, got {pixels:,} positions "
            "(max_position_embeddings)"
        )


def _convolution_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why queries, keys and values cannot pass through short convolutions."""
    taps, length = config.short_convolution, config.max_position_embeddings
    if taps == 1:
        yield "short_convolution must be 0 (none) or at least 2 taps, got 1"
    if taps > length and config.limits_length:
        yield (
            f"short_convolution must be at most max_position_embeddings={length}, got {taps}: the "
            "further taps would read no token; use fewer taps"
        )
    if not taps and config.short_convolution_activation != "none":
        yield (
            f"short_convolution_activation={config.short_convolution_activation!r} requires "
            "short_convolution >= 2, got 0"
        )


def _norm_refusals(config: "LongspanConfig") -> Reasons:
    if config.embedding_norm and config.norm == "post":
        yield "embedding_norm=True is of pre-norm models; norm='post' normalizes the embeddings"
        return
    if config.output_norm != "none" and not config.layer_norm_eps:
        yield (
            f"output_norm={config.output_norm!r} requires layer_norm_eps > 0, got 0: outputs of "
            "tokens with nothing to attend are zero"
        )
    if config.first_attention_norm and not config.embedding_norm:
        yield (
            "first_attention_norm=True requires embedding_norm=True; no norm is left out without it"
        )
    if config.residual != "standard":
        for name, value in {
            "norm": "pre",
            "cross_attention": None,
            "is_encoder_decoder": False,
        }.items():
            if (got := getattr(config, name)) != value:
                yield f"residual={config.residual!r} requires {name}={value!r}, got {got!r}"


def _group_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why layers cannot share their weights."""
    groups, layers = config.num_hidden_groups, config.num_hidden_layers
    if groups is None:
        return
    if groups > layers:
        yield f"num_hidden_groups must be at most num_hidden_layers={layers}, got {groups}"
    lists = [name for name in _OF_LAYERS if isinstance(getattr(config, name), list)]
    if not lists and layered_refusals(config.attention_names[0], config.layer_options(0), 0):
        lists = ["value of each option"]
    for name in lists:
        yield f"num_hidden_groups={groups} requires one {name} for all layers"
    if config.embedding_norm and not config.first_attention_norm:
        yield (
            f"num_hidden_groups={groups} with embedding_norm=True requires "
            "first_attention_norm=True: the first layer has a norm that the others share"
        )


def _freezing_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reason why the positions that are frozen, or trained alone, do not exist."""
    frozen = config.frozen_positions
    freezes = frozen or config.freeze == "all-but-positions"
    if freezes and config.position_encoding != "learned":
        yield (
            f"freeze={config.freeze!r} with frozen_positions={frozen} requires learned positions, "
            f"got position={config.position_encoding!r}"
        )
    elif frozen >= config.max_sequence_length:
        yield (
            f"frozen_positions must be less than the {config.max_sequence_length} positions, "
            f"got {frozen}"
        )


def _pooling_refusals(config: "LongspanConfig") -> Reasons:
    if config.num_hidden_layers == 0 and config.pooling == "cls":
        yield (
            "num_hidden_layers=0 with pooling='cls' reads no input: the summary token attends "
            "to nothing; use pooling='mean' or 'first'"
        )
    elif config.is_decoder and config.pooling == "cls":
        yield (
            "is_decoder=True with pooling='cls' reads no input: the summary token precedes it; "
            "use pooling='last' or 'mean'"
        )
    elif config.is_encoder_decoder and config.pooling == "attention":
        yield (
            "is_encoder_decoder=True with pooling='attention' has weights that nothing reads: no "
            "state is pooled; use pooling='mean'"
        )


def _padding_refusals(config: "LongspanConfig") -> Reasons:
    if config.positions_skip_padding and config.pad_token_id is None:
        yield "positions_skip_padding=True requires pad_token_id, got None"


def _decoder_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why the model cannot be a decoder."""
    if not config.is_decoder:
        return
    able = [name for name, cls in MECHANISMS.items() if cls.traits.causal]
    for name in dict.fromkeys(config.attention_names):
        if name not in able:
            yield (
                f"is_decoder=True requires a causal form, which {name} does not have; use one of "
                f"{', '.join(able)}"
            )
    for field, value in _OF_IMAGES:
        if getattr(config, field) == value:
            yield f"is_decoder=True does not support {field}={value!r}, which reads whole images"


def _global_refusals(config: "LongspanConfig") -> Reasons:
    """Yield the reasons why there are no global tokens as the fields ask for."""
    names, rule = " and ".join(dict.fromkeys(config.attention_names)), config.default_global_tokens
    asked = {"max_global_tokens": config.max_global_tokens is not None}
    asked["default_global_tokens"] = rule != "none"
    for field, is_asked in asked.items():
        if is_asked and not config.supports_global_tokens:
            yield f"{field}: {names} does not support global tokens"
    if rule.endswith("_separator") and config.sep_token_id is None:
        yield f"default_global_tokens={rule!r} requires sep_token_id, got None"


def _head_refusals(config: "LongspanConfig") -> Reasons:
    scale = config.similarity_scale
    if scale is not None and not 0 < scale <= LARGEST_RATE:
        yield f"similarity_scale must be in (0, {LARGEST_RATE}], got {scale}"
    if config.problem_type not in _PROBLEM_TYPES:
        names = ", ".join(repr(name) for name in _PROBLEM_TYPES)
        yield f"problem_type must be one of {names}, got {config.problem_type!r}"


# Rules of configurations whose sizes and mechanisms are valid.
_RULES: tuple[Callable[["LongspanConfig"], Iterable[str]], ...] = (
    _layered_refusals,
    _width_refusals,
    adaptive_refusals,
    _rotary_refusals,
    relative_refusals,
    _image_refusals,
    axial_refusals,
    _convolution_refusals,
    _norm_refusals,
    _group_refusals,
    _freezing_refusals,
    _pooling_refusals,
    _padding_refusals,
    _decoder_refusals,
    cross_attention_refusals,
    _global_refusals,
    _head_refusals,
)
