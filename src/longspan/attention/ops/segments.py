"""Attention over segments, each of which sees itself and a memory of earlier tokens.

Segment boundaries are at multiples of `segment`, counted from the first token of the sequence. The
same code processes segments in one call or over many steps: a step continues the unfinished
segment of the previous one. A cache holds the memory and that segment.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import Attention, Cache, Inputs, append_tokens


class Rows(NamedTuple):
    """Keys, values and real mask (None: all real) of tokens or slots, in order."""

    k: Tensor  # B H S D
    v: Tensor  # B H S E
    real: Tensor | None  # B S

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.k.shape[2]

    def split(self, sizes: list[int]) -> list["Rows"]:
        """Split into consecutive parts; their gradients are concatenated once."""
        reals = [None] * len(sizes) if self.real is None else self.real.split(sizes, 1)
        parts = zip(self.k.split(sizes, 2), self.v.split(sizes, 2), reals, strict=True)
        return [Rows(*part) for part in parts]

    def first(self, count: int) -> "Rows":
        """Return the oldest rows, at most `count`."""
        real = None if self.real is None else self.real[:, :count]
        return Rows(self.k[:, :, :count], self.v[:, :, :count], real)

    def last(self, count: int) -> "Rows":
        """Return the newest rows, at most `count`."""
        older = max(0, self.size - count)
        return self.split([older, self.size - older])[1]

    def copy(self) -> "Rows":
        """Return a copy, which keeps no memory of other rows."""
        return Rows(
            self.k.clone(), self.v.clone(), None if self.real is None else self.real.clone()
        )

    def detach(self) -> "Rows":
        """Return the rows without autograd history."""
        return Rows(self.k.detach(), self.v.detach(), self.real)


def concat_rows(*parts: Rows) -> Rows:
    """Concatenate parts in order. Either all parts have a mask or none has."""
    filled = [part for part in parts if part.size] or [parts[0]]
    if len(filled) == 1:
        return filled[0]
    k, v = torch.cat([part.k for part in filled], 2), torch.cat([part.v for part in filled], 2)
    reals = [part.real for part in filled if part.real is not None]
    return Rows(k, v, torch.cat(reals, 1) if reals else None)


def _segment_lengths(T: int, segment: int) -> list[int]:
    """Return the lengths of the segments of T tokens."""
    # Products and differences, unlike a range, hold for all T of a count when they are traced.
    whole = -(-T // segment) - 1
    return [segment] * whole + [T - whole * segment]


def segment_mask(T: int, keys: Rows, causal: bool, reach: int | None = None) -> Tensor | None:
    """Return which keys the T newest of them may attend, (1 or B, 1, 1 or T, S), or None for all.

    Args:
        T: number of queries; their own keys are the newest.
        keys: memory and segment.
        causal: whether later keys are hidden.
        reach: number of keys that a token sees back, or None.
    """
    mask = None if keys.real is None else keys.real[:, None, None, :]
    if not causal and reach is None:
        return mask
    key = torch.arange(keys.size, device=keys.k.device)
    ahead = key - key[keys.size - T :, None]
    near = ahead <= 0 if causal else ahead < T
    if reach is not None:
        near = near & (ahead >= -reach)
    return near[None, None] if mask is None else mask & near


class SegmentAttention(Attention):
    """Attention segment by segment. A subclass defines how to attend and what to remember.

    A memory is a tuple of rows, oldest part first; its last part holds uncompressed tokens.

    Attributes:
        part_names: names of the parts of the memory, and of the segment.
    """

    loops_over_length = True
    part_names: ClassVar[tuple[str, ...]] = ("memory", "segment")

    def __init__(self, segment: int, memory: int, backprop_through_memory: bool, causal: bool):
        """Store the sizes, and whether gradients flow through the memory."""
        super().__init__()
        self.segment, self.memory, self.causal = segment, memory, causal
        self.backprop_through_memory = backprop_through_memory

    @property
    def span(self) -> int:
        """Maximum number of keys that a token can see."""
        return self.memory + self.segment

    @property
    def memory_tokens(self) -> int:
        """Maximum number of tokens before a segment that its memory stands for."""
        return self.memory

    @property
    def first_full(self) -> int:
        """First token of the first segment whose memory is full."""
        return -(-self.memory_tokens // self.segment) * self.segment

    def position_terms(self, x: Inputs, longest: int) -> Any:
        """Compute what all segments of a call share; they see at most `longest` keys."""
        raise TypeError(f"{type(self).__name__} does not define position_terms")

    def attend_segment(self, q: Tensor, keys: Rows, places: Any) -> Tensor:
        """Attend from tokens whose own keys are the newest of `keys`."""
        raise TypeError(f"{type(self).__name__} does not define attend_segment")

    def load_memory(self, rows: Rows, start: int, cache: Cache | None) -> tuple[Rows, ...]:
        """Return the memory of the segment at `start` from the cached rows before it."""
        return (rows,)

    def update_memory(
        self, memory: tuple[Rows, ...], current: Rows, q: Tensor, start: int
    ) -> tuple[Rows, ...]:
        """Return the memory after the segment at `start`, given all its rows and queries."""
        return (concat_rows(*memory, current).last(self.memory),)

    def cache_memory(self, memory: tuple[Rows, ...], q: Tensor | None) -> dict[str, Tensor]:
        """Return cached tensors other than the keys and values of tokens.

        Args:
            memory: memory of the unfinished segment.
            q: its queries so far, if the previous cache held them too; None at its start.
        """
        return {}

    def attend(self, x):
        """Attend segment by segment, each to its memory and itself."""
        return self.advance(x)[0]

    def bucket_weights(self, x: Inputs, buckets: int) -> dict[str, Tensor]:
        """Return the weight of each query on equal buckets of the keys of each part, by its name.

        Parts are memories and the query's own segment, the oldest tokens first, and so are their
        buckets. A part with fewer keys than buckets has one key in each of the first ones.

        Args:
            x: inputs of `attend`.
            buckets: number of buckets of each part.

        Returns:
            (B, H, T, buckets) by name of the part.
        """
        # A one at the bucket of each key is in the place of its value.
        attend = functools.partial(self._attend_buckets, buckets)
        mixed, _ = self._walk(attend, x)
        mixed = mixed.unflatten(-1, (-1, buckets))
        return dict(zip(self.part_names, mixed.unbind(-2), strict=True))

    def _attend_buckets(
        self, buckets: int, q: Tensor, parts: tuple[Rows, ...], places: Any
    ) -> Tensor:
        """Return the weight on the buckets of the parts of the keys, (B, H, T, P * buckets)."""
        keys = concat_rows(*parts)
        numbers = [
            place * buckets + torch.arange(part.size) * min(buckets, part.size) // part.size
            for place, part in enumerate(parts)
            if part.size
        ]
        ones = F.one_hot(torch.cat(numbers), buckets * len(parts)).to(q)
        v = ones.expand(*keys.k.shape[:2], *ones.shape)
        return self.attend_segment(q, keys._replace(v=v), places)

    def _attend_all(self, q: Tensor, parts: tuple[Rows, ...], places: Any) -> Tensor:
        """Return the output of a segment."""
        return self.attend_segment(q, concat_rows(*parts), places)

    def advance(self, x):
        """Continue the unfinished segment, then process segment after segment."""
        return self._walk(self._attend_all, x)

    def _walk(self, mix: Callable[..., Tensor], x: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return `mix` of the queries, memory and rows of each segment, and the new state."""
        (q, k, v, key_mask), cache, seen = x[:4], x.cache, x.before
        begun, T = seen % self.segment, q.shape[2]
        state = append_tokens(cache, {"k": k, "v": v}, key_mask)
        rows = Rows(state["k"], state["v"], state.get("real"))
        sizes = _segment_lengths(begun + T, self.segment)
        held, *segments = rows.split([rows.size - begun - T, *sizes])
        start, memory = seen - begun, self.load_memory(held, seen - begun, cache)
        longest = sum(part.size for part in memory) + begun + T
        places = self.position_terms(x, min(longest, self.span))
        queries = None if cache is None else cache.state.get("q")
        outs = []
        for new, current in zip(q.split([sizes[0] - begun, *sizes[1:]], 2), segments, strict=True):
            outs.append(mix(new, (*memory, current), places))
            queries = new if queries is None else torch.cat([queries, new], 2)
            if current.size == self.segment:
                memory = self.update_memory(memory, current, queries, start)
                if not self.backprop_through_memory:
                    memory = tuple(part.detach() for part in memory)
                start, current, queries = start + self.segment, current.last(0), None
        rows = concat_rows(memory[-1], current)
        if not (memory[-1].size and current.size):
            rows = rows.copy()  # it is one of the parts, a view of all tokens
        state = {"k": rows.k, "v": rows.v} | ({} if rows.real is None else {"real": rows.real})
        return torch.cat(outs, 2), state | self.cache_memory(memory, queries)

    def memory_length(self, start: int) -> int:
        """Return the number of memory keys that the segment at `start` sees."""
        return min(self.memory, start)

    def segment_widths(self, T: int) -> list[tuple[int, int]]:
        """Return (tokens, memory keys) of each segment of T tokens."""
        sizes = enumerate(_segment_lengths(T, self.segment))
        return [(size, self.memory_length(n * self.segment)) for n, size in sizes]

    def is_dense(self, T):
        """Return whether all tokens are in one segment, or causally in the last one's memory."""
        start = (T - 1) // self.segment * self.segment
        return start == 0 or (self.causal and self.memory >= start)

    def pairs(self, T):
        """Count each segment with its memory, and with itself (lower triangle if causal)."""
        self_pairs = (lambda n: n * (n + 1) // 2) if self.causal else (lambda n: n * n)
        return sum(size * past + self_pairs(size) for size, past in self.segment_widths(T))
