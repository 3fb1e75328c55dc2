"""Configuration of the models, saved as `config.json` next to their weights."""

import dataclasses
import logging
from typing import Any, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from longspan.attention import MECHANISMS, Traits, options_of
from longspan.config.architecture import Architecture, declared
from longspan.errors import InputError, OptionError, check_name
from longspan.models.config_checks import TRANSFORMERS_FIELDS, check_config

logger = logging.getLogger(__name__)


# `strict` checks the types of the fields, and a second type checker cannot read the constructor
# that transformers substitutes for the dataclass's own.
@no_type_check
@strict
class LongspanConfig(Architecture, PreTrainedConfig):
    """Configuration of a Longspan model, with the fields of `Architecture`."""

    model_type = "longspan"
    # Outputs that are no predictions: transformers' Trainer hands the others to metrics.
    keys_to_ignore_at_inference = [
        *("cache", "auxiliary_loss"),
        *("hidden_states", "hidden_states_b", "decoder_hidden_states", "encoder_hidden_states"),
        *("attentions", "attentions_b", "decoder_attentions", "encoder_attentions"),
        *("cross_attentions", "encoder_last_hidden_state"),
    ]

    def __post_init__(self, **kwargs: Any) -> None:
        """Reject unknown fields, which transformers would store, and check all values."""
        for name, value in kwargs.items():
            if name in self._mechanism_options() - self._field_names():
                raise OptionError(
                    f"{name} is an option of the mechanism, no field of LongspanConfig; give it as "
                    f"attention_options={{{name!r}: {value!r:.60}}}"
                )
            if not name.startswith("_"):
                check_name(name, self._field_names(), "field of LongspanConfig")
        super().__post_init__(**kwargs)
        self.check()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return a saved configuration; fields of others are kept, unused, and named in a warning.

        Such are notes of a user, fields of other programs and of other versions of longspan.
        """
        names = cls._field_names()
        foreign = {
            name: value
            for name, value in config_dict.items()
            if name not in names and not name.startswith("_")
        }
        fields = {name: value for name, value in config_dict.items() if name not in foreign}
        loaded: Any = super().from_dict(fields, **kwargs)
        config = loaded[0] if kwargs.get("return_unused_kwargs") else loaded
        for name, value in foreign.items():
            setattr(config, name, value)
        if foreign:
            listing = ", ".join(sorted(foreign))
            logger.warning("fields of config.json that LongspanConfig has not: %s", listing)
        return loaded

    def _mechanism_options(self) -> set[str]:
        """Return the options of the mechanisms that exist."""
        names = self.attention if isinstance(self.attention, list) else [self.attention]
        known = (x for x in names if isinstance(x, str) and x in MECHANISMS)
        return {option for name in known for option in options_of(name)}

    @classmethod
    def _field_names(cls) -> set[str]:
        """Return the fields that the constructor takes."""
        return {field.name for field in dataclasses.fields(cls)} | TRANSFORMERS_FIELDS

    def resolve(self, name: str) -> Any:
        """Return the value of a field; where other fields decide it, what they say."""
        return getattr(self, declared(self, "resolved").get(name, name))

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings; `embedding_size` resolved."""
        return self.embedding_size or self.hidden_size

    @property
    def head_dim(self) -> int:
        """Width D of one head, `attention_head_size` or M / H."""
        return self.attention_head_size or self.hidden_size // self.num_attention_heads

    @property
    def all_head_size(self) -> int:
        """Total width of the heads; `hidden_size` unless `attention_head_size` is given."""
        return self.head_dim * self.num_attention_heads

    @property
    def has_qkv_bias(self) -> bool:
        """True if the maps to queries, keys and values have biases; `qkv_bias` resolved."""
        return self.linear_bias if self.qkv_bias is None else self.qkv_bias

    @property
    def has_attention_output_bias(self) -> bool:
        """True if the map after the mechanism has a bias; `attention_output_bias` resolved."""
        has_bias = self.attention_output_bias
        return self.linear_bias if has_bias is None else has_bias

    @property
    def output_size(self) -> int:
        """Width of the model's output: M, or 2 M with reversible residual connections."""
        return self.hidden_size * (2 if self.residual == "reversible" else 1)

    @property
    def logits_input_size(self) -> int:
        """Width of the states that are mapped to logits: that of embeddings to which it is tied."""
        width = self.hidden_size if self.tie_word_embeddings else self.output_size
        return self.embedding_size or width

    @property
    def is_regression(self) -> bool:
        """True if the head predicts numbers: `problem_type`, or one label without a type.

        The rule is that of transformers' models.
        """
        if self.problem_type is None:
            return self.num_labels == 1
        return self.problem_type == "regression"

    @property
    def is_multi_label(self) -> bool:
        """True if any number of classes may apply to an input (`problem_type`)."""
        return self.problem_type == "multi_label_classification"

    @property
    def attention_names(self) -> list[str]:
        """Name of the mechanism of each layer; one name if there are no layers."""
        if isinstance(self.attention, str):
            return [self.attention] * max(self.num_hidden_layers, 1)
        return self.attention

    def layer_options(self, layer: int) -> dict[str, Any]:
        """Return the options of the mechanism of one layer."""
        options = self.attention_options
        return options if isinstance(options, dict) else options[layer]

    @property
    def layer_traits(self) -> list[Traits]:
        """Traits of the mechanism of each layer, with default options."""
        return [MECHANISMS[name].traits for name in self.attention_names]

    @property
    def position_encoding(self) -> str:
        """Position encoding that the model adds: `position` with "auto" resolved."""
        if self.position != "auto":
            return self.position
        carried = all(traits.carries_positions for traits in self.layer_traits)
        return "none" if carried else "learned"

    @property
    def rotary_bases(self) -> list[float]:
        """Base of the rotary positions of each layer; one if there are no layers."""
        if isinstance(self.rotary_base, list):
            return [float(base) for base in self.rotary_base]
        return [float(self.rotary_base)] * max(self.num_hidden_layers, 1)

    @property
    def applied_rotary_bases(self) -> list[float] | None:
        """`rotary_bases` of a model with rotary positions; None: it has others."""
        return self.rotary_bases if self.position_encoding == "rotary" else None

    @property
    def supports_global_tokens(self) -> bool:
        """True if the mechanism of some layer supports global tokens."""
        return any(traits.global_tokens for traits in self.layer_traits)

    @property
    def limits_length(self) -> bool:
        """True if `max_position_embeddings` bounds the length.

        It does not bound that of a decoder whose positions and mechanisms have no parameters for
        each position.
        """
        sized = any("max_length" in traits.sizes for traits in self.layer_traits)
        return not self.is_decoder or self.position_encoding in ("learned", "axial") or sized

    @property
    def first_decoder_token(self) -> int | None:
        """Id before the first token of the decoder; `decoder_start_token_id` resolved."""
        start = self.decoder_start_token_id
        return self.bos_token_id if start is None else start

    @property
    def max_tokens_of_global_mask(self) -> int | None:
        """Maximum number of global tokens per row of the encoder, summary token included."""
        if self.max_global_tokens is None:
            return None
        return self.max_global_tokens + (self.pooling == "cls")

    @property
    def max_sequence_length(self) -> int:
        """Maximum number of positions in the encoder, summary token included."""
        return self.sequence_length(self.max_position_embeddings)

    def sequence_length(self, length: int) -> int:
        """Return the number of positions in the encoder for an input of `length` tokens.

        Raises:
            InputError: `length` exceeds `max_position_embeddings`.
        """
        if length > self.max_position_embeddings and self.limits_length:
            raise InputError(
                f"an input may have max_position_embeddings={self.max_position_embeddings} tokens, "
                f"got {length}; truncate the input or build a longer model"
            )
        return length + (self.pooling == "cls")

    def check(self) -> None:
        """Check all values. Models check again, because fields can be assigned after construction.

        Raises:
            OptionError: values are invalid; the message lists every reason.
            UnknownNameError: a choice, mechanism, option or backend does not exist.
        """
        check_config(self)
