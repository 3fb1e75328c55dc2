"""Cross-attention of a decoder's layer: its tokens attend to the encoder's states."""

from typing import cast

from torch import Tensor, nn

from longspan.attention import Attention, build
from longspan.attention.initial_values import initial_values, to_default
from longspan.attention.weights import compute_weights
from longspan.errors import InputError, OptionError
from longspan.models.attention_layer import (
    CrossStates,
    LayerContext,
    LayerOutput,
    ProjectedAttention,
)
from longspan.models.cache import LongspanCache
from longspan.models.config import LongspanConfig
from longspan.models.inputs import to_boolean_mask
from longspan.shapes import Float


def build_cross_mechanism(config: LongspanConfig, layer: int) -> Attention:
    """Build the mechanism of cross-attention of one layer, which is not causal.

    Raises:
        OptionError: it has an auxiliary loss, which is that of self-attention.
    """
    with initial_values():
        attention = build(
            config.cross_attention or "",
            backend=config.attention_backend,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_length=config.max_encoder_positions or config.max_position_embeddings,
            layer=layer,
            **config.cross_attention_options,
        )
    if attention.has_auxiliary_loss:
        raise OptionError(
            f"cross-attention has no auxiliary loss, which {attention.name} has with "
            f"{config.cross_attention_options}; leave out the options that ask for it"
        )
    return to_default(attention)


class CrossAttention(ProjectedAttention):
    """Attention from every token of the decoder to all real tokens of the encoder."""

    def build_mechanism(self) -> Attention:
        """Build the mechanism of cross-attention, which is not causal."""
        return build_cross_mechanism(self.config, self.layer)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        source: Float[Tensor, "R S M"] | CrossStates,
        context: LayerContext,
    ) -> LayerOutput:
        """Attend to the encoder's states; one row of them serves B / R consecutive rows.

        Args:
            x: states of the decoder's tokens.
            source: states of the encoder, or the keys and values that an earlier call returned.
            context: mask of the encoder's tokens, and whether to return weights.
        """
        if isinstance(source, Tensor):
            v = self._split_heads(self.value(source))
            source = CrossStates(self._split_heads(cast(nn.Linear, self.key)(source)), v)
        (B, T), R = x.shape[:2], len(source.k)
        # All rows of an input, such as its beams, are queries of the same keys: no key is copied.
        q = self._split_heads(cast(nn.Linear, self.query)(x.reshape(R, B // R * T, -1)))
        mixed = self.mechanism(q, *source, key_mask=context.source_mask)
        states, weights = self._merge_heads(mixed).reshape(B, T, -1), None
        if context.output_attentions:
            mask = context.source_mask
            weights = compute_weights(self.mechanism, q, source.k, v=source.v, key_mask=mask)
            weights = weights.unflatten(2, (-1, T)).transpose(1, 2).flatten(0, 1)
        return LayerOutput(states, cross=source, cross_weights=weights)


def select_source_mask(
    config: LongspanConfig,
    states: Tensor | None,
    mask: Tensor | None,
    rows: int,
    past: LongspanCache | None,
) -> Tensor | None:
    """Check the encoder's states; return their mask, or that of the cache.

    Args:
        config: configuration of the decoder.
        states: states of the encoder (R, S, M), or None.
        mask: mask of a caller (R, S), or None.
        rows: rows of the decoder's batch.
        past: state of the decoder; it may hold the encoder's.

    Raises:
        InputError: states or mask are missing, superfluous or of the wrong shape.
    """
    if config.cross_attention is None:
        if states is None and mask is None:
            return None
        raise InputError(
            "encoder_hidden_states and encoder_attention_mask require a decoder with "
            "cross_attention; this model has none"
        )
    past_shape = None if past is None else past.source_shape
    if states is None and past_shape is None:
        raise InputError(
            f"cross_attention={config.cross_attention!r} requires encoder_hidden_states; got None"
        )
    shape = tuple(states.shape[:2]) if states is not None else past_shape
    if past_shape is not None and shape != past_shape:
        raise InputError(f"cache holds encoder states of shape (R, S) = {past_shape}, got {shape}")
    if states is not None and states.shape[2] != config.hidden_size:
        raise InputError(
            f"encoder_hidden_states must be hidden_size={config.hidden_size} wide, "
            f"got {states.shape[2]}"
        )
    if shape is None or rows % shape[0]:
        raise InputError(
            f"encoder_hidden_states must have as many rows as the inputs, {rows}, or a divisor "
            f"(rows of beams); got {shape}"
        )
    if mask is None:
        return None if past is None else past.source_mask
    return to_boolean_mask("encoder_attention_mask", mask, mask.new_empty(()).expand(shape))
