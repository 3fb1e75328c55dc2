"""Transformer layer: self-attention and a feed-forward network, with residual connections."""

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from longspan.models.attention_layer import (
    PLAIN,
    LayerCache,
    LayerContext,
    LayerOutput,
    SelfAttention,
)
from longspan.models.config import LongspanConfig
from longspan.models.dropout import Dropout
from longspan.models.norms import make_norm
from longspan.shapes import Float


class FeedForward(nn.Module):
    """Feed-forward network: two linear maps with an activation, and a gate, between them."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.linear_bias
        self.input = nn.Linear(width, inner, bias=bias)
        gated = config.feed_forward == "gated"
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        """Map every position independently."""
        inner = self.activation(self.input(x))
        return self.output(inner if self.gate is None else inner * self.gate(x))


class Layer(GradientCheckpointingLayer):
    """Transformer layer with residual connections and pre- or post-normalization."""

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config, layer)
        is_normal = layer == 0 and config.embedding_norm
        self.attention_norm = nn.Identity() if is_normal else make_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        context: LayerContext = PLAIN,
        cache: LayerCache | None = None,
    ) -> LayerOutput:
        """Update the state of every position; the cache holds the positions before them."""
        attended = self.attention(self.attention_norm(x) if self.pre_norm else x, context, cache)
        x = x + self.dropout(attended.states)
        if self.pre_norm:
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self.attention_norm(x)
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return attended._replace(states=x)
