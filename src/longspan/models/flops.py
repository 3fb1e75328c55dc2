"""Forward FLOPs of a model, computed from the shapes in its configuration."""

from longspan.models.attention_layer import build_mechanism
from longspan.models.classification import LongspanForSequenceClassification
from longspan.models.config import LongspanConfig
from longspan.models.pair_classification import LongspanForPairClassification
from longspan.models.stem import stem_flops


def count_flops(
    config: LongspanConfig,
    length: int,
    num_labels: int,
    *,
    pair: bool = False,
    per_token: bool = False,
) -> int:
    """Return the floating-point operations of the forward pass on one example.

    A multiply-add counts as two operations. The count holds the matrix products of projections,
    feed-forward layers, stem and head, and the mechanism's own count (`Attention.flops`). It leaves
    out embedding look-ups, norms, activations, biases and positions.

    Args:
        config: configuration of the model.
        length: tokens of the example, padding included; for a pair, tokens of each sequence.
        num_labels: logits of the head.
        pair: count two sequences and the pair head.
        per_token: count the head for every token instead of once for the pooled state.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    T, M = config.sequence_length(length), config.hidden_size
    maps = 3 if config.feed_forward == "gated" else 2
    feed_forward = maps * linear_flops(T, M, config.intermediate_size)
    encoder = config.num_hidden_layers * feed_forward + linear_flops(
        length, config.input_features or 0, M
    )
    encoder += stem_flops(length, M) if config.stem == "convolution" else 0
    for layer in range(config.num_hidden_layers):
        attention = build_mechanism(config, layer)
        projections = len(attention.traits.inputs) + 1
        encoder += projections * linear_flops(T, M, config.all_head_size)
        encoder += config.num_attention_heads * attention.flops(T, config.head_dim)
    classifier = LongspanForPairClassification if pair else LongspanForSequenceClassification
    features, hidden = classifier.feature_size(config), config.classifier_hidden_size
    rows = length if per_token else 1
    head = linear_flops(rows, features, hidden) + linear_flops(rows, hidden or features, num_labels)
    return encoder * (2 if pair else 1) + head


def linear_flops(rows: int, inputs: int, outputs: int) -> int:
    """Return the operations of one linear map applied to `rows` vectors."""
    return 2 * rows * inputs * outputs
