"""Configuration of the models, saved as `config.json` next to their weights."""

import dataclasses
from typing import Any, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from longspan.attention import MECHANISMS, Traits, backends, options_of
from longspan.bounds import (
    LARGEST_RATE,
    LONGEST,
    MOST_HEADS,
    MOST_IDS,
    MOST_LAYERS,
    WIDEST,
    range_error,
)
from longspan.errors import InputError, OptionError, check_name
from longspan.models.relative_2d import image_side

CHOICES: dict[str, tuple[str, ...]] = {
    "position": ("auto", "learned", "sinusoidal", "rotary", "relative_2d", "none"),
    "stem": ("none", "convolution"),
    "norm": ("pre", "post"),
    "pooling": ("mean", "cls", "first"),
    "pair_head": ("interaction", "concatenate"),
    "hidden_act": tuple(ACT2FN),
}
# Least and largest sizes.
SIZES = {
    "vocab_size": (1, MOST_IDS),
    "input_features": (1, WIDEST),
    "hidden_size": (1, WIDEST),
    "num_hidden_layers": (0, MOST_LAYERS),
    "num_attention_heads": (1, MOST_HEADS),
    "attention_head_size": (1, WIDEST),
    "intermediate_size": (1, WIDEST),
    "max_position_embeddings": (1, LONGEST - 1),  # pooling="cls" adds one position
    "max_global_tokens": (0, LONGEST),
    "classifier_hidden_size": (1, WIDEST),
}
PROBLEM_TYPES = (None, "single_label_classification", "regression")
DROPOUTS = ("hidden_dropout_prob", "attention_dropout")
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
    "use_cache",
}


