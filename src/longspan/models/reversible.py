"""Reversible residual connections (Kitaev et al. 2020, https://arxiv.org/abs/2001.04451).

    y1 = x1 + attention(norm(x2)),  y2 = x2 + feed_forward(norm(y1))

The streams x1 and x2 lie beside each other in states of width 2 M; both begin as the embeddings
(section 3). The inputs of a layer follow from its outputs, but the backward pass here keeps them,
like that of other layers; activation checkpointing saves their memory.
"""

import torch
from torch import Tensor

from longspan.models.attention_layer import (
    PLAIN,
    CrossStates,
    LayerCache,
    LayerContext,
    LayerOutput,
)
from longspan.models.config import LongspanConfig
from longspan.models.layers import Layer
from longspan.shapes import Float


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
