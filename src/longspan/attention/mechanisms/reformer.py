"""Reformer, Kitaev et al. 2020 (https://arxiv.org/abs/2001.04451), section 2.

    out_i = sum_r exp(L_ir - logsumexp_r L_ir) o_ir
    o_ir, L_ir = softmax attention of u_i over its keys k_j = u_j / |u_j| of round r, its log total

Queries and keys are one projection u = q; `k` is not used. In each hash round tokens are hashed,
sorted by (bucket, position) and divided into chunks of `chunk` slots; a query attends to its chunk
and the one before. The rounds together are one softmax of S_ij + log N_ij, where N_ij counts the
rounds in which i attends to j. A token attends to itself only if it has no other key.

Differences from the public code: padding is sorted after all tokens and never attended; the
number of buckets depends on `max_length`, not on the first input; self is excluded exactly, not by
a penalty; the first chunk looks back, at the last one of the previous round, only with `wrap`.
Causal: in public code, future tokens move chunk boundaries. Here chunks start at the first token of
each bucket, so that only the past decides who is attended. Global tokens are in no bucket: each is
one more key of every query, and attends to all other tokens. Option `grid` chooses the chunks of
transformers, which pads the row to a multiple of its chunk lengths, instead.
"""

import dataclasses
import itertools
import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longspan.attention.base import Attention, Inputs, Traits, append_tokens, register
from longspan.attention.derivatives import LinearFunction, apply_function
from longspan.attention.ops.chunk_pieces import chunk_softmax, is_piecewise
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.global_tokens import gather_global_tokens, replace_global_rows
from longspan.attention.ops.hashing import (
    RecentTokens,
    RotationHash,
    SortTable,
    bias_with_itself,
    count_once,
    sort_into_chunks,
)
from longspan.attention.ops.open_sizes import fit_block, pad_to_blocks, resize
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import biased_part, merge_parts, softmax_part
from longspan.attention.option_types import PositiveInt
from longspan.errors import OptionError

_EPSILON = 1e-6  # added to the mean square of u, as in Trax and transformers
FEW = 16  # a step is short if all tokens are at least as many times its own
# Latest tokens of the buckets of a state. The first step that continues the state takes them.
_RECENT = WeakTensorKeyDictionary()


