"""Dropout with a fast path on CPU."""

import torch
from torch import Tensor, nn

from longspan.shapes import Float

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
        kept = (levels >= dropped - LEVELS // 2).to(x.dtype)
        return x * kept.mul_(LEVELS / (LEVELS - dropped))
