"""Configuration of a model around a mechanism, with the field names of transformers."""

from longspan.config.base import setting, settings


@settings
class ModelConfig:
    """Architecture of the encoder and its head; the mechanism is configured on its own."""

    hidden_size: int = setting("width of the hidden states")
    num_hidden_layers: int = setting("number of layers; 0: no attention")
    num_attention_heads: int = setting("attention heads per layer")
    attention_head_size: int | None = setting(
        "width of an attention head; none: hidden_size / num_attention_heads", None
    )
    intermediate_size: int = setting("width of the feed-forward layer")
    classifier_hidden_size: int = setting("width of the classifier's hidden layer")
    position: str = setting(
        "position encoding: learned, sinusoidal, rotary, relative_2d (square images), t5, relative "
        "or none",
        "learned",
    )
    stem: str = setting("layers before the first one, on images: none or convolution", "none")
    norm: str = setting("layer normalization: pre or post", "pre")
    pooling: str = setting("sequence summary: mean, cls or first", "mean")
    pair_head: str = setting("features of a pair: interaction or concatenate", "interaction")
    hidden_dropout_prob: float = setting("dropout of embeddings and blocks", 0.1)
    attention_dropout: float = setting("dropout of the mechanism's output", 0.1)
    initializer_range: float = setting("standard deviation of the initial weights", 0.07)
