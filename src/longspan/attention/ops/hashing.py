"""Locality-sensitive hashing: buckets of vectors, and the resulting sorted order of a sequence.

    bucket(u) = argmax [u G ; -u G],   G Gaussian     (Andoni et al. 2015, arxiv.org/abs/1509.02897)

Letters: R hash hashes, N tokens padded to whole chunks of c, C = N / c chunks, W keys in a run (a
chunk and the `back` chunks before it). A slot is a position in the sorted order of a round.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.masking import score_bias
from longspan.attention.ops.draws import draw_normal, to_defaults
from longspan.attention.ops.precision import at_least_float32
from longspan.errors import OptionError

LARGEST = 128  # buckets of one hash; more need a product of hashes, or hashing would cost T x T


def _factors(buckets: int) -> list[int]:
    if buckets <= LARGEST:
        return [buckets]
    power = buckets.bit_length() - 1
    return _factors(1 << power // 2) + _factors(1 << (power + 1) // 2)


def _sizes(buckets: int) -> list[int]:
    """Return the sizes of the hashes for a number of buckets."""
    if buckets < 2 or buckets % 2 or (buckets > LARGEST and buckets.bit_count() > 1):
        expected = f"an even number, above {LARGEST} a power of two"
        raise OptionError(f"option buckets must be {expected}; got {buckets}")
    return _factors(buckets)


class RotationHash(nn.Module):
    """Buckets from random directions, separate for every head and round."""

    rotations: Tensor
    drawn_buffers = ("rotations",)

    def __init__(
        self,
        heads: int,
        head_dim: int,
        hashes: int,
        buckets: int | list[int],
        seed: int,
        *,
        saved: bool = True,
    ):
        """Draw the directions (heads, head_dim, hashes, sum of the hashes' sizes / 2).

        Args:
            heads: number of heads.
            head_dim: width of the vectors.
            hashes: number of rounds.
            buckets: buckets of a round, or the sizes of the hashes whose product they are.
            seed: seed of the draw.
            saved: whether checkpoints hold the directions; if not, they are drawn again.

        Raises:
            OptionError: the number of buckets is not supported.
        """
        super().__init__()
        self.sizes = buckets if isinstance(buckets, list) else _sizes(buckets)
        if not self.sizes or any(size < 2 or size % 2 for size in self.sizes):
            raise OptionError(f"option buckets must be a list of even numbers; got {buckets}")
        shape = (heads, head_dim, hashes, sum(self.sizes) // 2)
        generator = torch.Generator().manual_seed(seed)
        drawn = draw_normal(shape, generator, torch.get_default_dtype())
        self.register_buffer("rotations", to_defaults(drawn), persistent=saved)

    def forward(self, u: Tensor) -> Tensor:
        """Return the bucket of each vector (B, H, T, D) per round, (R, B, H, T); no gradient."""
        # Rounding to half precision would change the bucket of some vectors.
        u = at_least_float32(u.detach())
        turned = u @ self.rotations.flatten(2).to(u.dtype)
        turned = turned.unflatten(-1, self.rotations.shape[2:])
        bucket = torch.zeros((), dtype=torch.long, device=u.device)
        for size, x in self._each_hash(turned):
            axis = x.abs().argmax(-1, keepdim=True)
            side = axis + size // 2 * (x.gather(-1, axis) < 0)
            bucket = bucket * size + side[..., 0]
        return bucket.movedim(-1, 0).contiguous()

    def reference(self, u: Tensor) -> Tensor:
        """Compute the same as in the formula."""
        bucket = torch.zeros((), dtype=torch.long, device=u.device)
        for size, x in self._each_hash(torch.einsum("bhtd,hdrn->rbhtn", u, self.rotations)):
            bucket = bucket * size + torch.cat([x, -x], -1).argmax(-1)
        return bucket

    def _each_hash(self, turned: Tensor):
        """Return size and projections of each hash, least significant first."""
        parts = turned.split([size // 2 for size in self.sizes], -1)
        return reversed(list(zip(self.sizes, parts, strict=True)))


class SortTable(NamedTuple):
    """Pairs that attend to each other: the tokens of each row sorted by bucket, once per round.

    The query in a slot attends to the tokens in slots low..high-1 of its round, except itself. With
    `wrap` the queries of the first chunk also attend to the last chunk of the previous round.

    Attributes:
        chunk: slots per chunk.
        back: chunks before its own that a query can reach.
        wrap: whether the first chunk looks back to the previous round.
        past: whether a query attends to earlier tokens only, wherever their slots are.
        present: number of tokens that take part (B, 1); they occupy the first slots.
        last: chunk that precedes the first one of the next round (B, 1).
        order: token in each slot (R, B, H, N).
        slot: slot of each token (R, B, H, N).
        low: first slot that each slot attends to (R or 1, B or 1, H or 1, N).
        high: end of those slots (R or 1, B, H or 1, N); zero where there is no query.
    """

    chunk: int
    back: int
    wrap: bool
    past: bool
    present: Tensor
    last: Tensor
    order: Tensor
    slot: Tensor
    low: Tensor
    high: Tensor

    def chunks(self) -> Tensor:
        """Return the queries: tokens of each chunk, (R, B, H, C, c)."""
        return self.order.unflatten(-1, (self.order.shape[-1] // self.chunk, self.chunk))

    def runs(self) -> Tensor:
        """Return the keys: tokens of each chunk after those of earlier chunks, (R, B, H, C, W).

        Chunk `last` of the previous round precedes the first chunk.
        """
        chunks = self.chunks()
        last = self.last[None, :, :, None, None].expand(*chunks.shape[:3], 1, self.chunk)
        front = chunks.roll(1, 0).gather(3, last)
        chunks = torch.cat([front] * self.back + [chunks], 3)
        return chunks.unfold(3, self.back + 1, 1).mT.flatten(-2)

    def take_round(self, number: int) -> "SortTable":
        """Return the table with the pairs that `allowed` returns of one round only."""
        low, high = (x[number, None] if len(x) > 1 else x for x in (self.low, self.high))
        return self._replace(low=low, high=high)

    def places(self) -> Tensor:
        """Return the positions of each token in `runs`, as flat indices, (R, back + 1, B, H, N).

        A token with fewer positions gets extra ones that no query attends to.
        """
        R, B, H, N = self.slot.shape
        W = (self.back + 1) * self.chunk
        rows = torch.arange(R * B * H, device=self.slot.device).view(R, B, H, 1)
        start = rows * (N // self.chunk * W)
        chunk, within = self.slot // self.chunk, self.slot % self.chunk
        position = start + chunk * W + self.back * self.chunk + within
        positions = [position]
        for j in range(1, self.back + 1):
            later, front = position + j * (W - self.chunk), start.roll(-1, 0) + within
            later = torch.where(chunk + j <= self.last[:, :, None], later, front)
            positions.append(torch.where(self.slot < self.present[:, :, None], later, position))
        return torch.stack(positions, 1)

    def allowed(self, queries: Tensor, keys: Tensor, start: int = 0) -> Tensor:
        """Return which keys of its run each query attends to, (R|1, B, H|1, C', c, W).

        Args:
            queries: consecutive chunks of `chunks`, (R, B, H, C', c).
            keys: those of `runs`, (R, B, H, C', W).
            start: number of the first of these chunks.
        """
        c, device, chunks = self.chunk, self.order.device, slice(start, start + queries.shape[3])
        slot = torch.arange(chunks.start * c, chunks.stop * c, device=device)
        slot = slot.view(queries.shape[3], c)
        column = torch.arange((self.back + 1) * c, device=device)
        key = slot[:, :1] - self.back * c + column
        bounds = (x.unflatten(-1, (x.shape[-1] // c, c)) for x in (self.low, self.high))
        low, high = (x[..., chunks, :, None] for x in bounds)
        in_run = (low <= key[:, None]) & (key[:, None] < high)
        if not self.wrap:
            return in_run & (key[:, None] != slot[..., None])
        tail = (column < c) & (self.last * c + column < self.present)  # B W
        tail = (key[:, None] < 0) & tail[:, None, None, None] & (high > 0)
        keys, queries = keys[..., None, :], queries[..., None]
        return (in_run | tail) & (keys < queries if self.past else keys != queries)

    def count_pairs(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Count how often queries attend to keys over all rounds.

        Args:
            queries: tokens (R', B, H, C', Q).
            keys: tokens that take part, (R', B, H, C', K).

        Returns:
            Counts (R', B, H, C', Q, K); a token counts with itself as with others.
        """
        low, high = (x.expand_as(self.slot).gather(-1, self.slot) for x in (self.low, self.high))
        low, high, slot = (_at(queries, x)[..., None] for x in (low, high, self.slot))
        key = _at(keys, self.slot)[..., None, :]
        attended = ((low <= key) & (key < high)).sum(0)
        if not self.wrap:
            return attended
        key, end = key.roll(1, 0), (self.last * self.chunk)[:, :, None, None, None]
        tail = (key >= end) & (key < self.present[:, :, None, None, None])
        attended = attended + (tail & (slot < self.chunk) & (high > 0)).sum(0)
        return attended * (keys[..., None, :] < queries[..., None]) if self.past else attended

    def counts(self) -> Tensor:
        """Return N_ij, how often query i attends to key j, (B, H, N, N); dense, for tests."""
        N = self.slot.shape[-1]
        token = torch.arange(N, device=self.slot.device).expand(1, *self.slot.shape[1:3], 1, N)
        attended = self.count_pairs(token, token)[0, :, :, 0]
        return attended * ~torch.eye(N, dtype=torch.bool, device=attended.device)


def bias_with_itself(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias of chunks and their runs; a token itself counts if no other key does.

    Its bias is between those of other keys, a quarter of the lowest number above the hidden ones.
    """
    c, W = allowed.shape[-2:]
    itself = F.pad(torch.eye(c, dtype=dtype, device=allowed.device), (W - c, 0))
    return score_bias(allowed, dtype) + itself * (torch.finfo(dtype).max / 8 * 3)


def _at(tokens: Tensor, x: Tensor) -> Tensor:
    """Look up values x (R, B, H, N) at tokens (R', B, H, C', K): (R, R', B, H, C', K)."""
    index = tokens.flatten(3).expand(x.shape[0], *tokens.flatten(3).shape)
    x = x[:, None].expand(-1, tokens.shape[0], -1, -1, -1)
    return x.gather(-1, index).unflatten(-1, tokens.shape[3:])


def sort_into_chunks(
    bucket: Tensor,
    real: Tensor,
    chunk: int,
    *,
    causal: bool,
    same_bucket: bool,
    wrap: bool,
    grid: int | None = None,
) -> SortTable:
    """Sort by (bucket, position) and divide into chunks.

    Args:
        bucket: bucket of each token in each round (R, B, H, N).
        real: True at tokens that take part (B, N); the others are sorted last.
        chunk: slots of a chunk, a divisor of N.
        causal: divide each bucket separately, from its first token: a query attends to earlier
            tokens of its bucket, in its chunk of the bucket and the one before. Chunk boundaries
            are then independent of later tokens.
        same_bucket: attend within buckets only.
        wrap: see `SortTable`.
        grid: number that divides N; the last chunk is then that of all slots, even if it is empty,
            and causal chunks are those of all tokens, of which later ones are hidden. None: the
            last chunk is that of the last token.
    """
    N = bucket.shape[-1]
    slots = torch.arange(N, device=bucket.device)
    bucket = torch.where(real[:, None], bucket, bucket.new_tensor(torch.iinfo(torch.int32).max))
    key = (bucket * N + slots).sort(-1).values
    order, bucket = key % N, key // N
    slot = torch.empty_like(order).scatter_(-1, order, slots.expand_as(order))
    present = real.sum(1, keepdim=True)
    end = present if grid is None else torch.full_like(present, N)
    last, past = (end - 1).clamp(min=0) // chunk, causal and grid is not None
    first = slots // chunk * chunk
    low, high = (first - chunk).clamp(min=0).view(1, 1, 1, N), first + chunk
    if causal and not past:
        begin = torch.searchsorted(bucket, bucket)
        number = (slots - begin) // chunk
        low, high = begin + (number - 1).clamp(min=0) * chunk, slots
    elif same_bucket:
        low = torch.maximum(low, torch.searchsorted(bucket, bucket))
        high = torch.minimum(high, torch.searchsorted(bucket, bucket, right=True))
    within = present[:, :, None]
    high = torch.minimum(high, within).where(slots < within, 0)
    high = high.view(-1, *high.shape[-3:])
    back = 1 + (causal and not past)
    return SortTable(chunk, back, wrap, past, present, last, order, slot, low, high)


class RecentTokens:
    """Places of the last 2 c tokens of each bucket, in a ring, and the number of its tokens.

    With causal chunks a token attends to at most 2 c - 1 earlier ones of its bucket, those of its
    chunk of the bucket and of the one before, so a step needs no other place. `append` changes the
    object, so only one sequence of steps may use it.
    """

    def __init__(self, bucket: Tensor, real: Tensor | None, chunk: int, buckets: int):
        """Collect the tokens so far.

        Args:
            bucket: bucket of each token in each round (B, H, S, R).
            real: True at tokens that take part (B, S), or None for all.
            chunk: tokens per chunk, c.
            buckets: number of buckets.
        """
        self.ring, self.chunk, self.buckets = 2 * chunk, chunk, buckets
        token_bucket = self._of_real(bucket, real).mT  # B H R S
        S = token_bucket.shape[-1]
        place = torch.arange(S, device=token_bucket.device)
        order = (token_bucket * S + place).sort(-1).values
        token_bucket, place = order // S, order % S
        self.count = token_bucket.new_zeros(*token_bucket.shape[:3], buckets + 1)
        self.count.scatter_add_(-1, token_bucket, torch.ones_like(token_bucket))
        begin = (self.count.cumsum(-1) - self.count).gather(-1, token_bucket)
        rank = torch.arange(S, device=token_bucket.device) - begin
        is_last = rank >= self.count.gather(-1, token_bucket) - self.ring
        slot = (token_bucket * self.ring + rank % self.ring).where(is_last, buckets * self.ring)
        self.places = token_bucket.new_zeros(*token_bucket.shape[:3], (buckets + 1) * self.ring)
        self.places.scatter_(-1, slot, place)

    def _of_real(self, bucket: Tensor, real: Tensor | None) -> Tensor:
        """Return the buckets, with one more bucket for tokens that take no part."""
        return bucket if real is None else bucket.where(real[:, None, :, None], self.buckets)

    def append(self, bucket: Tensor, real: Tensor | None, place: int) -> tuple[Tensor, Tensor]:
        """Append tokens, and return the places of those that each of them attends to.

        Args:
            bucket: buckets of T new tokens (B, H, T, R).
            real: True at those that take part (B, T), or None for all.
            place: place of the first one.

        Returns:
            Places (B, H, T, R (2 c - 1)), a place once for each round, and True where there is one.
        """
        keys_by_token = []
        back = torch.arange(1, self.ring, device=bucket.device)
        for n, token_bucket in enumerate(self._of_real(bucket, real).split(1, 2)):
            token_bucket = token_bucket.mT  # B H R 1
            count = self.count.gather(-1, token_bucket)
            rank = count - back
            some = (rank >= 0) & (rank >= (count // self.chunk - 1) * self.chunk)
            places = self.places.gather(-1, token_bucket * self.ring + rank % self.ring)
            keys_by_token.append((places.flatten(2), some.flatten(2)))
            self.places.scatter_(-1, token_bucket * self.ring + count % self.ring, place + n)
            self.count.scatter_add_(-1, token_bucket, torch.ones_like(token_bucket))
        places, some = (torch.stack(x, 2) for x in zip(*keys_by_token, strict=True))
        return places, some


def count_once(places: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places (..., K) in order, and True at the first of equal ones."""
    places = places.where(some, -1).sort(-1).values
    again = F.pad(places[..., 1:] == places[..., :-1], (1, 0))
    return places, (places >= 0) & ~again
