"""Description of a family of source models: fields, names of weights, and weights without a use."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from torch import Tensor
from transformers import PreTrainedConfig

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


class Decoder(NamedTuple):
    """Decoder of an encoder-decoder source, in `LongspanEncoderDecoderModel`.

    Attributes:
        words: name of its word embeddings in the source, which may be tied.
        position_rows: function that returns the number of rows of its position table.
    """

    words: str
    position_rows: Callable[[Any], int]


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

    The functions take the source's configuration.

    Attributes:
        model_types: values of `model_type` in the source's configuration.
        prefix: prefix of the base model's weights in checkpoints with a head.
        fields: function that returns the fields of `LongspanConfig`, without those of the length
            and of the attention.
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
        source_config: function that returns the configuration of the source's class for that of a
            model of ours; None: there is no way back. It raises OptionError if there is none for
            this model; differences in other fields are found by the caller.
        architectures: name of the class in transformers for each class of ours, for the way back.
        decoder: decoder of the sources; None: they are encoders.
    """

    model_types: tuple[str, ...]
    prefix: str
    fields: Callable[[Any], dict[str, Any]]
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
    source_config: Callable[[LongspanConfig], PreTrainedConfig] | None = None
    architectures: Mapping[type[LongspanPreTrainedModel], str] = dataclasses.field(
        default_factory=dict
    )
    decoder: Decoder | None = None

    @property
    def part(self) -> str:
        """Prefix of the encoder in the model."""
        return ENCODER if self.decoder else ""

    def source_length(self, config: Any) -> int:
        """Return the maximum number of tokens of the source, or of its encoder."""
        return self.position_rows(config) - self.rows_before(config)

    def decoder_length(self, config: Any) -> int | None:
        """Return the maximum number of tokens of the decoder; None if the source has none."""
        return self.decoder and self.decoder.position_rows(config) - self.rows_before(config)


def output_bias(config: Any, own: str, output: str) -> Weight:
    """Return the bias of the logits, which is saved by itself and with the output matrix.

    The source reads that of the output matrix, which equals the other one if weights are tied.
    """
    names = (own, output) if config.tie_word_embeddings else (output, own)
    return Weight("lm_head.bias", names)


def activation_refusal(head: str, layers: str) -> str | None:
    """Return why a head with this activation cannot be kept: the model has that of the layers."""
    return (
        None if head == layers else f"the head's activation is {head}, that of the layers {layers}"
    )


def parameters(target: str, source: str, *names: str) -> list[Weight]:
    """Return the weights of a module by parameter name; without names, its weight and bias."""
    return [
        Weight(f"{target}.{name}", (f"{source}.{name}",)) for name in names or ("weight", "bias")
    ]