@register("reformer", size_option="chunk")
class ReformerAttention(Attention):
    """Attention between tokens whose hashes are close."""

    traits = Traits(
        paper="Kitaev et al. 2020, https://arxiv.org/abs/2001.04451",
        family="learned pattern",
        cost="T",
        exact=False,
        causal=True,
        global_tokens=True,
        inputs="qv",
        sizes=("heads", "head_dim", "max_length", "layer"),
        mixes_queries=True,
        ignores_gaps=True,
    )
    small_options = {"chunk": 4, "hashes": 2}
    picture_options = {"chunk": 8}
    shared_state = ("v",)
    kinds: dict[str, Any]

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        max_length: int,
        layer: int = 0,
        chunk: PositiveInt = 64,
        hashes: PositiveInt = 2,
        buckets: PositiveInt | list[PositiveInt] | None = None,
        scale: Literal["root", "none"] = "root",
        dedupe: bool = False,
        same_bucket: bool = False,
        wrap: bool = False,
        grid: PositiveInt | None = None,
        seed: int = 0,
        same_hashes: bool = False,
        causal: bool = False,
    ):
        """Draw the hashes from (seed, layer), or from the seed alone.

        Args:
            chunk: slots per chunk.
            hashes: number of hash rounds.
            buckets: number of buckets, or the sizes of hashes whose product they are; None: about
                2 max_length / chunk.
            scale: "root": S = u.k / sqrt D (reformer-pytorch); "none": u.k (Trax, transformers).
            dedupe: whether each pair counts once, whatever N_ij (the paper's - log N).
            same_bucket: whether queries attend only within their bucket (equation 4).
            wrap: whether the first chunk looks back at the last one of the previous round.
            grid: multiple of `chunk` to which the row is padded before it is divided (transformers:
                the least common multiple of its chunk lengths). The first chunk then looks back at
                the last one, even if it is padding, and causal chunks begin where all tokens, also
                later ones, put them; padding moves chunks. None: chunks hold real tokens only.
            same_hashes: whether all layers draw the same hashes, those of transformers' `hash_seed`
                on CPU.
        """
        super().__init__()
        if wrap and (causal or same_bucket):
            raise OptionError("reformer: wrap=True excludes causal=True and same_bucket=True")
        if grid is not None and (grid % chunk or wrap or same_bucket):
            need = f"a multiple of {chunk=}, got {grid}; it excludes wrap=True, which it implies"
            raise OptionError(f"reformer: option grid must be {need}, and same_bucket=True")
        if buckets is None:
            buckets = 1 << max(1, (2 * max_length // chunk).bit_length() - 1)
        draw = seed if same_hashes else seed * 1_000_003 + layer
        # Hashes of transformers are no part of its checkpoints.
        self.hash = RotationHash(heads, head_dim, hashes, buckets, draw, saved=not same_hashes)
        self.built_for = {"heads": heads, "head_dim": head_dim}
        self.causal, self.chunk, self.scale, self.dedupe = causal, chunk, scale, dedupe
        self.traits = dataclasses.replace(type(self).traits, recomputes=grid is not None)
        self.grid, wrap = grid, wrap or grid is not None
        self.kinds = {"causal": causal, "same_bucket": same_bucket, "wrap": wrap, "grid": grid}

    def table(self, u, local):
        """Return the pairs that attend among the local tokens (B, T): real and not global."""
        chunk = fit_block(self.chunk, u.shape[2]) if self.grid is None else self.chunk
        bucket, local = (pad_to_blocks(x, self.grid or chunk, -1) for x in (self.hash(u), local))
        return sort_into_chunks(bucket, local, chunk, **self.kinds)

    def _queries_and_keys(self, u):
        """Return queries with S = q.k / sqrt D for either scale, and the keys u / |u|."""
        D, u = u.shape[-1], at_least_float32(u)
        k = u * (u.square().sum(-1, keepdim=True) + D * _EPSILON).rsqrt()
        return (u * D**0.5 if self.scale == "none" else u), k

    def attend(self, x):
        """Attend in the chunks of each round, and to the global keys."""
        u, _, v, key_mask = x[:4]
        q, k = self._queries_and_keys(u)
        x = x._replace(q=q, k=k)
        global_tokens = gather_global_tokens((), x, self.max_global_tokens)
        local = key_mask if global_tokens is None else global_tokens.local_keys(key_mask)
        local = u.new_ones(1, u.shape[2], dtype=torch.bool) if local is None else local
        table = self.table(u, local)
        if global_tokens is None:
            return _chunk_attention(q, k, v, table, self.dedupe)
        mask = global_tokens.slot_mask(table.slot.shape[3], self.causal)
        global_keys = global_tokens.k, global_tokens.v, mask
        out = _chunk_attention(q, k, v, table, self.dedupe, *global_keys)
        return replace_global_rows(out, x, global_tokens, self.causal, itself=False)

    def advance(self, x):
        """Keep all tokens and buckets; a few new tokens gather the keys of their buckets."""
        (q, _, v, key_mask), cache = x[:4], x.cache
        new = {"k": q, "v": v, "bucket": self.hash(q).movedim(0, -1)}
        state, T = append_tokens(cache, new, key_mask, grows=True), q.shape[2]
        u, v, length = state["k"], state["v"], state["k"].shape[2]
        if cache is None or length < FEW * T or self.grid is not None:
            return self.attend(Inputs(u, u, v, state.get("real")))[:, :, -T:], state
        places, some = self._past_keys(cache, state, new["bucket"], key_mask)
        # A token attends to itself only if it has no other key.
        itself = torch.arange(length - T, length, device=u.device)[:, None].expand(*q.shape[:3], 1)
        places = torch.cat([places, itself], 3)
        some = torch.cat([some, ~some.any(-1, keepdim=True)], 3)

        def keys(u: Tensor) -> Tensor:
            return self._queries_and_keys(u)[1]

        return gathered_softmax(self._queries_and_keys(q)[0], u, v, places, some, None, keys), state

    def _past_keys(self, cache, state, bucket, key_mask) -> tuple[Tensor, Tensor]:
        """Return the places of the earlier keys of new tokens, and True where there is one."""
        before, traced = cache.state["bucket"], torch.compiler.is_compiling()
        recent = None if traced else _RECENT.pop(before, None)
        if recent is None:
            buckets = math.prod(self.hash.sizes)
            recent = RecentTokens(before, cache.state.get("real"), self.chunk, buckets)
        keys = recent.append(bucket, key_mask, before.shape[2])
        if not traced:
            _RECENT[state["bucket"]] = recent
        return count_once(*keys) if self.dedupe else keys

    def reference(self, x):
        """Compute softmax(S + log N) over all pairs, with N counted in Python."""
        (q, _, v), real = x[:3], x.real.expand(len(x.q), -1)
        is_global = torch.zeros_like(real) if x.global_mask is None else x.global_mask & real
        N = count_pairs_reference(
            self.hash.reference(q), real & ~is_global, self.chunk, **self.kinds
        )
        N = N.clamp(max=1) if self.dedupe else N
        pairs = (is_global[:, :, None] | is_global[:, None]) & real[:, None]
        pairs = (pairs.tril() if self.causal else pairs)[:, None]
        k = q / (q.square().mean(-1, keepdim=True) + _EPSILON).sqrt() / q.shape[-1] ** 0.5
        scores = q @ k.mT / (q.shape[-1] ** 0.5 if self.scale == "root" else 1)
        return _softmax_with_counts(scores, v, torch.where(pairs, 1, N))

    def is_dense(self, T):
        """Return whether a chunk and the one before it are all keys."""
        return 2 * self.chunk >= T

    def flops(self, T, head_dim):
        """Count hashing, and two products over the runs of each round."""
        _, _, hashes, directions = self.hash.rotations.shape
        chunk = min(self.chunk, T)
        runs = 2 + (self.causal and self.grid is None)
        return 2 * hashes * T * head_dim * (directions + 2 * chunk * runs)


class _GatherRows(LinearFunction):
    """Gather rows of x (..., D) by flat index (...); the gradient is a gather too, not a scatter.

    `places` (M, ...) holds the M positions of each row of x in the result, as flat indices.
    """

    @staticmethod
    def forward(x: Tensor, index: Tensor, places: Tensor) -> Tensor:
        return _gather(x.flatten(0, -2), index)

    @staticmethod
    def backward(ctx, grad: Tensor):
        places = ctx.saved_tensors[1]
        rows, (first, *later) = grad.flatten(0, -2), places
        total = _gather(rows, first)
        for place in later:
            total = total + _gather(rows, place)
        return total, None, None


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[-1])


def _chunk_attention(
    q: Tensor, k: Tensor, v: Tensor, table: SortTable, dedupe: bool, *global_keys: Tensor
) -> Tensor:
    """Compute softmax attention over the pairs of all rounds, and over other keys.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, T, D).
        v: values (B, H, T, E).
        table: pairs that attend, for T tokens padded to N.
        dedupe: whether the weight of a pair is divided by the number of its rounds.
        global_keys: nothing, or keys and values of all queries, and a mask (B, 1, N or 1, G).
    """
    T, extra, allowed = q.shape[2], global_keys[:2], global_keys[2] if global_keys else None
    q, k, v = (resize(x, table.slot.shape[3]) for x in (q, k, v))

    def rows(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        parts = _all_chunks(q, k, v, table, dedupe)
        if extra:
            parts.append(softmax_part(q, extra[0], extra[1], allowed))
        return merge_parts(parts)

    if is_piecewise(q, k, v, table.chunk):
        return resize(chunk_softmax((q, k, v), extra, table, dedupe, allowed, rows), T)
    return resize(rows(q, k, v, *extra), T)


def _all_chunks(
    q: Tensor, k: Tensor, v: Tensor, table: SortTable, dedupe: bool
) -> list[tuple[Tensor, Tensor]]:
    """Compute rows and their log weights of each round, all chunks at once, for `merge_parts`."""
    R, B, H, N = table.slot.shape
    row = torch.arange(R * B * H, device=q.device).view(R, B, H, 1) * N
    slots, queries, runs = table.slot + row, table.chunks(), table.runs()
    places, first = table.places().flatten(0, 1), row[:1, ..., None]
    q = apply_function(_GatherRows, q, queries + first, slots)
    k, v = (apply_function(_GatherRows, x, runs + first, places) for x in (k, v))
    bias = bias_with_itself(table.allowed(queries, runs), q.dtype)
    if dedupe:
        bias = bias - table.count_pairs(queries, runs).clamp(min=1).to(q.dtype).log()
    back = (queries + row[..., None])[None]
    part = (apply_function(_GatherRows, x, slots, back) for x in biased_part(q, k, v, bias))
    return list(zip(*part, strict=True))


def _softmax_with_counts(scores: Tensor, v: Tensor, counts: Tensor) -> Tensor:
    """Mix v by softmax(scores + log counts); a token attends to itself only if it has no other key.

    Args:
        scores: last T of S tokens against all of them (B, H, T, S).
        v: values (B, H, S, E).
        counts: number of rounds in which they attend (B, H, T, S).
    """
    T, S = counts.shape[-2:]
    itself = torch.arange(S - T, S)[:, None] == torch.arange(S)
    counts = counts.masked_fill(itself.to(counts.device), 0)
    counts = counts + itself.to(counts.device) * (counts.sum(-1, keepdim=True) == 0)
    weights = (at_least_float32(scores) + counts.to(at_least_float32(scores).dtype).log()).softmax(
        -1
    )
    return weights.to(v.dtype) @ v


def count_pairs_reference(
    bucket: Tensor,
    real: Tensor,
    chunk: int,
    *,
    causal: bool,
    same_bucket: bool,
    wrap: bool,
    grid: int | None,
) -> Tensor:
    """Compute `sort_into_chunks(...).counts()` in Python, list by list, for the reference."""
    R, B, H, T = bucket.shape
    counts = torch.zeros(B, H, T, T, dtype=torch.long)
    per_bucket = causal and grid is None
    end = None if grid is None else -(-T // grid) * grid - chunk  # slot where the last chunk begins
    for b, h in itertools.product(range(B), range(H)):
        tokens = [i for i in range(T) if real[b, i]]
        rounds = [_grouped(tokens, bucket[r, b, h].tolist(), chunk, per_bucket) for r in range(R)]
        for r, groups in enumerate(rounds):
            last = rounds[r - 1][-1][-1] if wrap and tokens else []
            last = last if end is None or len(tokens) > end else []
            attended = sum(
                (_count_adjacent(group, last, T) for group in groups),
                torch.zeros_like(counts[b, h]),
            )
            if same_bucket:
                attended = attended * (bucket[r, b, h, :, None] == bucket[r, b, h]).cpu()
            counts[b, h] += attended.tril() if causal else attended
    return (counts * (1 - torch.eye(T, dtype=torch.long))).to(bucket.device)


def _grouped(tokens: list[int], bucket: list[int], chunk: int, per_bucket: bool) -> list[list]:
    """Sort tokens by bucket and divide them into chunks, per bucket or all together."""
    order = sorted(tokens, key=lambda i: bucket[i])
    groups = [order]
    if per_bucket:
        groups = [list(group) for _, group in itertools.groupby(order, lambda i: bucket[i])]
    return [[g[i : i + chunk] for i in range(0, len(g), chunk)] for g in groups]


def _count_adjacent(chunks: list[list[int]], before: list[int], T: int) -> Tensor:
    """Count how often i attends to j in these chunks, each with the chunk before it, (T, T)."""
    attended = torch.zeros(T, T, dtype=torch.long)
    for chunk in chunks:
        rows = torch.tensor(chunk)[:, None]
        for keys in (chunk, before):
            attended[rows, torch.tensor(keys, dtype=torch.long)] += 1
        before = chunk
    return attended
