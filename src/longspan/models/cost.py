"""What a model costs before it runs: parameters, and operations computed from its shapes."""

from torch import nn

from longspan.models.config import LongspanConfig
from longspan.models.heads import pair_width
from longspan.models.layers import mechanism


def parameters(model: nn.Module) -> int:
    """Numbers that training changes; shared ones count once, buffers do not."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def flops(
    config: LongspanConfig,
    length: int,
    classes: int,
    *,
    pair: bool = False,
    per_token: bool = False,
) -> int:
    """Forward floating-point operations of one example; multiply and add are counted apart.

    Counted are the matrix products of projections, feed-forward layers and head, and what the
    mechanism says of itself (`Attention.flops`). Look-ups, norms, activations, biases and
    positions are not.

    Args:
        config: the model's configuration.
        length: tokens of the example, padding included; of each sequence of a pair.
        classes: logits of the head.
        pair: two sequences and the pair head.
        per_token: the head is applied to every token, not to the summary.

    Raises:
        InputError: the length exceeds the model's.
    """
    T, M, inputs = config.states(length), config.hidden_size, config.input_features or 0
    feed_forward = linear(T, M, config.intermediate_size) + linear(T, config.intermediate_size, M)
    encoder = config.num_hidden_layers * feed_forward + linear(length, inputs, M)
    for layer in range(config.num_hidden_layers):
        attention = mechanism(config, layer)
        encoder += (len(attention.traits.inputs) + 1) * linear(T, M, config.heads_width)
        encoder += config.num_attention_heads * attention.flops(T, config.head_dim)
    width = pair_width(config) if pair else M
    hidden = config.classifier_hidden_size
    rows = length if per_token else 1
    head = linear(rows, width, hidden) + linear(rows, hidden, classes)
    return encoder * (2 if pair else 1) + head


def linear(rows: int, inputs: int, outputs: int) -> int:
    """Operations of one linear map applied to `rows` vectors."""
    return 2 * rows * inputs * outputs
