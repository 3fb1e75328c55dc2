"""Description of a family of source models: fields, names of weights, and weights without a use."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import transformers
from torch import Tensor

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.model import LongspanModel

POSITIONS = "embeddings.positions.weight"  # the table that is stretched, see `positions.py`
WORDS = "embeddings.words.weight"
ENCODER, DECODER = "encoder.", "decoder."  # prefixes of the parts of an encoder-decoder
Positions = Literal["learned", "rotary", "sinusoidal", "relative"]
LayerAttention = tuple[str, dict[str, Any]]  # mechanism and options


class Weight(NamedTuple):
    """Tensor of the base model and its name in the source.

    Attributes:
        target: name in `LongspanModel`, or of a head in the model with the head.
        sources: names in the source without the family's prefix; the first that a checkpoint has
            is used.
        part: index and number of equal parts of the source's rows, for projections saved as one.
        transposed: whether the source's matrix maps from rows to columns (`Conv1D`), not back.
        factor: number by which the source's tensor is multiplied.
    """

    target: str
    sources: tuple[str, ...]
    part: tuple[int, int] = (0, 1)
    transposed: bool = False
    factor: float = 1.0


class Head(NamedTuple):
    """Head that a model with it shares with the source.

    Attributes:
        model: class of the model with the head.
        weights: weights of the head, without the output matrix that may be tied to the embeddings.
        output: name of this output matrix in the source; None if the head has none.
        fields: fields of `LongspanConfig` for this head.
    """

    model: type[LongspanPreTrainedModel]
    weights: list[Weight]
    output: str | None = None
    fields: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Family of source models.

    The functions take the source's configuration, unless their line says otherwise.

    Attributes:
        model_types: values of `model_type` in the source's configuration.
        prefix: prefix of the base model's weights in checkpoints with a head.
        fields: field of the source by field of `LongspanConfig`, in both directions; those of the
            length and of the attention are not among them.
        constants: fields of `LongspanConfig` that all sources share.
        derived: function that returns fields of `LongspanConfig` that are computed.
        weights: function that returns the weights of the base model.
        heads: functions that return a head, the reason why it cannot be kept, or None for no head,
            by the prefix of its weights; the first whose prefix a checkpoint has is used. The
            prefix "" is that of every checkpoint, for heads without weights of their own.
        dropped: reasons by pattern of weights that have no use.
        refusals: function that returns the reasons why a source cannot be converted.
        positions: kind of positions.
        position_rows: function that returns the number of rows of the position table; of
            encoder-decoders, that of the encoder.
        rows_before: function that returns the number of those before the row of the first token.
        attention: function that returns the mechanism and the options of each layer; None: full
            attention, of a short model.
        computed: function that returns tensors that a checkpoint may lack, because the source
            computes them, by name without the prefix.
        kept_attention: function that returns the layers that keep the source's attention in
            `longify`, as names and options of mechanisms.
        base: class of the model without a head.
        architectures: name of the class in transformers for each class of ours, for the way back;
            empty: there is none.
        source_fields: function of a configuration of ours that returns the fields of the source
            beyond `fields`. It raises OptionError if there is none for this model; differences in
            other fields are found by the caller.
        decoder_words: name of the decoder's word embeddings in the source, which may be tied; None:
            the sources are encoders.
        decoder_rows: function that returns the number of rows of the decoder's position table.
    """

    model_types: tuple[str, ...]
    prefix: str
    fields: Mapping[str, str]
    constants: Mapping[str, Any]
    derived: Callable[[Any], dict[str, Any]] = lambda _: {}
    weights: Callable[[Any], list[Weight]]
    heads: Mapping[str, Callable[[Any], Head | str | None]]
    dropped: Mapping[str, str]
    refusals: Callable[[Any], list[str]] = lambda _: []
    positions: Positions = "learned"
    position_rows: Callable[[Any], int] = lambda config: config.max_position_embeddings
    rows_before: Callable[[Any], int] = lambda _: 0
    attention: Callable[[Any], list[LayerAttention]] | None = None
    computed: Callable[[Any], dict[str, Tensor]] = lambda _: {}
    kept_attention: Callable[[Any], dict[int, LayerAttention]] = lambda _: {}
    base: type[LongspanPreTrainedModel] = LongspanModel
    architectures: Mapping[type[LongspanPreTrainedModel], str] = dataclasses.field(
        default_factory=dict
    )
    source_fields: Callable[[LongspanConfig], dict[str, Any]] = lambda _: {}
    decoder_words: str | None = None
    decoder_rows: Callable[[Any], int] = lambda config: config.max_position_embeddings

    @property
    def part(self) -> str:
        """Prefix of the encoder in the model."""
        return ENCODER if self.decoder_words else ""

    def own_fields(self, config: Any) -> dict[str, Any]:
        """Return the fields of `LongspanConfig` but for those of the length and the attention."""
        same = {ours: getattr(config, theirs) for ours, theirs in self.fields.items()}
        return {**same, **self.constants, **self.derived(config)}

    def source_config(self, config: LongspanConfig, name: str) -> Any:
        """Return the configuration of a class of transformers for one of ours.

        Args:
            config: configuration of ours.
            name: name of the class.

        Raises:
            OptionError: the family has no such model.
        """
        same = {theirs: getattr(config, ours) for ours, theirs in self.fields.items()}
        return getattr(transformers, name).config_class(**same | self.source_fields(config))

    def source_length(self, config: Any) -> int:
        """Return the maximum number of tokens of the source, or of its encoder."""
        return self.position_rows(config) - self.rows_before(config)

    def decoder_length(self, config: Any) -> int | None:
        """Return the maximum number of tokens of the decoder; None if the source has none."""
        rows = self.decoder_rows(config) if self.decoder_words else None
        return None if rows is None else rows - self.rows_before(config)


