"""Numbers added to scores that depend on the distance between a query and a key.

The distance of the pair (i, j) is i - j. A pattern has few distances, so the numbers are computed
for each distance and shifted to the keys, never for all T x T pairs.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from longspan.shapes import Float, Int


@dataclasses.dataclass(frozen=True)
class RelativeBias:
    """Bias of the scores that depends on the distance i - j, by head and possibly by query.

        b_ij = f(i - j),   or with `queries`   b_ij = a_i . f(i - j)

    Attributes:
        of_distance: f, from integers (R,) to numbers (H or 1, R), or with `queries` to vectors
            (H or 1, R, W). It is called for any distances; those of pairs that are not attended
            have no influence.
        queries: a, a vector for each head and query (B, H, T, W), or None.
    """

    of_distance: Callable[[Int[Tensor, " R"]], Tensor]
    queries: Float[Tensor, "B H T W"] | None = None

    def to(self, dtype: torch.dtype) -> "RelativeBias":
        """Return the same bias in another dtype."""
        queries = None if self.queries is None else self.queries.to(dtype)
        return RelativeBias(lambda distances: self.of_distance(distances).to(dtype), queries)

    def take_queries(self, piece: slice) -> "RelativeBias":
        """Return the bias of some queries."""
        if self.queries is None:
            return self
        return dataclasses.replace(self, queries=self.queries[:, :, piece])

    def take_heads(self, heads: list[int]) -> "RelativeBias":
        """Return the bias of some heads."""

        def of_distance(distances: Tensor) -> Tensor:
            values = self.of_distance(distances)
            return values if len(values) == 1 else values[heads]

        queries = None if self.queries is None else self.queries[:, heads]
        return RelativeBias(of_distance, queries)

    def all_pairs(self, T: int, S: int, device: torch.device) -> Float[Tensor, "#B #H T S"]:
        """Apply the formula to every pair, for references; the last query is at the last key."""
        distance = torch.arange(S - T, S, device=device)[:, None] - torch.arange(S, device=device)
        values = self.of_distance(distance.flatten()).unflatten(1, (T, S))
        if self.queries is None:
            return values[None]
        return (self.queries[:, :, :, None] * values).sum(-1)

    def shifted(self, T: int, S: int, causal: bool, device: torch.device) -> Tensor:
        """Return `all_pairs` from one number for each distance, in T x (T + S) numbers.

        If causal, later keys have the numbers of other pairs.
        """
        distances = torch.arange(S, -1 if causal else -T, -1, device=device)
        values = self.of_distance(distances)
        if self.queries is None:
            return shift_to_keys(values[:, None].expand(-1, T, -1), S)[None]
        return shift_to_keys(_products(self.queries, values), S)

    def runs(
        self, queries: Tensor | None, sizes: Sequence[int], step: int, device: torch.device
    ) -> Tensor:
        """Return the bias of blocks of queries and their runs of keys.

        Args:
            queries: `queries` in blocks (..., H, count, block, W), or None.
            sizes: block, left and right side of a run, see `BlockLayout`.
            step: positions from one query or key to the next.
            device: device of the result.

        Returns:
            Numbers (..., H or 1, count or 1, block, span).
        """
        block, left, right = sizes
        span = left + block + right
        distances = torch.arange(block + left, -block - right, -1, device=device) * step
        values = self.of_distance(distances)
        if queries is None:
            return shift_to_keys(values[:, None].expand(-1, block, -1), span)[None, :, None]
        return shift_to_keys(_products(queries, values), span)

    def between(
        self, queries: Int[Tensor, " T"], keys: Int[Tensor, " S"]
    ) -> Float[Tensor, "#B #H T S"]:
        """Return the bias of T queries and S keys at any positions.

        Every distance is computed once; the queries are those of the instance.
        """
        distance = queries[:, None] - keys
        if len(queries) == 1:
            values = self.of_distance(distance[0])
            if self.queries is None:
                return values[None, :, None]
            return _products(self.queries, values)
        distinct, entry = distance.unique(return_inverse=True)
        return _pick(self.of_distance(distinct), self.queries, entry[None])

    def rows(self, index: Int[Tensor, "B G"], T: int) -> Tensor:
        """Return the bias of the queries at `index`, (B, H or 1, G, T)."""
        queries = self.queries
        if queries is not None:
            places = index[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[3])
            queries = queries.gather(2, places)
        keys = torch.arange(T, device=index.device)
        return self._at(index[:, :, None] - keys, queries, T)

    def columns(self, index: Int[Tensor, "B G"], T: int) -> Tensor:
        """Return the bias of all queries for the keys at `index`, (B, H or 1, T, G)."""
        queries = torch.arange(T, device=index.device)[:, None]
        return self._at(queries - index[:, None], self.queries, T)

    def _at(self, distance: Tensor, queries: Tensor | None, T: int) -> Tensor:
        """Return the numbers of distances (B, X, Y) of X queries, all less than T."""
        values = self.of_distance(torch.arange(1 - T, T, device=distance.device))
        return _pick(values, queries, distance + T - 1)


def _products(queries: Tensor, values: Tensor) -> Tensor:
    """Return the products (B, H, ..., R) of vectors (B, H, ..., W) and (H or 1, R, W).

    A product with broadcast factors would copy those of the distances for each row and block.
    """
    if len(values) == 1:
        return queries @ values[0].mT
    rows = queries.transpose(0, 1)
    products = rows.flatten(1, -2) @ values.mT
    return products.unflatten(1, rows.shape[1:-1]).transpose(0, 1)


def _pick(values: Tensor, queries: Tensor | None, entry: Tensor) -> Tensor:
    """Return the numbers of X queries for the distances at `entry`.

    Args:
        values: numbers (H or 1, R) or vectors (H or 1, R, W) of R distances.
        queries: vectors (B, H, X, W), or None.
        entry: entries of `values` for each query (B or 1, X, Y).
    """
    rows, Y = values.shape[1], entry.shape[-1]
    if queries is not None and Y * values.shape[2] > rows:
        entry = entry[:, None].expand(*queries.shape[:3], Y)
        return _products(queries, values).gather(-1, entry)
    picked = values.index_select(1, entry.flatten()).unflatten(1, entry.shape).transpose(0, 1)
    return picked if queries is None else (queries[:, :, :, None] * picked).sum(-1)


def shift_to_keys(scores: Tensor, S: int) -> Tensor:
    """Convert scores by distance to scores by key, without a copy.

    Args:
        scores: (..., T, L + 1); column c of every row belongs to the distance S - c.
        S: number of keys; the last of the T queries is at the last key.

    Returns:
        A view (..., T, S) whose entry (i, j) is the score of the distance i - j. Distances beyond
        the columns read from the next row instead, and must be masked.
    """
    T, L = scores.shape[-2], scores.shape[-1] - 1
    # Row i begins T - 1 - i columns later than the last; rows one shorter move it by one each.
    return scores.flatten(-2)[..., T:].unflatten(-1, (T, L))[..., :S]
