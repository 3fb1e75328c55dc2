"""Normalization as the configuration of a model asks for it.

Layer normalization, or that by the root mean square (Zhang and Sennrich 2019,
https://arxiv.org/abs/1910.07467), which has no bias.
"""

from torch import nn

from longspan.models.config import LongspanConfig


def make_norm(config: LongspanConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Return a normalization; the default width is that of the model."""
    size, eps = config.hidden_size if width is None else width, config.layer_norm_eps
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(size, eps=eps)
    return nn.LayerNorm(size, eps=eps, bias=config.norm_bias)
