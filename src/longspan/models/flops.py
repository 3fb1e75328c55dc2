"""Forward FLOPs of a model, computed from the shapes in its configuration."""

from longspan.models.adaptive import adaptive_input_flops, adaptive_softmax_flops
from longspan.models.attention_layer import build_mechanism
from longspan.models.classification import LongspanForSequenceClassification
from longspan.models.config import LongspanConfig
from longspan.models.coreference_head import DISTANCES, CoreferenceOptions
from longspan.models.cross_attention import build_cross_mechanism
from longspan.models.multi_hop import NUM_TYPES
from longspan.models.pair_classification import LongspanForPairClassification
from longspan.models.parts import decoder_config, encoder_config
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
    encoder = encoder_flops(config, length) * (2 if pair else 1)
    classifier = LongspanForPairClassification if pair else LongspanForSequenceClassification
    features = classifier.feature_size(config)
    return encoder + _classifier_flops(config, length if per_token else 1, features, num_labels)


def count_language_flops(config: LongspanConfig, length: int, logits: int | None = None) -> int:
    """Return the forward FLOPs of a language model on one example; see `count_flops`.

    Those of an adaptive softmax are of all words, as without labels: how many words training reads
    depends on the text.

    Args:
        config: configuration of the model.
        length: tokens of the example.
        logits: positions whose logits are computed; None: all of them.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    rows, width = length if logits is None else logits, config.logits_input_size
    transforms = config.prediction_head == "transform" and not config.is_decoder
    maps = transforms or width != config.output_size
    head = linear_flops(rows, config.output_size, width if maps else 0)
    if config.adaptive_cutoffs:
        words = adaptive_softmax_flops(config, rows)
    else:
        words = linear_flops(rows, width, config.vocab_size)
    return encoder_flops(config, length) + head + words


def count_span_flops(config: LongspanConfig, length: int) -> int:
    """Return the forward FLOPs of a model for spans on one example; see `count_flops`.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    return encoder_flops(config, length) + linear_flops(length, config.output_size, 2)


def count_multi_hop_flops(config: LongspanConfig, length: int) -> int:
    """Return the forward FLOPs of a model for multi-hop questions on one example.

    See `count_flops`. Four scores are computed for each token, and the type once.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    size = config.output_size
    types = _classifier_flops(config, 1, size, NUM_TYPES)
    return encoder_flops(config, length) + linear_flops(length, size, 4) + types


def count_candidate_flops(config: LongspanConfig, length: int, candidates: int) -> int:
    """Return the forward FLOPs of a model for candidates on one window; see `count_flops`.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    return encoder_flops(config, length) + linear_flops(candidates, config.output_size, 1)


def count_text_to_text_flops(config: LongspanConfig, length: int, target_length: int) -> int:
    """Return the forward FLOPs of an encoder-decoder on one example; see `count_flops`.

    Cross-attention counts as the mechanism's own count, in proportion to the queries.

    Args:
        config: configuration of the encoder-decoder.
        length: tokens of the input.
        target_length: tokens of the target.

    Raises:
        InputError: a length exceeds the `max_position_embeddings` of its part.
    """
    own = decoder_config(config)
    source, D = config.sequence_length(length), own.head_dim
    mechanism = build_cross_mechanism(own, 0)
    cross = own.num_attention_heads * mechanism.flops(source, D) * target_length // source
    # Queries and outputs of the target's tokens, keys and values of the input's.
    cross += 2 * linear_flops(target_length + source, own.hidden_size, own.all_head_size)
    decoder = encoder_flops(own, target_length) + own.num_hidden_layers * cross
    logits = linear_flops(target_length, config.logits_input_size, config.vocab_size)
    return encoder_flops(encoder_config(config), length) + decoder + logits


def count_coreference_flops(config: LongspanConfig, length: int, windows: int = 1) -> int:
    """Return the forward FLOPs of a coreference model on one document; see `count_flops`.

    Every token counts as a word, and all of them as one sentence.

    Args:
        config: configuration of the model.
        length: tokens of each window.
        windows: number of windows.

    Raises:
        InputError: `length` exceeds `max_position_embeddings`.
    """
    options = CoreferenceOptions(**config.coreference)
    L, M, size = windows * length, config.output_size, options.feature_size
    span = 3 * M + size
    features = 3 * span + size * (1 + options.speakers + bool(options.genres))
    N = sum(L - width for width in range(min(options.span_width, L)))
    K = min(N, max(1, int(options.spans_per_token * L)))
    A = min(options.antecedents, K)
    mentions = linear_flops(L, M, 1) + _classifier_flops(config, N, span, 1)
    priors = _classifier_flops(config, options.span_width, size, 1)
    priors += linear_flops(len(DISTANCES), size, 1)
    coarse = linear_flops(K, span, span) + linear_flops(K, span, K)
    fine = options.depth * _classifier_flops(config, K * A, features, 1)
    mixed = (options.depth - 1) * (linear_flops(K, 2 * span, span) + linear_flops(K, 1 + A, span))
    return windows * encoder_flops(config, length) + mentions + priors + coarse + fine + mixed


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
    for layer in range(config.num_hidden_layers):
        attention = build_mechanism(config, layer)
        projections = len(attention.traits.inputs) + 1
        encoder += projections * linear_flops(T, M, config.all_head_size)
        encoder += config.num_attention_heads * attention.flops(T, config.head_dim)
    return encoder


def _classifier_flops(config: LongspanConfig, rows: int, features: int, num_labels: int) -> int:
    hidden = config.classifier_hidden_size
    return linear_flops(rows, features, hidden) + linear_flops(rows, hidden or features, num_labels)


def linear_flops(rows: int, inputs: int, outputs: int) -> int:
    """Return the operations of one linear map applied to `rows` vectors."""
    return 2 * rows * inputs * outputs
