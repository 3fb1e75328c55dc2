"""One sequence over several processes: each holds a stretch of its positions.

Queries stay where they are; keys and values are gathered, so that each process attends from its
stretch to the whole sequence under the whole mask (context parallel as in Grattafiori et al. 2024,
section 3.3.2, https://arxiv.org/abs/2407.21783). Weights are whole everywhere, and their gradient
is the mean over the processes.
"""

from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from longspan.shapes import Float

Maybe = TypeVar("Maybe", Tensor, Tensor | None)


class Split:
    """Which stretch of a sequence is this process's."""

    def __init__(self, group: distributed.ProcessGroup | None = None):
        """Split over the processes of a group; None: over all of them."""
        self.group = group
        self.number, self.rank = distributed.get_world_size(group), distributed.get_rank(group)

    def own(self, x: Maybe) -> Maybe:
        """This process's stretch of (B, T, ...); behind the last position stand zeros, or False.

        All stretches are equally long.
        """
        if x is None:
            return x
        padding = (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % self.number)
        return pad(x, padding).chunk(self.number, 1)[self.rank]

    def whole(self, x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
        """The stretches of all processes, one behind the other; gradients go back to each."""
        return _Gathered.apply(x.movedim(dim, 0).contiguous(), self).movedim(0, dim)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, split: Split) -> Tensor:
        ctx.split = split
        found = [torch.empty_like(x) for _ in range(split.number)]
        distributed.all_gather(found, x, group=split.group)
        return torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        split = ctx.split
        parts = [part.contiguous() for part in grad.chunk(split.number)]
        mine = torch.empty_like(parts[split.rank])
        distributed.reduce_scatter(mine, parts, group=split.group)
        return mine, None
