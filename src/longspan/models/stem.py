"""Convolutional stem: a small convolution network on the image, before the first layer.

Tay et al. 2021 (https://arxiv.org/abs/2011.04006), appendix A.2.1, report that inductive biases of
images outweigh the choice of the attention. The text names a convolutional stem and gives no sizes:
here two 3 x 3 convolutions of the model's width, which keep every position.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.models.relative_2d import image_side
from longspan.shapes import Float

KERNEL, CONVOLUTIONS = 3, 2


class ConvolutionStem(nn.Module):
    """Two 3 x 3 convolutions with ReLU over the embedded pixels of a square image."""

    def __init__(self, width: int):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, KERNEL, padding="same") for _ in range(CONVOLUTIONS)
        )

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        """Convolve the states of T = side x side pixels in row order.

        Raises:
            InputError: T is no square number.
        """
        side = image_side(x.shape[1])
        if side is None:
            raise InputError(
                f"stem='convolution' requires a square image, got {x.shape[1]} positions; "
                "use a task of images, or stem='none'"
            )
        grid = x.mT.unflatten(2, (side, side))
        for convolution in self.convolutions:
            grid = F.relu(convolution(grid))
        return grid.flatten(2).mT


def stem_flops(length: int, width: int) -> int:
    """Return the forward FLOPs of the stem on an image of `length` pixels."""
    return CONVOLUTIONS * 2 * length * KERNEL**2 * width**2