def same(*names: str) -> dict[str, str]:
    """Return a table of fields that have one name in both configurations."""
    return {name: name for name in names}


def unlike(config: Any, **expected: Any) -> list[str]:
    """Return the fields of a source that it has with other values than expected, as reasons."""
    fields = {name: getattr(config, name, value) for name, value in expected.items()}
    return [f"{name}={value!r}" for name, value in fields.items() if value != expected[name]]


def type_refusals(config: Any) -> list[str]:
    """Return the reason why a source without types of tokens cannot be converted."""
    size = config.type_vocab_size
    return [f"type_vocab_size={size}, expected 1 or more"] if size < 1 else []


def options_of_all(config: LongspanConfig, mechanism: str) -> dict[str, Any]:
    """Return the options of the first layer of a model that has one mechanism in all.

    Raises:
        OptionError: a layer has another mechanism.
    """
    if set(config.attention_names) != {mechanism}:
        names = " and ".join(dict.fromkeys(config.attention_names))
        raise OptionError(f"the attention must be {mechanism} in every layer, got {names}")
    return options_of(mechanism) | config.layer_options(0)


def parameters(target: str, source: str, *names: str) -> list[Weight]:
    """Return the weights of a module by parameter name; without names, its weight and bias."""
    return [
        Weight(f"{target}.{name}", (f"{source}.{name}",)) for name in names or ("weight", "bias")
    ]


def layer_weights(
    table: Mapping[str, str | tuple[str, tuple[int, int]]],
    source: str,
    layers: int,
    *names: str,
    target: str = "layers.{}",
) -> list[Weight]:
    """Return the weights of all layers.

    Args:
        table: name of each module in a layer of the source, by ours; with the part of a matrix that
            holds several.
        source: name of a layer of the source, with {} in place of its index.
        layers: number of layers.
        names: names of the parameters; none: weight and bias.
        target: name of a layer of ours.
    """
    weights = []
    for i in range(layers):
        for ours, theirs in table.items():
            name, part = (theirs, (0, 1)) if isinstance(theirs, str) else theirs
            module_weights = parameters(
                f"{target.format(i)}.{ours}", f"{source.format(i)}.{name}", *names
            )
            weights += [weight._replace(part=part) for weight in module_weights]
    return weights
