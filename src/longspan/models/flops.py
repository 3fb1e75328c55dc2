"""Forward FLOPs of a Transformer, computed from the shapes in its configuration."""

from longspan.models.adaptive import adaptive_input_flops
from longspan.models.attention_layer import build_mechanism
from longspan.models.config import LongspanConfig
from longspan.models.embeddings import stem_flops


def encoder_flops(config: LongspanConfig, length: int) -> int:
    """Return the forward FLOPs of a Transformer without a head on one sequence.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    T, M = config.sequence_length(length), config.hidden_size
    maps = 3 if config.feed_forward == "gated" else 2
    feed_forward = maps * linear_flops(T, M, config.intermediate_size)
    encoder = config.num_hidden_layers * feed_forward + linear_flops(
        length, config.input_features or 0, M
    )
    encoder += adaptive_input_flops(config, length)
    encoder += stem_flops(length, M) if config.stem == "convolution" else 0
    if config.pooling == "attention":  # scores, and the weighted sum
        encoder += 2 * linear_flops(T, config.output_size, 1)
    for layer in range(config.num_hidden_layers):
        attention = build_mechanism(config, layer)
        inputs = len(attention.traits.inputs)
        projections = inputs + 1 + (config.output_gate != "none")
        encoder += projections * linear_flops(T, M, config.all_head_size)
        encoder += inputs * linear_flops(T, config.short_convolution, config.all_head_size)
        encoder += config.num_attention_heads * attention.flops(T, config.head_dim)
    return encoder


def linear_flops(rows: int, inputs: int, outputs: int) -> int:
    """Return the operations of one linear map applied to `rows` vectors."""
    return 2 * rows * inputs * outputs
