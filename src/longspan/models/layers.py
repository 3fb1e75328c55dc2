"""Transformer layer: attention and a feed-forward network, with residual connections.

Reversible ones (Kitaev et al. 2020, https://arxiv.org/abs/2001.04451) have two streams:

    y1 = x1 + attention(norm(x2)),  y2 = x2 + feed_forward(norm(y1))

The streams x1 and x2 lie beside each other in states of width 2 M; both begin as the embeddings
(section 3). The inputs of a layer follow from its outputs, but the backward pass here keeps them,
like that of other layers; activation checkpointing saves their memory.
"""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from longspan.models.attention_layer import (
    PLAIN,
    CrossStates,
    LayerContext,
    LayerOutput,
    SelfAttention,
)
from longspan.models.config import LongspanConfig
from longspan.models.cross_attention import CrossAttention
from longspan.models.layer_cache import LayerCache
from longspan.models.modules import Dropout, make_norm
from longspan.shapes import Float


def group_of_layers(config: LongspanConfig) -> list[int]:
    """Return the index of the weights of each layer; those of a group share theirs."""
    layers, groups = config.num_hidden_layers, count_own_layers(config)
    # In floating-point numbers as in transformers, which differ from fractions for some sizes.
    return [int(layer / (layers / groups)) for layer in range(layers)]


def count_own_layers(config: LongspanConfig) -> int:
    """Return the number of layers with weights of their own."""
    groups = config.num_hidden_groups
    return config.num_hidden_layers if groups is None else groups


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
    """Transformer layer with residual connections and pre- or post-normalization.

    A decoder that reads an encoder has cross-attention between self-attention and the feed-forward
    network.
    """

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config, layer)
        is_normal = layer == 0 and config.embedding_norm and not config.first_attention_norm
        self.attention_norm = nn.Identity() if is_normal else make_norm(config)
        crosses = config.cross_attention is not None
        self.cross_attention = CrossAttention(config, layer) if crosses else None
        self.cross_attention_norm = make_norm(config) if crosses else nn.Identity()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        context: LayerContext = PLAIN,
        cache: LayerCache | None = None,
        source: Float[Tensor, "R S M"] | CrossStates | None = None,
    ) -> LayerOutput:
        """Update the state of every position.

        Args:
            x: states.
            context: masks and positions of the call.
            cache: positions before them.
            source: states of the encoder, or what an earlier call kept of them.
        """
        attended = self.attention(self._norm_before(self.attention_norm, x), context, cache)
        x = self._add(self.attention_norm, x, attended.states)
        if self.cross_attention is not None and source is not None:
            query = self._norm_before(self.cross_attention_norm, x)
            crossed = self.cross_attention(query, source, context)
            x = self._add(self.cross_attention_norm, x, crossed.states)
            attended = attended._replace(cross=crossed.cross, cross_weights=crossed.cross_weights)
        states = self.feed_forward(self._norm_before(self.feed_forward_norm, x))
        return attended._replace(states=self._add(self.feed_forward_norm, x, states))

    def _norm_before(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return the input of a block."""
        return norm(x) if self.pre_norm else x

    def _add(self, norm: nn.Module, x: Tensor, states: Tensor) -> Tensor:
        """Add the output of a block to its input."""
        x = x + self.dropout(states)
        return x if self.pre_norm else norm(x)


class ReversibleLayer(Layer):
    """Transformer layer with two streams of states and pre-normalization."""

    def forward(
        self,
        x: Float[Tensor, "B T W"],
        context: LayerContext = PLAIN,
        cache: LayerCache | None = None,
        source: Float[Tensor, "R S M"] | CrossStates | None = None,
    ) -> LayerOutput:
        """Update both streams, see `Layer.forward`; there is no cross-attention."""
        first, second = x.chunk(2, -1)
        attended = self.attention(self.attention_norm(second), context, cache)
        first = first + self.dropout(attended.states)
        second = second + self.dropout(self.feed_forward(self.feed_forward_norm(first)))
        return attended._replace(states=torch.cat((first, second), -1))


def make_layer(config: LongspanConfig, layer: int) -> Layer:
    """Return a layer with the residual connections of the configuration."""
    return (ReversibleLayer if config.residual == "reversible" else Layer)(config, layer)


def start_streams(config: LongspanConfig, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T W"]:
    """Return the input of the first layer: the embeddings, or two copies of them."""
    return torch.cat((x, x), -1) if config.residual == "reversible" else x