# `strict` checks the types of the fields, and a second type checker cannot read the constructor
# that transformers substitutes for the dataclass's own.
@no_type_check
@strict
class LongspanConfig(PreTrainedConfig):
    """Configuration of a Longspan model; the defaults are a small encoder for classification.

    Attributes:
        vocab_size: number of token ids.
        input_features: numbers per position of continuous inputs, which a linear map embeds; None
            if the inputs are token ids.
        hidden_size: model width M; a multiple of `num_attention_heads` unless
            `attention_head_size` is given.
        num_hidden_layers: number of layers; 0: the classifier reads the embeddings, or the stem.
        num_attention_heads: heads H per layer.
        attention_head_size: width D of a head; None means M / H.
        intermediate_size: width of the feed-forward network.
        hidden_act: activation of the feed-forward network, one of transformers' `ACT2FN`.
        max_position_embeddings: maximum number of input tokens; `pooling="cls"` adds one position.
        position: "learned", "sinusoidal", "rotary" or "none", see `longspan.models.positions`;
            "relative_2d": learned numbers for offsets of pixels, see `longspan.models.relative_2d`;
            or "auto": learned, and none for a mechanism that carries positions (its trait says so).
        stem: "none", or "convolution": two convolutions over the pixels of a square image, before
            positions are added; see `longspan.models.stem`.
        norm: "pre" (normalize the input of each block, and the encoder's output) or "post"
            (normalize the sum after each block, and the embeddings; BERT).
        pooling: pooled state of an input: "mean" over its real tokens, "cls" (state of a learned
            summary token before the input, global if the mechanism supports global tokens) or
            "first" (state of the first token; BERT).
        hidden_dropout_prob: dropout of the embeddings and of each block's output.
        attention_dropout: dropout of the mechanism's output, before the output projection. Dropout
            of attention weights is not possible for every mechanism (half of them never form the
            weights), and all mechanisms must be compared under one regularization.
        layer_norm_eps: epsilon of the layer normalizations.
        attention: name of the mechanism.
        attention_options: options of the mechanism; missing ones take the mechanism's defaults.
        attention_backend: "auto", or the name of the backend that must run.
        max_global_tokens: maximum number of global tokens of an input, without the summary token;
            calls then have fixed shapes and no synchronization, see `attention.build`. None: the
            tokens are counted in each call.
        classifier_hidden_size: width of the hidden layer of the classification heads.
        pair_head: features of a pair: "interaction" (a, b, a * b, a - b) or "concatenate" (a, b).
        initializer_range: standard deviation of the initial weights.
        pad_token_id: id that tokenizers put at padded positions; models read the mask instead.
    """

    model_type = "longspan"

    vocab_size: int = 512
    input_features: int | None = None
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    attention_head_size: int | None = None
    intermediate_size: int = 128
    hidden_act: str = "gelu"
    max_position_embeddings: int = 1024
    position: str = "auto"
    stem: str = "none"
    norm: str = "pre"
    pooling: str = "mean"
    hidden_dropout_prob: float | int = 0.1
    attention_dropout: float | int = 0.1
    layer_norm_eps: float = 1e-5
    attention: str = "full"
    attention_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    attention_backend: str = "auto"
    max_global_tokens: int | None = None
    classifier_hidden_size: int = 128
    pair_head: str = "interaction"
    initializer_range: float = 0.02
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Reject unknown fields, which transformers would store, and check all values."""
        fields = {field.name for field in dataclasses.fields(self)}
        for name in kwargs:
            if not name.startswith("_"):
                check_name(name, fields | TRANSFORMERS_FIELDS, "field of LongspanConfig")
        super().__post_init__(**kwargs)
        self.check()

    @property
    def head_dim(self) -> int:
        """Width D of one head, `attention_head_size` or M / H."""
        return self.attention_head_size or self.hidden_size // self.num_attention_heads

    @property
    def all_head_size(self) -> int:
        """Total width of the heads; `hidden_size` unless `attention_head_size` is given."""
        return self.head_dim * self.num_attention_heads

    @property
    def is_regression(self) -> bool:
        """True if the head predicts numbers: `problem_type`, or one label without a type.

        The rule is that of transformers' models.
        """
        if self.problem_type is None:
            return self.num_labels == 1
        return self.problem_type == "regression"

    @property
    def position_encoding(self) -> str:
        """Position encoding that the model adds: `position` with "auto" resolved."""
        if self.position != "auto":
            return self.position
        return "none" if self._traits.carries_positions else "learned"

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
        if length > self.max_position_embeddings:
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
        for field, names in CHOICES.items():
            check_name(getattr(self, field), names, field)
        check_name(self.attention, MECHANISMS, "mechanism")
        for option in self.attention_options:
            check_name(option, options_of(self.attention), f"option of {self.attention!r}")
        check_name(
            self.attention_backend, backends(self.attention), f"backend of {self.attention!r}"
        )
        if reasons := self._refusals():
            raise OptionError(f"LongspanConfig: {'; '.join(reasons)}")

    def _refusals(self) -> list[str]:
        sizes = {name: getattr(self, name) for name in SIZES}
        given = {name: size for name, size in sizes.items() if size is not None}
        errors = (range_error(name, size, *SIZES[name]) for name, size in given.items())
        if reasons := [error for error in errors if error]:
            return reasons
        if self.attention_head_size is None and self.hidden_size % self.num_attention_heads:
            reasons.append(
                f"hidden_size={self.hidden_size} must be a multiple of "
                f"num_attention_heads={self.num_attention_heads}, or set attention_head_size"
            )
        if self.position_encoding == "rotary" and self.head_dim % 2:
            reasons.append(
                f"rotary positions require an even head width, got {self.head_dim}; "
                "change num_attention_heads or position"
            )
        reasons += self._image_refusals()
        if self.num_hidden_layers == 0 and self.pooling == "cls":
            reasons.append(
                "num_hidden_layers=0 with pooling='cls' reads no input: the summary token attends "
                "to nothing; use pooling='mean' or 'first'"
            )
        if self.max_global_tokens is not None and not self._traits.global_tokens:
            reasons.append(f"max_global_tokens: {self.attention} does not support global tokens")
        for field in DROPOUTS:
            if not 0 <= getattr(self, field) < 1:
                reasons.append(f"{field} must be in [0, 1), got {getattr(self, field)}")
        for field in ("initializer_range", "layer_norm_eps"):
            if error := range_error(field, getattr(self, field), 0, LARGEST_RATE):
                reasons.append(error)
        if self.problem_type not in PROBLEM_TYPES:
            reasons.append(
                "problem_type must be 'single_label_classification', 'regression' or None, "
                f"got {self.problem_type!r}; there is no head for several labels"
            )
        return reasons

    @property
    def _traits(self) -> Traits:
        return MECHANISMS[self.attention].traits

    def _image_refusals(self) -> list[str]:
        """Return the reasons why the inputs are no images for the fields that require them."""
        reasons, pixels = [], self.max_position_embeddings
        if self.position == "relative_2d" and not self._traits.bias:
            able = [name for name, cls in MECHANISMS.items() if cls.traits.bias]
            reasons.append(
                f"position='relative_2d' adds numbers to scores, which {self.attention} does not "
                f"support; use one of {', '.join(able)}, or another position"
            )
        chosen = [
            f"{field}={value!r}"
            for field, value in (("position", "relative_2d"), ("stem", "convolution"))
            if getattr(self, field) == value
        ]
        if chosen and image_side(pixels) is None:
            reasons.append(
                f"{' and '.join(chosen)}: requires a square image, got {pixels:,} positions "
                "(max_position_embeddings)"
            )
        return reasons
