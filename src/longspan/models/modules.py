"""Parts of several modules: normalization, dropout and pooling.

Normalization is that of layers, or by the root mean square (Zhang and Sennrich 2019,
https://arxiv.org/abs/1910.07467), which has no bias.
"""

import torch
from torch import Tensor, nn

from longspan.attention.masking import apply_mask
from longspan.models.config import LongspanConfig
from longspan.shapes import Bool, Float


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


def pool(
    x: Float[Tensor, "B T M"], mask: Bool[Tensor, "B T"] | None, pooling: str
) -> Float[Tensor, "B M"]:
    """Return one state for each row.

    Args:
        x: states of the tokens, zero at padded positions.
        mask: True at real tokens, or None for all.
        pooling: "mean" or "max" of the real tokens, "first" or "cls" (the state of the first of
            them), or "last" (that of the last).
    """
    if pooling == "mean":
        return x.mean(1) if mask is None else x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    if pooling == "max":
        if mask is None:
            return x.amax(1)
        lowest = x.masked_fill(~mask[..., None], torch.finfo(x.dtype).min)
        return apply_mask(lowest.amax(1), mask.any(1, keepdim=True))
    is_last = pooling == "last"
    if mask is None:
        return x[:, -1 if is_last else 0]
    numbers = torch.arange(x.shape[1], device=x.device)
    index = torch.where(mask, numbers, 0).argmax(1) if is_last else mask.int().argmax(1)
    return x[torch.arange(len(x), device=x.device), index]
