"""Configuration of the models, saved as `config.json` next to their weights."""

import dataclasses
import logging
from typing import Any, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from longspan.attention import MECHANISMS, Traits
from longspan.bounds import LARGEST_RATE, LONGEST, MOST_HEADS, MOST_IDS, MOST_LAYERS, WIDEST
from longspan.errors import InputError, check_name
from longspan.models.config_checks import TRANSFORMERS_FIELDS, check_config
from longspan.models.fields import declared, option
from longspan.models.positions import BASE

logger = logging.getLogger(__name__)


# `strict` checks the types of the fields, and a second type checker cannot read the constructor
# that transformers substitutes for the dataclass's own.
@no_type_check
@strict
class LongspanConfig(PreTrainedConfig):
    """Configuration of a Longspan model; the defaults are a small encoder for classification.

    Attributes:
        vocab_size: number of token ids.
        type_vocab_size: number of token types, such as the two segments of BERT; 0: none.
        embedding_size: width of the embeddings, which a linear map widens (ELECTRA); None: M.
        adaptive_cutoffs: first ids of all clusters of words but the first one, ascending, of ids in
            the order of decreasing frequency: embeddings and the softmax of a causal language model
            are adaptive, see `longspan.models.adaptive`. Empty: they are not.
        adaptive_factor: quotient of the dimensions of a cluster and the next one, 1: equal ones.
        scale_embedding: whether embeddings are multiplied by the square root of their width, before
            positions are added.
        input_features: numbers per position of continuous inputs, which a linear map embeds; None
            if the inputs are token ids.
        hidden_size: model width M; a multiple of `num_attention_heads` unless
            `attention_head_size` is given.
        num_hidden_layers: number of layers; 0: the classifier reads the embeddings, or the stem.
        num_attention_heads: heads H per layer.
        attention_head_size: width D of a head; None means M / H.
        intermediate_size: width of the feed-forward network.
        feed_forward: "plain", two linear maps, or "gated": the activations are multiplied by a
            third linear map of the input (Shazeer 2020, https://arxiv.org/abs/2002.05202).
        linear_bias: whether the linear maps of the layers and of the transform before the logits
            of masked tokens have biases.
        qkv_bias: whether the maps to queries, keys and values have biases; None: as `linear_bias`.
        attention_output_bias: whether the map after the mechanism has one; None: as `linear_bias`.
        hidden_act: activation of the feed-forward network, one of transformers' `ACT2FN`.
        max_position_embeddings: maximum number of input tokens; `pooling="cls"` adds one position.
        position: "learned", "sinusoidal", "rotary" or "none", see `longspan.models.positions`;
            "axial": learned, as a row and a column of a grid, see `longspan.models.axial`;
            "relative_2d": learned numbers for offsets of pixels, see `longspan.models.relative_2d`;
            "t5" (buckets of distances) or "relative" (sinusoids of distances, Transformer-XL), for
            mechanisms whose trait `relative` says so, see `longspan.models.relative`;
            or "auto": learned, and none for a mechanism that carries positions (its trait says so).
        axial_shape: rows and columns of the grid of "axial"; position t is in row t // columns.
        axial_widths: coordinates of the embeddings that rows and columns have; their sum is the
            width of the embeddings.
        rotary_base: base of the angles of rotary positions, or a list with that of each layer.
        positions_skip_padding: whether the position of a token is the number of tokens before it
            other than `pad_token_id`, whatever the mask (RoBERTa), not its index in the row. That
            of a decoder is always the number of real tokens before it.
        frozen_positions: number of first rows of the learned position table without a gradient.
        freeze: parameters that are not trained: "none", "all", or "all-but-positions", all but the
            learned positions; see `longspan.models.freezing`.
        has_relative_attention_bias: whether scores have those of "t5" as well (MPNet).
        relative_attention_num_buckets: buckets of distances of the position "t5", for both sides of
            a query together.
        relative_attention_max_distance: distance of "t5" from which all share the last bucket.
        relative_clamp: distance of "relative" that stands for all longer ones; None: no limit.
        stem: "none", or "convolution": two convolutions over the pixels of a square image, before
            positions are added; see `longspan.models.stem`.
        num_hidden_groups: groups of successive layers that share weights (ALBERT); None: none do.
        norm: "pre" (normalize the input of each block, and the encoder's output) or "post"
            (normalize the sum after each block, and the embeddings; BERT).
        norm_type: "layer_norm", or "rms_norm" (root mean square without a bias; T5).
        norm_bias: whether layer normalizations have biases.
        residual: "standard", or "reversible": states are two streams of width M, see
            `longspan.models.reversible`. Heads read both, the width `output_size`.
        embedding_norm: whether a pre-norm model normalizes the embeddings, in place of the input
            of the first attention (ModernBERT).
        first_attention_norm: whether a model with `embedding_norm` normalizes the input of the
            first attention as well (mBART).
        pooling: pooled state of an input: "mean" over its real tokens, "cls" (state of a learned
            summary token before the input, global if the mechanism supports global tokens),
            "first" (state of the first token; BERT) or "last" (of the last real token; GPT).
        hidden_dropout_prob: dropout of the embeddings and of each block's output.
        attention_dropout: dropout of the mechanism's output, before the output projection. Dropout
            of attention weights is not possible for every mechanism (half of them never form the
            weights), and all mechanisms must be compared under one regularization.
        layer_norm_eps: epsilon of the layer normalizations.
        attention: name of the mechanism, or a list with a name for each layer.
        attention_options: options of the mechanism, or a list with those of each layer; missing
            ones take the mechanism's defaults.
        attention_backend: "auto", or the name of the backend that must run.
        max_global_tokens: maximum number of global tokens of an input, without the summary token;
            calls then have fixed shapes and no synchronization, see `attention.build`. None: the
            tokens are counted in each call.
        default_global_tokens: tokens that are global if a call of a head for one text names none
            (transformers' Longformer): "none", "first", "before_separator" (the question of
            question answering) or "after_separator" (the text after two separators).
        classifier_hidden_size: width of the hidden layer of the classification heads; 0: there is
            none.
        classifier_activation: activation of that layer, one of transformers' `ACT2FN`.
        lm_head_bias: whether logits of the vocabulary have a bias where the model's class has none:
            next tokens, and masked ones of the linear `prediction_head`.
        classifier_bias: whether the last linear map of the classification heads has a bias.
        prediction_head: map from states to the logits of masked tokens: "transform" (linear map,
            activation and normalization before a linear map with a bias; BERT) or "linear" (a
            linear map without bias; Reformer).
        pair_head: features of a pair: "interaction" (a, b, a * b, a - b) or "concatenate" (a, b).
        shared_towers: whether one Transformer encodes queries and documents in a dual encoder.
        similarity: similarity of two embeddings in a dual encoder: "dot" or "cosine".
        similarity_scale: factor of the similarities in the loss of a dual encoder; None: 1 for dot
            products, 20 for cosines, which are too close to each other without it.
        symmetric_loss: whether a dual encoder also learns to find the query of each document.
        coreference: options of a coreference head that differ from their defaults, see
            `longspan.models.heads.coreference_head.CoreferenceOptions`.
        initializer_range: standard deviation of the initial weights.
        is_decoder: whether a token sees itself and earlier tokens only; mechanisms are built with
            `causal=True`.
        cross_attention: name of the mechanism with which every layer of a decoder attends to the
            states of an encoder; None: it reads no encoder.
        cross_attention_options: options of that mechanism.
        max_encoder_positions: maximum number of the encoder's tokens, for mechanisms of
            cross-attention with parameters of that size; None: `max_position_embeddings`.
        is_encoder_decoder: whether the fields describe the encoder of an encoder-decoder; its
            decoder has the same, but for causal full attention and `decoder_overrides`.
        decoder_overrides: fields of the decoder that differ, see `longspan.models.parts`.
        decoder_start: first token of the decoder in training from labels alone: "token", the
            `decoder_start_token_id`, or "last", the last label of the row, such as the language
            (mBART).
        decoder_start_token_id: id before the first token of the decoder; None: `bos_token_id`.
        use_cache: whether decoders return their state for the next tokens, outside training.
        tie_word_embeddings: whether language modeling heads share the word embeddings.
        pad_token_id: id that tokenizers put at padded positions; models read the mask instead, but
            for `positions_skip_padding`.
        bos_token_id: id of the first token, or None.
        eos_token_id: id, or ids, of the last token, or None.
        sep_token_id: id of the token between the parts of a text, or None.
    """

    model_type = "longspan"
    # Outputs that are no predictions: transformers' Trainer hands the others to metrics.
    keys_to_ignore_at_inference = [
        *("cache", "auxiliary_loss", "token_losses"),
        *("hidden_states", "hidden_states_b", "decoder_hidden_states", "encoder_hidden_states"),
        *("attentions", "attentions_b", "decoder_attentions", "encoder_attentions"),
        *("cross_attentions", "encoder_last_hidden_state"),
    ]

    vocab_size: int = option(512, bounds=(1, MOST_IDS))
    type_vocab_size: int = option(0, bounds=(0, MOST_IDS), weights=True, in_decoder=0)
    embedding_size: int | None = option(
        None, bounds=(1, WIDEST), weights=True, resolved="embedding_width"
    )
    adaptive_cutoffs: list[int] = option([], weights=True)
    adaptive_factor: int = option(4, bounds=(1, WIDEST), effect="none")
    scale_embedding: bool = option(False, weights=True)
    input_features: int | None = option(None, bounds=(1, WIDEST), weights=True)
    hidden_size: int = option(64, bounds=(1, WIDEST), weights=True)
    num_hidden_layers: int = option(2, bounds=(0, MOST_LAYERS), weights=True, decoder=True)
    num_attention_heads: int = option(2, bounds=(1, MOST_HEADS), weights=True, decoder=True)
    attention_head_size: int | None = option(
        None, bounds=(1, WIDEST), weights=True, decoder=True, resolved="head_dim"
    )
    intermediate_size: int = option(128, bounds=(1, WIDEST), weights=True, decoder=True)
    feed_forward: str = option("plain", choices=("plain", "gated"), weights=True, decoder=True)
    linear_bias: bool = option(True, weights=True, decoder=True)
    qkv_bias: bool | None = option(None, weights=True, decoder=True, resolved="has_qkv_bias")
    attention_output_bias: bool | None = option(
        None, weights=True, decoder=True, resolved="has_attention_output_bias"
    )
    hidden_act: str = option("gelu", choices=tuple(ACT2FN), weights=True, decoder=True)
    max_position_embeddings: int = option(1024, bounds=(1, LONGEST - 1), decoder=True)
    position: str = option(
        "auto",
        choices=(
            *("auto", "learned", "axial", "sinusoidal", "rotary", "relative_2d", "t5", "relative"),
            "none",
        ),
        weights=True,
        decoder=True,
        resolved="position_encoding",
    )
    axial_shape: list[int] | None = option(None, weights=True)
    axial_widths: list[int] | None = option(None, weights=True)
    rotary_base: float | int | list[float | int] = option(
        BASE, weights=True, decoder=True, resolved="applied_rotary_bases"
    )
    positions_skip_padding: bool = option(False, weights=True)
    frozen_positions: int = option(0, bounds=(0, LONGEST), decoder=True, effect="none")
    freeze: str = option("none", choices=("none", "all-but-positions", "all"), effect="none")
    has_relative_attention_bias: bool = option(False, weights=True)
    relative_attention_num_buckets: int = option(
        32, bounds=(2, LONGEST), weights=True, decoder=True
    )
    relative_attention_max_distance: int = option(
        128, bounds=(1, LONGEST), weights=True, decoder=True
    )
    relative_clamp: int | None = option(None, bounds=(0, LONGEST), weights=True, decoder=True)
    stem: str = option("none", choices=("none", "convolution"), weights=True, in_decoder="none")
    num_hidden_groups: int | None = option(None, bounds=(1, MOST_LAYERS), weights=True)
    norm: str = option("pre", choices=("pre", "post"), weights=True, decoder=True)
    norm_type: str = option(
        "layer_norm", choices=("layer_norm", "rms_norm"), weights=True, decoder=True
    )
    norm_bias: bool = option(True, weights=True, decoder=True)
    residual: str = option("standard", choices=("standard", "reversible"), weights=True)
    embedding_norm: bool = option(False, weights=True, decoder=True)
    first_attention_norm: bool = option(False, weights=True, decoder=True)
    pooling: str = option(
        "mean", choices=("mean", "cls", "first", "last"), in_decoder="last", effect="head"
    )
    hidden_dropout_prob: float | int = option(0.1, share=True, decoder=True)
    attention_dropout: float | int = option(0.1, share=True, decoder=True)
    layer_norm_eps: float = option(1e-5, bounds=(0, LARGEST_RATE), weights=True, decoder=True)
    attention: str | list[str] = option("full", decoder=True, in_decoder="full", effect="attention")
    attention_options: dict[str, Any] | list[dict[str, Any]] = option(
        {}, decoder=True, in_decoder={}, effect="attention"
    )
    attention_backend: str = option("auto", decoder=True, effect="none")
    max_global_tokens: int | None = option(
        None, bounds=(0, LONGEST), in_decoder=None, effect="none"
    )
    default_global_tokens: str = option(
        "none", choices=("none", "first", "before_separator", "after_separator"), effect="head"
    )
    classifier_hidden_size: int = option(128, bounds=(0, WIDEST), effect="head")
    classifier_activation: str = option("relu", choices=tuple(ACT2FN), effect="head")
    lm_head_bias: bool = option(False)
    classifier_bias: bool = option(True, effect="head")
    prediction_head: str = option("transform", choices=("transform", "linear"), effect="head")
    pair_head: str = option("interaction", choices=("interaction", "concatenate"), effect="none")
    shared_towers: bool = option(True, effect="none")
    similarity: str = option("dot", choices=("dot", "cosine"), effect="none")
    similarity_scale: float | int | None = option(None, effect="none")
    symmetric_loss: bool = option(False, effect="none")
    coreference: dict[str, Any] = option({})
    initializer_range: float = option(0.02, bounds=(0, LARGEST_RATE))
    is_decoder: bool = option(False, weights=True)
    cross_attention: str | None = option(None, weights=True, decoder=True, in_decoder="full")
    cross_attention_options: dict[str, Any] = option({}, decoder=True)
    max_encoder_positions: int | None = option(None, bounds=(1, LONGEST))
    is_encoder_decoder: bool = option(False, weights=True)
    decoder_overrides: dict[str, Any] = option({}, effect="none")
    decoder_start: str = option("token", choices=("token", "last"))
    decoder_start_token_id: int | None = option(None, resolved="first_decoder_token")
    use_cache: bool = option(True, effect="none")
    tie_word_embeddings: bool = option(True, effect="none")
    pad_token_id: int | None = option(0)
    bos_token_id: int | None = option(None)
    eos_token_id: int | list[int] | None = option(None)
    sep_token_id: int | None = option(None)

    def __post_init__(self, **kwargs: Any) -> None:
        """Reject unknown fields, which transformers would store, and check all values."""
        for name in kwargs:
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
        others = {
            name: value
            for name, value in config_dict.items()
            if name not in names and not name.startswith("_")
        }
        own = {name: value for name, value in config_dict.items() if name not in others}
        made: Any = super().from_dict(own, **kwargs)
        config = made[0] if kwargs.get("return_unused_kwargs") else made
        for name, value in others.items():
            setattr(config, name, value)
        if others:
            found = ", ".join(sorted(others))
            logger.warning("fields of config.json that LongspanConfig has not: %s", found)
        return made

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
        chosen = self.attention_output_bias
        return self.linear_bias if chosen is None else chosen

    @property
    def output_size(self) -> int:
        """Width of the model's output: M, or 2 M with reversible residual connections."""
        return self.hidden_size * (2 if self.residual == "reversible" else 1)

    @property
    def logits_input_size(self) -> int:
        """Width of the states that are mapped to logits: that of embeddings to which it is tied."""
        own = self.hidden_size if self.tie_word_embeddings else self.output_size
        return self.embedding_size or own

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
