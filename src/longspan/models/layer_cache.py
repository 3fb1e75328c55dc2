"""Cache of a layer between calls: that of its mechanism, and what its short convolutions read next.

`generate` pads prompts on the left. Blocks, segments and grids are counted from the first position
of a row (trait `anchored`), so padding there would shift them. Such rows are therefore processed in
groups that begin at the same position, without the padding, and each group keeps its own cache. The
cost is one call for each group. Otherwise one group has all rows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention import Attention, Cache, Inputs
from longspan.attention.cache import extend_tensor

Step = Callable[[Inputs], tuple[Tensor, Cache | None, Tensor | None]]


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Rows of a batch that begin at the same position.

    Attributes:
        rows: their indices (N,); None: all rows.
        start: first position of the new tokens that belongs to them.
        cache: what the previous step left; None before the first token.
    """

    rows: Tensor | None = None
    start: int = 0
    cache: Cache | None = None

    def take(self, x: Inputs) -> Inputs:
        """Return its part of the inputs of all rows, with its cache."""
        if self.rows is None:
            return x._replace(cache=self.cache)
        part = x.take_rows(self.rows).take_tokens(slice(self.start, x.q.shape[2]))
        return part._replace(cache=self.cache)

    def select_rows(self, rows: Tensor) -> "RowGroup | None":
        """Return the group in a batch of some rows, or None if it has none of them."""
        new, old = None, rows
        if self.rows is not None:
            # Places in the new batch, and the row of the group that each of them takes.
            new, old = (rows[:, None] == self.rows).nonzero(as_tuple=True)
            if not len(new):
                return None
        return RowGroup(new, self.start, self.cache and self.cache.select_rows(old))


@dataclasses.dataclass(frozen=True)
class LayerCache:
    """Cache of a layer after the tokens seen so far.

    Attributes:
        groups: groups of rows that together have every row once, each with the mechanism's cache.
        length: number of tokens seen, padding included.
        tokens: outputs of each convolved projection for the last tokens (B, N, C), zero before the
            first one; empty without convolutions. While steps are recorded, their tokens are added.
        reach: number of tokens that the next one reads, N of a cache without record.
    """

    groups: tuple[RowGroup, ...]
    length: int
    tokens: tuple[Tensor, ...] = ()
    reach: int = 0

    @property
    def num_rows(self) -> int:
        """Number of rows of the batch."""
        (first, *_), counts = self.groups, [group.rows for group in self.groups]
        if first.rows is None:
            return 0 if first.cache is None else first.cache.shape[0]
        return sum(len(rows) for rows in counts if rows is not None)

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors of the convolutions and of the mechanism, those of groups with their number."""
        tensors = {f"convolution.{i}": x for i, x in enumerate(self.tokens)}
        for number, group in enumerate(self.groups):
            prefix = "" if group.rows is None else f"{number}."
            held = {} if group.cache is None else group.cache.state
            tensors |= {f"{prefix}{name}": x for name, x in held.items()}
        return tensors

    @property
    def read_next(self) -> list[Tensor]:
        """Tokens that the convolutions of the next one read."""
        return [x[:, x.shape[1] - self.reach :] for x in self.tokens]

    def detach(self) -> "LayerCache":
        """Return the cache without autograd history."""
        return self._map(lambda _, cache: cache.detach(), Tensor.detach)

    def select_rows(self, rows: Tensor) -> "LayerCache":
        """Return the cache of some rows, in any order, possibly repeated."""
        selected = [group.select_rows(rows) for group in self.groups]
        groups = tuple(group for group in selected if group is not None)
        tokens = tuple(x.index_select(0, rows.to(x.device).long()) for x in self.read_next)
        return dataclasses.replace(self, groups=groups, tokens=tokens)

    def rollback(self, tokens: int) -> "LayerCache | None":
        """Return the cache without the last tokens; None if no token is left.

        See `Cache.rollback`.
        """
        shorter = self._map(
            lambda _, cache: cache.rollback(tokens), lambda x: x[:, : x.shape[1] - tokens]
        )
        if all(group.cache is None for group in shorter.groups):
            return None
        return dataclasses.replace(shorter, length=self.length - tokens)

    def reset(self, mechanism: Attention, rows: Tensor) -> "LayerCache":
        """Clear the cached tokens of some rows; see `Attention.reset`."""
        return self._map(
            lambda group, cache: mechanism.reset(
                cache, rows if group.rows is None else rows[group.rows]
            ),
            lambda x: x.masked_fill(rows[:, None, None], 0),
        )

    def _map(
        self,
        change: Callable[[RowGroup, Cache], Cache | None],
        change_tokens: Callable[[Tensor], Tensor],
    ) -> "LayerCache":
        """Return a cache that no recorded step made, with other caches and tokens."""
        groups = tuple(
            dataclasses.replace(group, cache=group.cache and change(group, group.cache))
            for group in self.groups
        )
        changed = dataclasses.replace(
            self, groups=groups, tokens=tuple(map(change_tokens, self.tokens))
        )
        return dataclasses.replace(changed, tokens=tuple(changed.read_next))


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
    step: Step, groups: tuple[RowGroup, ...], x: Inputs
) -> tuple[Tensor, tuple[RowGroup, ...], Tensor | None]:
    """Step each group on its own.

    Args:
        step: step of a mechanism, from inputs to output, cache and loss; see `Attention.step`.
        groups: groups, of a new batch without caches.
        x: inputs of the new tokens of all rows: q, k, v, mask and layer input.

    Returns:
        Outputs (B, H, T, E), zero at the padding before the rows; the groups with their caches; and
        the mean loss over rows, or None.
    """
    if groups[0].rows is None:
        mixed, cache, loss = step(groups[0].take(x))
        return mixed, (RowGroup(cache=cache),), loss
    out, stepped, losses = x.v.new_zeros(*x.q.shape[:3], x.v.shape[3]), [], []
    for group in groups:
        rows = cast(Tensor, group.rows)
        mixed, cache, loss = step(group.take(x))
        out = out.index_copy(0, rows, F.pad(mixed, (0, 0, group.start, 0)))
        stepped.append(RowGroup(rows, 0, cache))
        if loss is not None:
            losses.append(loss * len(rows) / len(x.q))
    total = torch.stack(losses).sum() if losses else None
    return out, tuple(stepped), total


def extend_cache(
    past: LayerCache | None,
    groups: tuple[RowGroup, ...],
    new: Sequence[Tensor],
    reach: int,
    *,
    record: bool,
) -> LayerCache:
    """Return the cache of a layer after new tokens.

    Args:
        past: cache before them, or None.
        groups: groups with the mechanism's caches after them.
        new: outputs of each projection for them (B, T, C), zero at padding if there are
            convolutions.
        reach: number of tokens that the next one reads; 0 without convolutions.
        record: whether all of the new tokens are held, so that `rollback` can remove them.
    """
    length = new[0].shape[1] + (0 if past is None else past.length)
    if not reach:
        return LayerCache(groups, length)
    old = [x.new_zeros(len(x), reach, x.shape[2]) for x in new] if past is None else past.tokens
    if record:
        tokens = [extend_tensor(x, y, 1) for x, y in zip(old, new, strict=True)]
    else:
        joined = (torch.cat((x, y[:, -reach:]), 1) for x, y in zip(old, new, strict=True))
        # A view would hold the memory of all tokens.
        tokens = [x[:, -reach:].clone() for x in joined]
    return LayerCache(groups, length, tuple(tokens), reach)
