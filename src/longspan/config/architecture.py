"""Fields of a model's configuration, each with all that other modules know of it; without torch."""

import copy
import dataclasses
import inspect
import re
from typing import Any, Literal

from longspan.bounds import (
    LARGEST_RATE,
    LONGEST,
    MOST_HEADS,
    MOST_IDS,
    MOST_LAYERS,
    MOST_TAPS,
    WIDEST,
)

ROTARY_BASE = 10_000.0


def option(
    default: Any,
    *,
    choices: tuple[str, ...] | None = None,
    bounds: tuple[float | int, float | int] | None = None,
    share: bool = False,
    weights: bool = False,
    decoder: bool = False,
    in_decoder: Any = dataclasses.MISSING,
    effect: Literal["model", "attention", "head", "none"] = "model",
    resolved: str | None = None,
) -> Any:
    """Return a field of a configuration.

    Args:
        default: default value; lists and dicts are copied.
        choices: permitted texts.
        bounds: least and largest number.
        share: whether the number is in [0, 1).
        weights: whether the weights of one value are useless under another one.
        decoder: whether the decoder of an encoder-decoder may have another value.
        in_decoder: value of such a decoder unless it has one of its own.
        effect: outputs that depend on it: those of every model, of the mechanisms, of some heads,
            or none.
        resolved: property of the configuration with the value that a default stands for.
    """
    notes: dict[str, Any] = {"choices": choices, "bounds": bounds, "share": share}
    notes |= {"weights": weights, "decoder": decoder, "effect": effect, "resolved": resolved}
    notes = {name: x for name, x in notes.items() if x}
    if in_decoder is not dataclasses.MISSING:
        notes["in_decoder"] = in_decoder
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=notes)
    return dataclasses.field(default=default, metadata=notes)


def declared(config: Any, note: str) -> dict[str, Any]:
    """Return a note of the fields that have it by name, such as the bounds of all sizes.

    Args:
        config: configuration, or its class.
        note: name of an argument of `option`.
    """
    return {x.name: x.metadata[note] for x in dataclasses.fields(config) if note in x.metadata}


def describe_fields(cls: type) -> dict[str, str]:
    """Return the texts of the attributes in a class's docstring, by name."""
    listed = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    parts = re.split(r"^    (\w+): ", listed, flags=re.MULTILINE)[1:]
    return {name: " ".join(x.split()) for name, x in zip(parts[::2], parts[1::2], strict=True)}


@dataclasses.dataclass(init=False, repr=False, eq=False)
class Architecture:
    """Fields of `LongspanConfig`; the defaults are a small encoder for classification.

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
        short_convolution: taps of a depthwise convolution of queries, keys and values over the
            tokens, before positions are added, see `longspan.models.short_convolution`: the token
            and those before it in a decoder, both sides otherwise. 0: there is none. Projections
            that a mechanism has beyond these are not convolved.
        short_convolution_activation: function after it, "none" or "silu".
        output_norm: "none", or "rms": the output of each head of the mechanism is divided by its
            root mean square, and multiplied by D learned weights that the heads share.
        output_gate: "none", "silu" or "sigmoid": function of a linear map of the layer's input,
            which multiplies the output of the mechanism, after `output_norm`. It has a bias if the
            maps to queries, keys and values have one.
        hidden_act: activation of the feed-forward network, one of transformers' `ACT2FN`.
        max_position_embeddings: maximum number of input tokens; `pooling="cls"` adds one position.
        position: "learned", "sinusoidal", "rotary" or "none", see `longspan.models.positions`;
            "axial": learned, as a row and a column of a grid, see `longspan.models.positions`;
            "relative_2d": learned numbers for offsets of pixels, see `longspan.models.relative`;
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
            learned positions. Every load applies it; load with "none" and `frozen_positions=0` to
            train all parameters. "all-but-positions" is the ablation of Longformer (Beltagy et al.
            2020, https://arxiv.org/abs/2004.05150, section 5). In an encoder-decoder both fields
            describe the encoder: its decoder is frozen, unless `decoder_overrides` has
            `frozen_positions`. Rows without a gradient still shrink under weight decay, which runs
            of longspan leave out: set the decay of the positions to zero in other optimizers.
        has_relative_attention_bias: whether scores have those of "t5" as well (MPNet).
        relative_attention_num_buckets: buckets of distances of the position "t5", for both sides of
            a query together.
        relative_attention_max_distance: distance of "t5" from which all share the last bucket.
        relative_clamp: distance of "relative" that stands for all longer ones; None: no limit.
        stem: "none", or "convolution": two convolutions over the pixels of a square image, before
            positions are added; see `longspan.models.embeddings`.
        num_hidden_groups: groups of successive layers that share weights (ALBERT); None: none do.
        norm: "pre" (normalize the input of each block, and the encoder's output) or "post"
            (normalize the sum after each block, and the embeddings; BERT).
        norm_type: "layer_norm", or "rms_norm" (root mean square without a bias; T5).
        norm_bias: whether layer normalizations have biases.
        residual: "standard", or "reversible": states are two streams of width M, see
            `longspan.models.layers`. Heads read both, the width `output_size`.
        embedding_norm: whether a pre-norm model normalizes the embeddings, in place of the input
            of the first attention (ModernBERT).
        first_attention_norm: whether a model with `embedding_norm` normalizes the input of the
            first attention as well (mBART).
        pooling: pooled state of an input: "mean" or "max" over its real tokens, "cls" (state of a
            learned summary token before the input, global if the mechanism supports global tokens),
            "first" (state of the first token; BERT), "last" (of the last real token; GPT) or
            "attention" (mean with learned weights; Yang et al. 2016).
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
        class_weights: weight of each class in the loss of a classification head, 1 on average over
            the training examples; None: 1 of all. Several labels and numbers have none.
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
    short_convolution: int = option(0, bounds=(0, MOST_TAPS), weights=True, decoder=True)
    short_convolution_activation: str = option(
        "none", choices=("none", "silu"), weights=True, decoder=True
    )
    output_norm: str = option("none", choices=("none", "rms"), weights=True, decoder=True)
    output_gate: str = option(
        "none", choices=("none", "silu", "sigmoid"), weights=True, decoder=True
    )
    hidden_act: str = option("gelu", weights=True, decoder=True)
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
        ROTARY_BASE, weights=True, decoder=True, resolved="applied_rotary_bases"
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
        "mean",
        choices=("mean", "max", "cls", "first", "last", "attention"),
        in_decoder="last",
        effect="head",
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
    classifier_activation: str = option("relu", effect="head")
    class_weights: list[float] | None = option(None, effect="none")
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
