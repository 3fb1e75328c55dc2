"""The configuration of the one Transformer family, saved as `config.json` beside its weights."""

import dataclasses
from typing import Any, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from longspan.attention import MECHANISMS, backends, options_of
from longspan.errors import InputError, OptionError, check_name

CHOICES: dict[str, tuple[str, ...]] = {
    "position": ("learned", "sinusoidal", "rotary", "none"),
    "norm": ("pre", "post"),
    "pooling": ("mean", "cls", "first"),
    "pair_head": ("interaction", "concatenate"),
    "hidden_act": tuple(ACT2FN),
}
POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "classifier_hidden_size",
)
DROPOUTS = ("hidden_dropout_prob", "attention_dropout")
# What transformers and its tools put in a configuration beside the declared fields.
FOREIGN = {
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


# `strict` checks the types of fields itself, and transformers replaces the constructor of the
# dataclass by one that a second checker cannot read.
@no_type_check
@strict
class LongspanConfig(PreTrainedConfig):
    """Sizes and choices of a model; the defaults are a small encoder for classification.

    Attributes:
        vocab_size: token ids.
        input_features: numbers at each position of continuous inputs, which a linear map takes in
            place of the table of words; None: inputs are token ids.
        hidden_size: model width M, a multiple of the number of heads unless their width is given.
        num_hidden_layers: layers.
        num_attention_heads: heads H per layer.
        attention_head_size: width D of a head; None: M / H.
        intermediate_size: width of the feed-forward layer.
        hidden_act: its activation, a name that transformers knows.
        max_position_embeddings: most tokens of an input; `pooling="cls"` has room for one more.
        position: "learned", "sinusoidal", "rotary" or "none"; see `longspan.models.positions`.
        norm: "pre" (normalise the input of each block, and the output once) or "post" (normalise
            the sum after each block, and the embeddings; BERT).
        pooling: what an input is summed up by: "mean" over its real tokens, "cls" (a learned
            vector put before the tokens, global where the mechanism has global tokens) or
            "first" (the state of the first token; BERT).
        hidden_dropout_prob: dropout of the embeddings and of each block's output.
        attention_dropout: dropout of the mechanism's output, before the output projection. It
            is not dropout of attention weights: half of the mechanisms never form them, and the
            mechanisms are to be compared under one regularisation.
        layer_norm_eps: epsilon of every layer normalisation.
        attention: name of the mechanism.
        attention_options: its options; those left out take the mechanism's defaults.
        attention_backend: "auto", or the body that must run.
        classifier_hidden_size: width of the hidden layer of the classification heads.
        pair_head: what a pair is classified by: "interaction" (a, b, a * b, a - b) or
            "concatenate" (a, b).
        initializer_range: standard deviation of the initial weights.
        pad_token_id: id at padded positions, for tokenizers; what is padding is said by the mask.
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
    position: str = "learned"
    norm: str = "pre"
    pooling: str = "mean"
    hidden_dropout_prob: float | int = 0.1
    attention_dropout: float | int = 0.1
    layer_norm_eps: float = 1e-5
    attention: str = "full"
    attention_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    attention_backend: str = "auto"
    classifier_hidden_size: int = 128
    pair_head: str = "interaction"
    initializer_range: float = 0.02
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse unknown fields (transformers alone would keep them), then check the values."""
        fields = {field.name for field in dataclasses.fields(self)}
        for name in kwargs:
            if not name.startswith("_"):
                check_name(name, fields | FOREIGN, "field of LongspanConfig")
        super().__post_init__(**kwargs)
        self.check()

    @property
    def head_dim(self) -> int:
        """Width D of one head."""
        return self.attention_head_size or self.hidden_size // self.num_attention_heads

    @property
    def heads_width(self) -> int:
        """Width of all heads together: the model's, unless `attention_head_size` says otherwise."""
        return self.head_dim * self.num_attention_heads

    @property
    def max_states(self) -> int:
        """Most positions inside the encoder: the tokens, and the summary that "cls" prepends."""
        return self.states(self.max_position_embeddings)

    def states(self, length: int) -> int:
        """Positions inside the encoder for an input of `length` tokens.

        Raises:
            InputError: the input is longer than the model.
        """
        if length > self.max_position_embeddings:
            raise InputError(
                f"{length} tokens, but the model takes max_position_embeddings="
                f"{self.max_position_embeddings}; truncate the input or build a longer model"
            )
        return length + (self.pooling == "cls")

    def check(self) -> None:
        """Check all values; models do it again, for fields may be assigned in between.

        Raises:
            OptionError: a value cannot be used; the message lists every reason.
            UnknownNameError: no such choice, mechanism, option or backend (with near names).
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
        reasons = [
            f"{field} must be at least 1, got {getattr(self, field)}"
            for field in POSITIVE
            if getattr(self, field) < 1
        ]
        reasons += [
            f"{field} must be at least 1 or none, got {getattr(self, field)}"
            for field in ("input_features", "attention_head_size")
            if getattr(self, field) is not None and getattr(self, field) < 1
        ]
        if reasons:
            return reasons
        if self.attention_head_size is None and self.hidden_size % self.num_attention_heads:
            reasons.append(
                f"hidden_size={self.hidden_size} must be a multiple of "
                f"num_attention_heads={self.num_attention_heads}, or give attention_head_size"
            )
        if self.position == "rotary" and self.head_dim % 2:
            reasons.append(
                f"rotary positions need an even width of heads, got {self.head_dim}; "
                "change num_attention_heads or position"
            )
        for field in DROPOUTS:
            if not 0 <= getattr(self, field) < 1:
                reasons.append(f"{field} must be in [0, 1), got {getattr(self, field)}")
        if self.problem_type not in (None, "single_label_classification"):
            reasons.append(
                f"problem_type {self.problem_type!r} has no head; "
                "the heads classify, one label per example"
            )
        return reasons
