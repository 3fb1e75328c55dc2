"""Description of a family of source models: fields, names of weights, and weights without a use."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from longspan.models.base import LongspanPreTrainedModel
from longspan.models.model import LongspanModel

POSITIONS = "embeddings.positions.weight"  # the table that is stretched, see `positions.py`
WORDS = "embeddings.words.weight"
Positions = Literal["learned", "rotary"]


class Weight(NamedTuple):
    """Tensor of the base model and its name in the source.

    Attributes:
        target: name in `LongspanModel`, or of a head in the model with the head.
        sources: names in the source without the family's prefix; the first that a checkpoint has
            is used.
        part: index and number of equal parts of the source's rows, for projections saved as one.
    """

    target: str
    sources: tuple[str, ...]
    part: tuple[int, int] = (0, 1)


class Head(NamedTuple):
    """Head that a model with it shares with the source.

    Attributes:
        model: class of the model with the head.
        weights: weights of the head, without the output matrix that is tied to the embeddings.
        output: name of the output matrix in the source, which may be tied.
    """

    model: type[LongspanPreTrainedModel]
    weights: list[Weight]
    output: str


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
        head_prefix: prefix of the weights of the head that is kept.
        head: function that returns this head, or the reason why it cannot be kept.
        dropped: reasons by pattern of weights that have no use.
        refusals: function that returns the reasons why a source cannot be converted.
        positions: kind of positions.
        rows_before: function that returns the number of rows of the position table before that of
            the first token.
        kept_attention: function that returns the layers that keep the source's attention, as names
            and options of mechanisms.
        base: class of the model without a head.
    """

    model_types: tuple[str, ...]
    prefix: str
    fields: Callable[[Any], dict[str, Any]]
    weights: Callable[[Any], list[Weight]]
    head_prefix: str
    head: Callable[[Any], Head | str]
    dropped: Mapping[str, str]
    refusals: Callable[[Any], list[str]] = lambda _: []
    positions: Positions = "learned"
    rows_before: Callable[[Any], int] = lambda _: 0
    kept_attention: Callable[[Any], dict[int, tuple[str, dict[str, Any]]]] = lambda _: {}
    base: type[LongspanPreTrainedModel] = LongspanModel

    def source_length(self, config: Any) -> int:
        """Return the maximum number of tokens of the source."""
        return config.max_position_embeddings - self.rows_before(config)


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
