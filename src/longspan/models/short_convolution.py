"""Short convolution of queries, keys and values over the tokens, before positions are added.

    y_t = activation(sum_j w_j * x_{t - before + j})        j = 0 .. taps - 1

x is the output of one projection, zero at padding and beyond both ends; each channel has its own
weights w. A causal layer reads the token and those before it (before = taps - 1), any other layer
both sides (before = taps // 2). So et al. 2021, "Primer" (https://arxiv.org/abs/2109.08668), and
the delta rules of Qwen3-Next and Kimi Linear, which apply SiLU after it.

Weights start uniform within 1 / sqrt(taps), as those of torch's convolution (compared in
docs/development/decisions.md). Positions and global tokens that a mechanism projects itself are not
convolved.

On CPU the sum of shifted products takes 0.4 to 1.2 of the time of torch's convolution, forward and
backward, and has exact gradients; those of torch's kernel have errors, see
`longspan.attention.ops.convolution`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from longspan.models.config import LongspanConfig
from longspan.shapes import Float


class ShortConvolution(nn.Module):
    """Convolution of the outputs of one projection, each channel on its own."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        taps = config.short_convolution
        self.before = taps - 1 if config.is_decoder else taps // 2
        self.after = taps - 1 - self.before
        self.has_activation = config.short_convolution_activation == "silu"
        self.weight = nn.Parameter(torch.empty(config.all_head_size, 1, taps))
        self.initialize()

    def initialize(self) -> None:
        """Draw the weights as torch's convolution draws them."""
        bound = self.weight.shape[2] ** -0.5
        initialization.uniform_(self.weight, -bound, bound)

    def forward(
        self, x: Float[Tensor, "B T C"], past: Float[Tensor, "B N C"] | None = None
    ) -> Float[Tensor, "B T C"]:
        """Convolve the tokens.

        Args:
            x: tokens, zero at padding.
            past: the `before` tokens before them; None: there are none.
        """
        length = x.shape[1]
        x = F.pad(x, (0, 0, self.before, self.after)) if past is None else torch.cat((past, x), 1)
        first, *rest = self.weight[:, 0].to(x.dtype).unbind(-1)
        out = x[:, :length] * first
        for shift, tap in enumerate(rest, start=1):
            out = torch.addcmul(out, x[:, shift : shift + length], tap)
        return F.silu(out) if self.has_activation else out
