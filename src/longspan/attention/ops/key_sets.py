"""Sets of keys that blocks of queries attend to, gathered for a few blocks at a time.

A set has runs of keys around each block (`RunSet`), or the same keys for all blocks (`ColumnSet`).
A set divides the queries into pieces, gathers the keys of a piece (b, r, n, H, S, D), returns its
pairs (b, r, n, 1, block or 1, S), and adds the gradients of the keys to those of the rows, which
have `margins` of places around them. Pieces of one `place` have the same pairs where all keys are
real; () says that all have.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Queries times heads of a piece, for each thread: keys and gradients stay in the cache of a core.
PIECE = 1 << 11


class Piece(NamedTuple):
    """Blocks of queries in rows (B, H, T, D).

    Attributes:
        batch: rows of the batch.
        residues: residue classes.
        places: places within a residue class, whole blocks.
        dilation: number of residue classes of a row.
        block: places of a block.
    """

    batch: slice
    residues: slice
    places: slice
    dilation: int
    block: int

    @property
    def is_block(self) -> bool:
        """True if it has one block of each residue class of a row."""
        return self.places.stop - self.places.start == self.block

    def first(self) -> "Piece":
        """Return the first block."""
        batch, residues, places = (
            slice(x.start, x.start + size)
            for x, size in ((self.batch, 1), (self.residues, 1), (self.places, self.block))
        )
        return self._replace(batch=batch, residues=residues, places=places)

    def classes(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Return places of the residue classes of rows (B, H, T, D) as a view, (b, r, H, n, D)."""
        batch, residues, g = self.batch, self.residues, self.dilation
        (_, H, _, D), (row, head, token, number) = x.shape, x.stride()
        shape = batch.stop - batch.start, residues.stop - residues.start, H, stop - start, D
        first = batch.start * row + (start * g + residues.start) * token
        # One operation instead of five slices, for each tensor of each piece.
        strides = row, token, head, g * token, number
        return x.as_strided(shape, strides, x.storage_offset() + first)

    def view(self, x: Tensor) -> Tensor:
        """Return the blocks of rows (B, H, T, D) as a view, (b, r, n, H, block, D)."""
        rows = self.classes(x, self.places.start, self.places.stop)
        return rows.unflatten(3, (-1, self.block)).transpose(2, 3)


class RunSizes(NamedTuple):
    """Layout fitted to a length: dilation, padded length of a residue class, block, its sides."""

    dilation: int
    length: int
    block: int
    left: int
    right: int


