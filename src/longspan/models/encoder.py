"""Encoder: token ids or continuous inputs to token states and a pooled state."""

import math
from typing import cast

import torch
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from longspan.attention import MECHANISMS
from longspan.attention.masking import apply_mask
from longspan.errors import InputError, OptionError
from longspan.models.config import LongspanConfig
from longspan.models.context_parallel import ContextParallel
from longspan.models.dropout import Dropout
from longspan.models.layers import INITIALIZED, Layer, SelfAttention, build_mechanism
from longspan.models.positions import rotary_table, sinusoidal_table
from longspan.models.stem import ConvolutionStem
from longspan.shapes import Bool, Float, Int

TokenIds = Int[Tensor, "B T"]
TokenMask = Bool[Tensor, "B T"] | Int[Tensor, "B T"]


class Embeddings(nn.Module):
    """Embeddings of the inputs, their positions, and the summary token of `pooling="cls"`."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        width = config.hidden_size
        self.config = config
        features = config.input_features
        self.words = nn.Embedding(config.vocab_size, width) if features is None else None
        self.values = None if features is None else nn.Linear(features, width)
        self.stem = ConvolutionStem(width) if config.stem == "convolution" else None
        self.summary = nn.Embedding(1, width) if config.pooling == "cls" else None
        learned = config.position_encoding == "learned"
        self.positions = nn.Embedding(config.max_sequence_length, width) if learned else None
        post = config.norm == "post"
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if post else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        inputs: Int[Tensor, "B T"] | Float[Tensor, "B T F"],
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B N M"]:
        """Embed the inputs; N is T, or T + 1 with a summary token."""
        x = self._embed_tokens(inputs) if self.values is None else self.values(inputs)
        if self.stem is not None:
            # A convolution reads its neighbors, so padding must hold no content.
            x = self.stem(x if mask is None else apply_mask(x, mask[..., None]))
        if self.summary is not None:
            x = torch.cat((self.summary.weight.expand(len(x), 1, -1), x), dim=1)
        return self.dropout(self.norm(self._add_positions(x)))

    def _embed_tokens(self, input_ids: Tensor) -> Tensor:
        try:
            return cast(nn.Embedding, self.words)(input_ids)
        except IndexError as error:
            low, high = int(input_ids.min()), int(input_ids.max())
            raise InputError(
                f"token ids must be in 0..{self.config.vocab_size - 1}, got {low}..{high}; "
                "check the tokenizer, or build the model with a larger vocab_size"
            ) from error

    def _add_positions(self, x: Tensor) -> Tensor:
        if self.positions is not None:
            return x + self.positions.weight[: x.shape[1]]
        if self.config.position_encoding != "sinusoidal":
            return x
        table = sinusoidal_table(*x.shape[1:], device=x.device, dtype=x.dtype)
        # Scaled to the root mean square of the initial word embeddings, which are much smaller.
        return x + math.sqrt(2) * self.config.initializer_range * table


class LongspanPreTrainedModel(PreTrainedModel):
    """Base of all models: configuration, initialization, activation checkpointing."""

    config_class = LongspanConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Layer"]

    def __init__(self, config: LongspanConfig):
        config.check()
        super().__init__(config)

    def initialize_weights(self) -> None:
        """Initialize all weights except those of the mechanisms, which initialize themselves.

        Linear maps and embeddings are normal with standard deviation `initializer_range`, biases
        are zero, norms the identity. A mechanism with projections of its own (Longformer's global
        ones) starts with copies of the layer's.
        """
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.initialize_mechanism()
            if isinstance(module, LongspanModel):
                module.initialize_shared_parameter()


class LongspanModel(LongspanPreTrainedModel):
    """Encoder without a head."""

    context_parallel: ContextParallel | None = None
    shared_parameter: nn.Parameter | None

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        # The model owns the parameter, so that layers can be copied and sharded one by one.
        released = [layer.attention.mechanism.release_shared() for layer in layers]
        self.register_parameter("shared_parameter", released[0] if released else None)
        self.layers = nn.ModuleList(layers)
        pre_norm = config.norm == "pre"
        eps = config.layer_norm_eps
        self.norm = nn.LayerNorm(config.hidden_size, eps=eps) if pre_norm else nn.Identity()
        self.post_init()

    def initialize_shared_parameter(self) -> None:
        """Reset the parameter that the layers share if the loaded checkpoint does not contain it.

        transformers replaces such tensors with uninitialized memory.
        """
        shared = self.shared_parameter
        if shared is None or hasattr(shared, INITIALIZED):
            return
        fresh = build_mechanism(cast(LongspanConfig, self.config), layer=0).release_shared()
        with torch.no_grad():
            shared.copy_(cast(nn.Parameter, fresh))
        setattr(shared, INITIALIZED, True)

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings, or the linear map of continuous inputs."""
        return cast(nn.Module, self.embeddings.words or self.embeddings.values)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self.embeddings.words = cast(nn.Embedding, value)

    def enable_context_parallel(self, group: distributed.ProcessGroup | None) -> None:
        """Shard the positions of every sequence over the processes of a group.

        All processes must call `forward` with the same inputs; all receive the same outputs.

        Args:
            group: processes to shard over; None takes all of them.

        Raises:
            OptionError: the mechanism or the position encoding does not support sharded queries.
        """
        if self.config.position == "relative_2d":
            raise OptionError(
                "position='relative_2d' does not support context parallelism; use --parallel ddp "
                "or fsdp"
            )
        layers = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for layer in layers:
            if reasons := layer.mechanism.split_refusals():
                name = self.config.attention
                raise OptionError(
                    f"{name} does not support context parallelism: {'; '.join(reasons)}; "
                    "use --parallel ddp or fsdp"
                )
        self.context_parallel = ContextParallel(group)
        for layer in layers:
            layer.context_parallel = self.context_parallel

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode.

        Args:
            input_ids: token ids.
            attention_mask: True or 1 at real tokens; None if all are real. The content of padded
                positions does not affect the outputs.
            global_attention_mask: True or 1 at global tokens, which attend to all tokens and are
                attended by all, for mechanisms that support them.
            input_values: continuous inputs, in place of `input_ids`, of a model with
                `input_features`.

        Returns:
            `last_hidden_state` (B, T, M), zero at padded positions, and `pooler_output` (B, M), as
            the configuration's `pooling` defines it. A row without real tokens gives finite
            outputs, and zero gradients for its tokens.

        Raises:
            InputError: the input exceeds `max_position_embeddings`, a token id is outside the
                vocabulary, a mask is malformed, the inputs are of the wrong kind, or the mechanism
                refuses them.
        """
        inputs = self._select_inputs(input_ids, input_values)
        length = self.config.sequence_length(inputs.shape[1])
        real = to_boolean_mask("attention_mask", attention_mask, inputs)
        global_tokens = to_boolean_mask("global_attention_mask", global_attention_mask, inputs)
        x = self.embeddings(inputs, real)
        key_mask, global_mask, rotary = real, global_tokens, None
        if length > inputs.shape[1]:
            key_mask = None if real is None else _prepend(real, True)
            global_mask = self._prepend_global_summary(global_tokens, inputs)
        if self.config.position_encoding == "rotary":
            rotary = rotary_table(length, self.config.head_dim, device=x.device, dtype=x.dtype)
        x = self.norm(self._run_layers(x, key_mask, global_mask, rotary))
        if key_mask is not None:
            x = apply_mask(x, key_mask[..., None])
        tokens = x[:, length - inputs.shape[1] :]
        return BaseModelOutputWithPooling(
            last_hidden_state=tokens, pooler_output=self._pool(x, key_mask)
        )

    def _run_layers(
        self, x: Tensor, key_mask: Tensor | None, global_mask: Tensor | None, rotary: Tensor | None
    ) -> Tensor:
        """Apply all layers; under context parallelism, to this process's shard."""
        parallel, length = self.context_parallel, x.shape[1]
        if parallel is not None:
            if key_mask is None:
                key_mask = x.new_ones(x.shape[:2], dtype=torch.bool)
            x, rotary = parallel.local_shard(x), parallel.local_shard(rotary)
        for layer in self.layers:
            x = layer(x, key_mask, global_mask, rotary, self.shared_parameter)
        return x if parallel is None else parallel.gather(x, 1)[:, :length]

    def _select_inputs(self, input_ids: Tensor | None, input_values: Tensor | None) -> Tensor:
        """Return the one kind of input that this model takes."""
        features = self.config.input_features
        selected = input_ids if features is None else input_values
        name = "input_ids" if features is None else "input_values"
        if selected is None or (input_ids is not None and input_values is not None):
            raise InputError(f"this model takes {name} only (input_features={features})")
        if features is not None and (selected.ndim != 3 or selected.shape[2] != features):
            raise InputError(
                f"input_values must have shape (B, T, {features}), got {tuple(selected.shape)}"
            )
        return selected

    def _prepend_global_summary(self, mask: Tensor | None, inputs: Tensor) -> Tensor | None:
        """Extend the global mask by the summary token, global if the mechanism supports that."""
        if not MECHANISMS[self.config.attention].traits.global_tokens:
            # The mechanism refuses a caller's mask with its own message.
            return None if mask is None else _prepend(mask, False)
        if mask is None:
            mask = inputs.new_zeros(inputs.shape[:2], dtype=torch.bool)
        return _prepend(mask, True)

    def _pool(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.config.pooling != "mean":
            return x[:, 0]
        if key_mask is None:
            return x.mean(1)
        # The states of padded positions are zero already.
        return x.sum(1) / key_mask.sum(1, keepdim=True).clamp(min=1)


def to_boolean_mask(name: str, mask: Tensor | None, inputs: Tensor) -> Tensor | None:
    """Convert a caller's mask to booleans (B, T).

    Raises:
        InputError: the mask is neither boolean nor integer, or its shape is not (B, T).
    """
    if mask is None:
        return None
    if mask.is_floating_point() or mask.is_complex():
        raise InputError(f"{name} must be boolean or 0/1 integers (1 = real), got {mask.dtype}")
    if mask.shape != inputs.shape[:2]:
        raise InputError(
            f"{name} must have the shape of the inputs, {tuple(inputs.shape[:2])}, "
            f"got {tuple(mask.shape)}"
        )
    return mask.bool()


def _prepend(mask: Tensor, value: bool) -> Tensor:
    return torch.cat((torch.full_like(mask[:, :1], value), mask), dim=1)
