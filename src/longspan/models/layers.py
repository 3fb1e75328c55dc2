"""One Transformer layer around any mechanism."""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from longspan.attention import Attention, LayerInput, build
from longspan.models.config import LongspanConfig
from longspan.models.dropout import Dropout
from longspan.models.positions import rotate
from longspan.models.split import Split
from longspan.shapes import Bool, Float

# The flag by which transformers knows what not to initialise a second time.
INITIALISED = "_is_hf_initialized"


def mechanism(config: LongspanConfig, layer: int) -> Attention:
    """Build the mechanism of one layer, with the values that its own constructor gives it.

    It is built on the CPU in float32 whatever is current: transformers loads models on the meta
    device, in the checkpoint's dtype, where seeded random features and index tables cannot be
    computed.
    """
    with torch.device("cpu"), _default_dtype(torch.float32):
        attention = build(
            config.attention,
            backend=config.attention_backend,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_length=config.max_states,
            layer=layer,
            **config.attention_options,
        )
    device = torch.get_default_device()
    attention.to(dtype=torch.get_default_dtype())
    return attention if device.type == "meta" else attention.to(device=device)


class SelfAttention(nn.Module):
    """Project, turn (rotary positions), let the mechanism mix, project back."""

    split: Split | None = None  # over which processes the sequence is spread

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        width, inner = config.hidden_size, config.heads_width
        self.config = config
        self.layer = layer
        self.mechanism = mechanism(config, layer)
        reads = self.mechanism.traits.inputs
        self.query = nn.Linear(width, inner) if "q" in reads else None
        self.key = nn.Linear(width, inner) if "k" in reads else None
        self.value = nn.Linear(width, inner)
        self.dropout = Dropout(config.attention_dropout)
        self.output = nn.Linear(inner, width)
        # On the meta device a checkpoint is about to be loaded: what it lacks is to be reported.
        if torch.get_default_device().type != "meta":
            self._mark_initialised()

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        key_mask: Bool[Tensor, "B T"] | None = None,
        global_mask: Bool[Tensor, "B T"] | None = None,
        turns: Float[Tensor, "2 T half"] | None = None,
    ) -> Float[Tensor, "B T M"]:
        """Attend among the positions of `x`; see `Attention.forward` for the masks.

        Of a split sequence `x` and `turns` are one stretch, the masks are whole.
        """
        v = self._heads(self.value(x))
        # What the mechanism does not read is given the tensor before it, unread.
        q = v if self.query is None else self._turned(self.query(x), turns)
        k = q if self.key is None else self._turned(self.key(x), turns)
        queries = None
        if self.split is not None and key_mask is not None:
            k, v = (self.split.whole(y, 2)[:, :, : key_mask.shape[1]] for y in (k, v))
            queries = self.split.own(key_mask)
        mixed = self.mechanism(
            q,
            k,
            v,
            key_mask,
            query_mask=queries,
            global_mask=global_mask,
            layer_input=self._layer_input(x),
        )
        return self.output(self.dropout(mixed.transpose(1, 2).flatten(2)))

    def _turned(self, x: Tensor, turns: Tensor | None) -> Tensor:
        x = self._heads(x)
        return x if turns is None else rotate(x, turns)

    def _layer_input(self, x: Tensor) -> LayerInput | None:
        """The layer's input and projections, for the mechanisms that read them."""
        if not self.mechanism.traits.needs_layer_input or self.query is None or self.key is None:
            return None
        query, key = self.query.weight, self.key.weight
        return LayerInput(
            states=x,
            query=lambda p: self._heads(functional.linear(p, query)),
            key=lambda p: self._heads(functional.linear(p, key)),
        )

    def restore_mechanism(self) -> None:
        """Give the mechanism's tensors that a checkpoint did not hold their initial values.

        When transformers loads a checkpoint it replaces tensors that are not in it (those of
        another mechanism, and buffers that are never saved) by uninitialised memory.
        """
        tensors = _tensors(self.mechanism)
        lost = [name for name in tensors if not hasattr(tensors[name], INITIALISED)]
        if not lost:
            return
        fresh = _tensors(mechanism(self.config, self.layer))
        with torch.no_grad():
            for name in lost:
                tensors[name].copy_(fresh[name])
        self._mark_initialised()

    def _heads(self, x: Tensor) -> Tensor:
        """(..., T, M) to (..., H, T, D)."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(-3, -2)

    def _mark_initialised(self) -> None:
        for tensor in _tensors(self.mechanism).values():
            setattr(tensor, INITIALISED, True)


class FeedForward(nn.Module):
    """Two linear maps with an activation between them."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        self.input = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        """Map every position alone."""
        return self.output(self.activation(self.input(x)))


class Layer(GradientCheckpointingLayer):
    """Attention, then feed-forward, each around a residual; normalised before or after."""

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        self.pre = config.norm == "pre"
        self.attention = SelfAttention(config, layer)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        key_mask: Bool[Tensor, "B T"] | None = None,
        global_mask: Bool[Tensor, "B T"] | None = None,
        turns: Float[Tensor, "2 T half"] | None = None,
    ) -> Float[Tensor, "B T M"]:
        """Update the state of every position."""
        masks = (key_mask, global_mask, turns)
        if self.pre:
            x = x + self.dropout(self.attention(self.attention_norm(x), *masks))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, *masks)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


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
