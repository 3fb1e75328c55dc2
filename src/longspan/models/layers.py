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
from longspan.shapes import Float


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
