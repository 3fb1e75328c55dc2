"""Latest tokens of every bucket, for steps of causal hashing (`hashing`).

Letters: R rounds, c tokens per chunk. A token attends to at most 2 c - 1 earlier ones of its
bucket: those of its chunk of the bucket, and of the chunk before.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class RecentTokens:
    """Places of the last 2 c tokens of each bucket, in a ring, and the number of its tokens.

    `append` changes the object, so only one sequence of steps may use it.
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
        own = self._of_real(bucket, real).mT  # B H R S
        S = own.shape[-1]
        place = torch.arange(S, device=own.device)
        order = (own * S + place).sort(-1).values
        own, place = order // S, order % S
        self.count = own.new_zeros(*own.shape[:3], buckets + 1)
        self.count.scatter_add_(-1, own, torch.ones_like(own))
        begin = (self.count.cumsum(-1) - self.count).gather(-1, own)
        rank = torch.arange(S, device=own.device) - begin
        is_last = rank >= self.count.gather(-1, own) - self.ring
        slot = (own * self.ring + rank % self.ring).where(is_last, buckets * self.ring)
        self.places = own.new_zeros(*own.shape[:3], (buckets + 1) * self.ring)
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
        found = []
        back = torch.arange(1, self.ring, device=bucket.device)
        for n, own in enumerate(self._of_real(bucket, real).split(1, 2)):
            own = own.mT  # B H R 1
            count = self.count.gather(-1, own)
            rank = count - back
            some = (rank >= 0) & (rank >= (count // self.chunk - 1) * self.chunk)
            places = self.places.gather(-1, own * self.ring + rank % self.ring)
            found.append((places.flatten(2), some.flatten(2)))
            self.places.scatter_(-1, own * self.ring + count % self.ring, place + n)
            self.count.scatter_add_(-1, own, torch.ones_like(own))
        places, some = (torch.stack(x, 2) for x in zip(*found, strict=True))
        return places, some


def count_once(places: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places (..., K) in order, and True at the first of equal ones."""
    places = places.where(some, -1).sort(-1).values
    again = F.pad(places[..., 1:] == places[..., :-1], (1, 0))
    return places, (places >= 0) & ~again
