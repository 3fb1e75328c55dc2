"""Transformer layer: self-attention with any mechanism, and a feed-forward network."""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from longspan.attention import Attention, LayerInput, build
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.context_parallel import ContextParallel
from longspan.models.dropout import Dropout
from longspan.models.positions import apply_rotary
from longspan.models.relative_2d import RelativePositions2D, image_side
from longspan.shapes import Bool, Float

# transformers skips tensors with this attribute when it initializes weights.
INITIALIZED = "_is_hf_initialized"


def build_mechanism(config: LongspanConfig, layer: int) -> Attention:
    """Build the mechanism of one layer with the initial values of its own constructor.

    The mechanism is built on CPU in float32 and then converted: transformers loads models on the
    meta device in the checkpoint's dtype, where seeded random features and index tables cannot be
    computed.
    """
    with torch.device("cpu"), _default_dtype(torch.float32):
        attention = build(
            config.attention,
            backend=config.attention_backend,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_length=config.max_sequence_length,
            layer=layer,
            max_global_tokens=config.max_tokens_of_global_mask,
            **config.attention_options,
        )
    device = torch.get_default_device()
    attention.to(dtype=torch.get_default_dtype())
    return attention if device.type == "meta" else attention.to(device=device)


class SelfAttention(nn.Module):
    """Self-attention: input projections, relative positions, mechanism, output projection."""

    context_parallel: ContextParallel | None = None

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        width, inner = config.hidden_size, config.all_head_size
        self.config = config
        self.layer = layer
        self.mechanism = build_mechanism(config, layer)
        reads = self.mechanism.traits.inputs
        self.query = nn.Linear(width, inner) if "q" in reads else None
        self.key = nn.Linear(width, inner) if "k" in reads else None
        self.value = nn.Linear(width, inner)
        self.positions = _relative_positions(config, self.mechanism)
        self.dropout = Dropout(config.attention_dropout)
        self.output = nn.Linear(inner, width)
        # On the meta device transformers loads a checkpoint and reports the missing tensors itself.
        self.is_new = torch.get_default_device().type != "meta"
        if self.is_new:
            self._mark_initialized()

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        mask: Bool[Tensor, "B S"] | None = None,
        global_mask: Bool[Tensor, "B S"] | None = None,
        rotary: Float[Tensor, "2 T half"] | None = None,
        shared: Tensor | None = None,
    ) -> Float[Tensor, "B T M"]:
        """Attend among the positions of `x`; see `Attention.forward` for the masks.

        Under context parallelism `x` and `rotary` hold this process's shard, the masks the whole
        sequence.
        """
        v = self._split_heads(self.value(x))
        # The mechanism ignores the tensors for which the layer has no projection.
        q = v if self.query is None else self._project(self.query, x, rotary)
        k = q if self.key is None else self._project(self.key, x, rotary)
        key_mask = query_mask = None
        if self.context_parallel is not None and mask is not None:
            k, v = (self.context_parallel.gather(y, 2)[:, :, : mask.shape[1]] for y in (k, v))
            mask, key_mask, query_mask = None, mask, self.context_parallel.local_shard(mask)
        mixed = self.mechanism(
            q,
            k,
            v,
            mask,
            key_mask=key_mask,
            query_mask=query_mask,
            global_mask=global_mask,
            bias=None if self.positions is None else self.positions(x.shape[1]).to(q.dtype),
            layer_input=self._layer_input(x),
            shared=shared,
        )
        return self.output(self.dropout(mixed.transpose(1, 2).flatten(2)))

    def _project(self, projection: nn.Linear, x: Tensor, rotary: Tensor | None) -> Tensor:
        heads = self._split_heads(projection(x))
        return heads if rotary is None else apply_rotary(heads, rotary)

    def _layer_input(self, x: Tensor) -> LayerInput | None:
        """Return the layer's input and projections for mechanisms that need them."""
        if not self.mechanism.traits.needs_layer_input or self.query is None or self.key is None:
            return None
        query, key = self.query.weight, self.key.weight
        return LayerInput(
            states=x,
            query=lambda p: self._split_heads(F.linear(p.to(query.dtype), query)),
            key=lambda p: self._split_heads(F.linear(p.to(key.dtype), key)),
        )

    def initialize_mechanism(self) -> None:
        """Complete the mechanism's initial state, after the projections of the layer have theirs.

        Tensors that a loaded checkpoint does not contain (those of another mechanism, and
        non-persistent buffers) are uninitialized memory, which transformers left; they are reset.
        Projections of a new mechanism start as copies of the layer's.
        """
        tensors = _tensors(self.mechanism)
        missing = [name for name in tensors if not hasattr(tensors[name], INITIALIZED)]
        if missing:
            fresh = build_mechanism(self.config, self.layer)
            self._copy_projections(fresh)
            with torch.no_grad():
                for name in missing:
                    tensors[name].copy_(_tensors(fresh)[name])
            self._mark_initialized()
        elif self.is_new:
            self._copy_projections(self.mechanism)
        self.is_new = False

    def _copy_projections(self, mechanism: Attention) -> None:
        if self.query is not None and self.key is not None:
            mechanism.copy_projections(self.query, self.key, self.value)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Reshape (..., T, M) to (..., H, T, D)."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(-3, -2)

    def _mark_initialized(self) -> None:
        for tensor in _tensors(self.mechanism).values():
            setattr(tensor, INITIALIZED, True)


class FeedForward(nn.Module):
    """Feed-forward network: two linear maps with an activation between them."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        self.input = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        """Map every position independently."""
        return self.output(self.activation(self.input(x)))


class Layer(GradientCheckpointingLayer):
    """Transformer layer with residual connections and pre- or post-normalization."""

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config, layer)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        mask: Bool[Tensor, "B S"] | None = None,
        global_mask: Bool[Tensor, "B S"] | None = None,
        rotary: Float[Tensor, "2 T half"] | None = None,
        shared: Tensor | None = None,
    ) -> Float[Tensor, "B T M"]:
        """Update the state of every position; `shared` is a parameter that all layers share."""
        context = (mask, global_mask, rotary, shared)
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), *context))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, *context)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


def _relative_positions(config: LongspanConfig, mechanism: Attention) -> RelativePositions2D | None:
    side = image_side(config.max_position_embeddings)
    if config.position != "relative_2d" or side is None:
        return None
    if not mechanism.traits.bias:
        raise OptionError(
            f"position='relative_2d' adds numbers to scores, which {config.attention} does not "
            "support with these options; change the options or the position"
        )
    return RelativePositions2D(config.num_attention_heads, side)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