class RunSet(NamedTuple):
    """A run of keys for each block of queries.

    Attributes:
        near: keys of its run that each query of a block may attend, (block or 1, span).
        sizes: layout of the blocks and their runs.
    """

    near: Tensor
    sizes: RunSizes

    @property
    def length(self) -> int:
        """Places of a row."""
        return self.sizes.dilation * self.sizes.length

    @property
    def margins(self) -> tuple[int, int]:
        """Places of the runs before and after a row."""
        return self.sizes.dilation * self.sizes.left, self.sizes.dilation * self.sizes.right

    def pieces(self, x: Tensor) -> Iterator[Piece]:
        """Divide the blocks into pieces: some blocks of one long row, or some short rows."""
        (B, H, T, _), (g, length, block, *_) = x.shape, self.sizes
        most = PIECE * torch.get_num_threads() // H
        batches, residues = _ranges(0, B, most // T), _ranges(0, g, most // length)
        for batch, classes, places in itertools.product(batches, residues, self._places(most)):
            yield Piece(batch, classes, places, g, block)

    def _places(self, most: int) -> list[slice]:
        """Divide the blocks of a residue class; large ones whose runs reach beyond it are alone."""
        _, length, block, left, right = self.sizes
        step = max(1, most // block) * block
        if 4 * block < most:
            return _ranges(0, length, step)
        start = min(-(-left // block) * block, length)
        stop = max(length + -right // block * block, start)
        inner = _ranges(start, stop, step)
        return _ranges(0, start, block) + inner + _ranges(stop, length, block)

    def gather(self, x: Tensor, piece: Piece) -> Tensor:
        """Gather runs: views, unless they reach beyond the ends; that of one block ends there."""
        start, stop = self._range(piece)
        inside = self._inside(x, piece, 0)
        if piece.is_block:
            return inside[:, :, None]
        if start < 0 or stop > self.sizes.length:
            inside = F.pad(inside, (0, 0, max(-start, 0), max(stop - self.sizes.length, 0)))
        return inside.unfold(3, self._span, piece.block).mT.transpose(2, 3)

    def mask(self, real: Tensor, piece: Piece) -> Tensor:
        """Return the pairs of each block and its run."""
        keys, near = self.gather(real, piece).mT, self.near
        if piece.is_block:
            first = max(-self._range(piece)[0], 0)
            near = near[:, first : first + keys.shape[-1]]
        return keys & near

    def place(self, piece: Piece) -> tuple[int, ...]:
        """Return () for pieces whose runs are inside their rows, and the places of others."""
        start, stop = self._range(piece)
        if start >= 0 and stop <= self.sizes.length:
            return ()
        batch, residues, places = piece.batch, piece.residues, piece.places
        sizes = batch.stop - batch.start, residues.stop - residues.start
        return *sizes, places.start, places.stop

    def add(self, sums: Tensor, before: int, grad: Tensor, piece: Piece) -> None:
        """Add the gradients of runs, which overlap, in parts that do not."""
        if piece.is_block:
            view = self._inside(sums, piece, before)
            view.add_(grad.unflatten(0, view.shape[:2]))
            return
        start, stop = piece.places.start, piece.places.stop
        block, span = piece.block, self._span
        sums = sums[:, :, before - self.margins[0] :]
        view = piece.classes(sums, start, stop + span - block)
        count = (stop - start) // block
        grad = grad.unflatten(0, (*view.shape[:2], count)).transpose(2, 3)
        for first in range(0, span, block):
            part = grad[..., first : min(first + block, span), :]
            size = part.shape[-2]
            whole = view[:, :, :, first : first + (count - 1) * block + size]
            whole.unfold(3, size, block).mT.add_(part)

    def _inside(self, x: Tensor, piece: Piece, before: int) -> Tensor:
        """Return the places of the runs of a piece in rows that begin at `before`, as a view."""
        start, stop = self._range(piece)
        return piece.classes(x[:, :, before:], max(start, 0), min(stop, self.sizes.length))

    @property
    def _span(self) -> int:
        """Keys of a run."""
        return self.sizes.left + self.sizes.block + self.sizes.right

    def _range(self, piece: Piece) -> tuple[int, int]:
        """Return the places of the runs of a piece, which may be beyond the ends."""
        return piece.places.start - self.sizes.left, piece.places.stop + self.sizes.right


class ColumnSet(NamedTuple):
    """The same places of every block, as keys of all queries, or if causal of later blocks.

    Attributes:
        length: places of a row, a multiple of the block.
        block: places of a block.
        columns: places of a block that are keys.
        causal: whether queries attend to earlier blocks only, without their own.
    """

    length: int
    block: int
    columns: slice
    causal: bool

    @property
    def margins(self) -> tuple[int, int]:
        """No place is outside a row."""
        return 0, 0

    def pieces(self, x: Tensor) -> Iterator[Piece]:
        """Divide the queries into pieces: some of one long row, or some short rows."""
        most = PIECE * torch.get_num_threads() // x.shape[1]
        rows = most // self.block * self.block
        if self.causal:
            rows = min(rows, causal_step(self.length // self.block) * self.block)
        # Pieces with the same pairs follow each other.
        for places in _ranges(0, self.length, max(rows, self.block)):
            for batch in _ranges(0, len(x), most // self.length):
                yield Piece(batch, slice(0, 1), places, 1, places.stop - places.start)

    def gather(self, x: Tensor, piece: Piece) -> Tensor:
        """Gather the columns, for a causal piece those up to its end."""
        return self._columns(x, piece).flatten(2, 3)[:, None, None]

    def mask(self, real: Tensor, piece: Piece) -> Tensor:
        """Return the pairs with the columns of all blocks, or of earlier ones."""
        mask = self.gather(real, piece).mT
        if not self.causal:
            return mask
        block = torch.arange(piece.places.stop, device=real.device) // self.block
        key = block.unflatten(0, (-1, self.block))[:, self.columns].flatten()
        return mask & (key < block[piece.places, None])

    def place(self, piece: Piece) -> tuple[int, ...]:
        """Return (), or the places of a causal piece."""
        if not self.causal:
            return ()
        return piece.batch.stop - piece.batch.start, piece.places.start, piece.places.stop

    def add(self, sums: Tensor, before: int, grad: Tensor, piece: Piece) -> None:
        """Add the gradients of the columns."""
        view = self._columns(sums[:, :, before : before + self.length], piece)
        view.add_(grad.unflatten(2, view.shape[2:4]))

    def _columns(self, x: Tensor, piece: Piece) -> Tensor:
        """Return the columns of rows (B, H, T, D) as a view, (b, H, blocks, columns, D)."""
        stop = piece.places.stop if self.causal else self.length
        blocks = x[piece.batch, :, :stop].unflatten(2, (-1, self.block))
        return blocks[:, :, :, self.columns]


KeySet = RunSet | ColumnSet


def causal_step(units: int) -> int:
    """Return the units of queries computed together, which skip most of the units after them."""
    return -(-units // min(8, max(1, units // 8)))


def _ranges(start: int, stop: int, step: int) -> list[slice]:
    """Divide a range into ranges of a step, which is at least one."""
    step = max(step, 1)
    return [slice(first, min(first + step, stop)) for first in range(start, stop, step)]
