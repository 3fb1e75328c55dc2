"""Rows that begin after padding, for mechanisms that divide a row from its first token.

`generate` pads prompts on the left. Blocks, segments and grids are counted from the first position
of a row (trait `anchored`), so padding there would shift them. Rows are therefore processed in
groups that begin at the same position, without the padding, and each group keeps its own cache. The
cost is one call for each group.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention import Attention, Cache, LayerInput

Step = Callable[..., tuple[Tensor, Cache, Tensor | None]]


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Rows of a batch that begin at the same position.

    Attributes:
        rows: their indices (N,).
        start: first position of the new tokens that belongs to them.
        cache: what the previous step left; None before the first token.
    """

    rows: Tensor
    start: int = 0
    cache: Cache | None = None

    def take(self, x: Any, dim: int) -> Any:
        """Return its part of a tensor whose dimension `dim` is the position; None of None."""
        if x is None:
            return None
        rows = x.index_select(0, self.rows)
        return rows.narrow(dim, self.start, rows.shape[dim] - self.start)


@dataclasses.dataclass(frozen=True)
class GroupedCache:
    """Caches of groups of rows, with the interface of one cache of the batch.

    Attributes:
        groups: groups that together have every row once.
        length: tokens seen, padding included.
    """

    groups: tuple[RowGroup, ...]
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows."""
        return (sum(len(group.rows) for group in self.groups),)

    @property
    def device(self) -> torch.device | None:
        """Device of the state."""
        return self.groups[0].rows.device

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors of all groups."""
        caches = enumerate(group.cache for group in self.groups)
        return {f"{i}.{n}": x for i, c in caches if c is not None for n, x in c.state.items()}

    def detach(self) -> "GroupedCache":
        """Return the caches without autograd history."""
        return self._map(lambda group: group.cache and group.cache.detach())

    def to(self, device: torch.device | str) -> "GroupedCache":
        """Return the caches on a device."""
        moved = self._map(lambda group: group.cache and group.cache.to(device))
        groups = (dataclasses.replace(x, rows=x.rows.to(device)) for x in moved.groups)
        return dataclasses.replace(moved, groups=tuple(groups))

    def select_rows(self, rows: Tensor) -> "GroupedCache":
        """Return the caches of some rows, in any order, possibly repeated."""
        groups = []
        for group in self.groups:
            # Places in the new batch, and the row of the group that each of them takes.
            new, old = (rows[:, None] == group.rows).nonzero(as_tuple=True)
            if len(new):
                cache = group.cache and group.cache.select_rows(old)
                groups.append(dataclasses.replace(group, rows=new, cache=cache))
        return dataclasses.replace(self, groups=tuple(groups))

    def rollback(self, tokens: int) -> "GroupedCache":
        """Return the caches without the last tokens; see `Cache.rollback`."""
        shorter = self._map(lambda group: group.cache and group.cache.rollback(tokens))
        return dataclasses.replace(shorter, length=self.length - tokens)

    def reset(self, mechanism: Attention, rows: Tensor) -> "GroupedCache":
        """Clear the cached tokens of some rows; see `Attention.reset`."""
        return self._map(
            lambda group: group.cache and mechanism.reset(group.cache, rows[group.rows])
        )

    def _map(self, change: Callable[[RowGroup], Cache | None]) -> "GroupedCache":
        groups = (dataclasses.replace(group, cache=change(group)) for group in self.groups)
        return dataclasses.replace(self, groups=tuple(groups))


def group_rows(mask: Tensor | None) -> tuple[RowGroup, ...] | None:
    """Group the rows of a new batch by the position of the first real token.

    Args:
        mask: True at real tokens (B, T), or None.

    Returns:
        The groups, or None if no row begins with padding. A row of padding begins at its start.
        Traced calls assert on the device that there are none.
    """
    if mask is None or mask.shape[1] == 1:
        return None
    starts = mask.long().argmax(1)
    if torch.compiler.is_compiling():
        torch._assert_async(~starts.any(), "compiled models require padding on the right")
        return None
    if not starts.any():
        return None
    values, group = starts.unique(return_inverse=True)
    return tuple(
        RowGroup(rows=(group == i).nonzero()[:, 0], start=start)
        for i, start in enumerate(values.tolist())
    )


def step_groups(
    step: Step,
    cache: GroupedCache,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    layer_input: LayerInput | None,
) -> tuple[Tensor, GroupedCache, Tensor | None]:
    """Step each group on its own.

    Args:
        step: step of a mechanism, from q, k, v, cache, mask and layer input to output, cache and
            loss; see `Attention.step`.
        cache: groups, of a new batch without caches.
        q: queries of the new tokens; these, keys, values, mask and layer input are of all rows.
        k: keys.
        v: values.
        mask: True at real tokens, or None.
        layer_input: layer input, or None.

    Returns:
        Outputs (B, H, T, E), zero at the padding before the rows; the caches; and the mean loss
        over rows, or None.
    """
    out, stepped, losses = v.new_zeros(*q.shape[:3], v.shape[3]), [], []
    for group in cache.groups:
        source = layer_input
        if source is not None:
            source = dataclasses.replace(source, states=group.take(source.states, 1))
        tensors = (group.take(x, 2) for x in (q, k, v))
        mixed, new_cache, loss = step(*tensors, group.cache, group.take(mask, 1), source)
        out = out.index_copy(0, group.rows, F.pad(mixed, (0, 0, group.start, 0)))
        stepped.append(RowGroup(group.rows, 0, new_cache))
        if loss is not None:
            losses.append(loss * len(group.rows) / len(q))
    total = torch.stack(losses).sum() if losses else None
    return out, GroupedCache(tuple(stepped), cache.length + q.shape[2]), total
