"""Dropout that does not dominate a training step on CPU."""

import torch
from torch import Tensor, nn

from longspan.shapes import Float

LANES = 2**16  # a random integer of 64 bits decides on four elements


class Dropout(nn.Dropout):
    """`nn.Dropout`, with the probability rounded to a 65,536th on CPU.

    torch draws one Bernoulli variable at a time there, a quarter of a small model's step; four
    lanes of one 64-bit draw take a tenth of it. On other devices torch's own kernel runs.
    """

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Drop elements in training, and scale the rest to keep the mean."""
        dropped = round(self.p * LANES)
        if not self.training or not 0 < dropped < LANES or x.device.type != "cpu":
            return super().forward(x)
        draws = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),), dtype=torch.int64)
        lanes = draws.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (lanes >= dropped - LANES // 2).to(x.dtype)
        return x * kept.mul_(LANES / (LANES - dropped))
