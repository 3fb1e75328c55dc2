"""Layer normalization as the configuration of a model asks for it."""

from torch import nn

from longspan.models.config import LongspanConfig


def make_norm(config: LongspanConfig, width: int | None = None) -> nn.LayerNorm:
    """Return a layer normalization; the default width is that of the model."""
    size = config.hidden_size if width is None else width
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.norm_bias)
