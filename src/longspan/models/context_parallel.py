"""Context parallelism: each process holds a shard of the positions of every sequence.

Queries stay on their process. Keys and values are gathered, so that each process attends from its
shard to the whole sequence under the whole mask (Grattafiori et al. 2024, section 3.3.2,
https://arxiv.org/abs/2407.21783). Every process holds all weights; their gradient is the mean over
the processes.
"""

from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from longspan.shapes import Float

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


class ContextParallel:
    """Division of sequences into one shard of positions per process."""

    def __init__(self, group: distributed.ProcessGroup | None = None):
        """Shard sequences over the processes of a group; None takes all processes."""
        self.group = group
        self.world_size = distributed.get_world_size(group)
        self.rank = distributed.get_rank(group)

    def local_shard(self, x: MaybeTensor) -> MaybeTensor:
        """Return this process's shard of (B, T, ...).

        All shards have the same length; zeros (False in masks) pad the last one.
        """
        if x is None:
            return x
        padding = (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % self.world_size)
        return pad(x, padding).chunk(self.world_size, 1)[self.rank]

    def gather(self, x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
        """Concatenate the shards of all processes along `dim`; gradients flow back to each."""
        return _AllGather.apply(x.movedim(dim, 0).contiguous(), self).movedim(0, dim)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, parallel: ContextParallel) -> Tensor:
        ctx.parallel = parallel
        shards = [torch.empty_like(x) for _ in range(parallel.world_size)]
        distributed.all_gather(shards, x, group=parallel.group)
        return torch.cat(shards)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        parallel = ctx.parallel
        shards = [shard.contiguous() for shard in grad.chunk(parallel.world_size)]
        local = torch.empty_like(shards[parallel.rank])
        distributed.reduce_scatter(local, shards, group=parallel.group)
        return local, None
