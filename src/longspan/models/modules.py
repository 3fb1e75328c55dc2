"""Parts of several modules: normalization and dropout.

Normalization is that of layers, or by the root mean square (Zhang and Sennrich 2019,
https://arxiv.org/abs/1910.07467), which has no bias.
"""

import torch
from torch import Tensor, nn

from longspan.models.config import LongspanConfig
from longspan.shapes import Float


def make_norm(config: LongspanConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Return a normalization; the default width is that of the model."""
    size, eps = config.hidden_size if width is None else width, config.layer_norm_eps
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(size, eps=eps)
    return nn.LayerNorm(size, eps=eps, bias=config.norm_bias)


class OutputRMSNorm(nn.RMSNorm):
    """Normalization of outputs by their root mean square, in the dtype of the weights.

    Under autocast the outputs of mechanisms have another one.
    """

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Normalize the last dimension."""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


LEVELS = 2**16  # resolution of the probability: one 64-bit draw decides on four elements


class Dropout(nn.Dropout):
    """`nn.Dropout`, with the probability rounded to a multiple of 1/65536 on CPU.

    On CPU torch draws one Bernoulli variable at a time, which takes a quarter of a small model's
    step. Splitting one 64-bit draw into four 16-bit numbers takes a tenth of that time. Other
    devices run torch's own kernel.
    """

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Drop elements during training and scale the remaining ones to keep the mean."""
        dropped = round(self.p * LEVELS)
        if not self.training or not 0 < dropped < LEVELS or x.device.type != "cpu":
            return super().forward(x)
        draws = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),), dtype=torch.int64)
        levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
        mask = (levels >= dropped - LEVELS // 2).to(x.dtype)
        return x * mask.mul_(LEVELS / (LEVELS - dropped))
