"""Reformer, Kitaev et al. 2020 (https://arxiv.org/abs/2001.04451), section 2.

    out_i = sum_r exp(L_ir - logsumexp_r L_ir) o_ir
    o_ir, L_ir = softmax attention of u_i over its keys k_j = u_j / |u_j| of round r, its log total

Queries and keys are one projection u = q; `k` is not read. In each of `rounds` rounds tokens are
hashed, sorted by (bucket, position) and cut into chunks of `chunk` slots; a query attends to its
chunk and the one before. Together that is one softmax of S_ij + log N_ij, where N_ij counts the
rounds in which i meets j (`dedupe`: each pair once, the paper's - log N; `same_bucket`: only
within a bucket, its equation 2). A token is its own key only where it has no other. `scale`
"root" is S = u.k / sqrt D (reformer-pytorch), "none" is u.k (Trax, transformers).

What differs from the public code: padding is sorted behind all tokens and never attended; buckets
are counted from `max_length`, not from the first input; self is left out exactly, not by a
penalty; only with `wrap` does the first chunk look back, at the last one of the round before.
Causal: there, future tokens move the borders of chunks. Here chunks are cut within each bucket,
from its first token on, so that the past alone decides who is attended. Global tokens are in no
bucket: each is one more key of every query, and attends to all other tokens.
"""

from typing import Literal

import torch
import torch.nn.functional as F

from longspan.attention._chunks import chunk_attention, together
from longspan.attention._counts import counted, past_counts, softmax_of_counts
from longspan.attention._globals import global_part, global_tokens, with_global_rows
from longspan.attention._hashing import RotationHash, sorted_chunks
from longspan.attention._kernelised import wide
from longspan.attention.base import Attention, Traits, joined, register
from longspan.errors import OptionError

EPSILON = 1e-6  # added to the mean square of u, as in Trax and transformers


@register("reformer", knob="chunk")
class ReformerAttention(Attention):
    """Each token attends to tokens whose hash is near its own."""

    traits = Traits(
        paper="Kitaev et al. 2020, https://arxiv.org/abs/2001.04451",
        cost="T",
        exact=False,
        causal=True,
        global_tokens=True,
        reads="qv",
        sizes=("heads", "head_dim", "max_length", "layer"),
    )
    small = {"chunk": 4, "rounds": 2}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        max_length: int,
        layer: int = 0,
        chunk: int = 64,
        rounds: int = 2,
        buckets: int | None = None,
        scale: Literal["root", "none"] = "root",
        dedupe: bool = False,
        same_bucket: bool = False,
        wrap: bool = False,
        seed: int = 0,
        causal: bool = False,
    ):
        """Draw the hashes from (seed, layer); `buckets=None` is about 2 max_length / chunk."""
        super().__init__()
        if chunk < 1 or rounds < 1:
            raise OptionError(f"reformer needs chunk, rounds >= 1, got {chunk}, {rounds}")
        if scale not in ("root", "none"):
            raise OptionError(f"reformer has the scales root and none, got {scale!r}")
        if wrap and (causal or same_bucket):
            raise OptionError("reformer: a bucket does not wrap; leave wrap or the other option")
        if buckets is None:
            buckets = 1 << max(1, (2 * max_length // chunk).bit_length() - 1)
        self.hash = RotationHash(heads, head_dim, rounds, buckets, seed * 1_000_003 + layer)
        self.causal, self.chunk, self.scale, self.dedupe = causal, chunk, scale, dedupe
        self.kinds = {"causal": causal, "same_bucket": same_bucket, "wrap": wrap}

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: the rotations belong to these heads and this width."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        expected, got = tuple(self.hash.rotations.shape[:2]), (q.shape[1], q.shape[3])
        if got != expected:
            reasons.append(f"it was built for (heads, head_dim) = {expected}, got {got}")
        return reasons

    def table(self, u, local):
        """Who meets whom among the local tokens (B, T): those that are real and not global."""
        chunk = min(self.chunk, u.shape[2])
        pad = (0, -u.shape[2] % chunk)
        return sorted_chunks(F.pad(self.hash(u), pad), F.pad(local, pad), chunk, **self.kinds)

    def _queries_and_keys(self, u):
        """Queries with S = q.k / sqrt D whatever the scale, and the keys u / |u|."""
        D, x = u.shape[-1], wide(u)
        k = x * (x.square().sum(-1, keepdim=True) + D * EPSILON).rsqrt()
        return (u * D**0.5 if self.scale == "none" else u), k.to(u.dtype)

    def attend(self, q, k, v, key_mask, global_mask):
        """Attend in the chunks of each round; merge the rounds, and the global keys."""
        u, (q, k) = q, self._queries_and_keys(q)
        chosen = global_tokens((), k, v, key_mask, global_mask)
        local = key_mask if chosen is None else chosen.local_keys(key_mask)
        local = u.new_ones(1, u.shape[2], dtype=torch.bool) if local is None else local
        parts = chunk_attention(q, k, v, self.table(u, local), self.dedupe)
        if chosen is None:
            return together(parts, v)
        out = together([*parts, global_part(q, chosen, self.causal)], v)
        return with_global_rows(out, q, k, v, chosen, key_mask, self.causal, itself=False)

    def advance(self, q, k, v, key_mask, cache):
        """Keep what is read, and its buckets; a few new tokens look up whom they meet."""
        new = {"k": q, "v": v, "bucket": self.hash(q).movedim(0, -1)}
        state, T = joined(cache, new, key_mask), q.shape[2]
        u, v, real = state["k"], state["v"], state.get("real")
        if cache is None or self.chunk < T:
            return self.attend(u, None, v, real, None)[:, :, -T:], state
        N = past_counts(state["bucket"].movedim(-1, 0), real, self.chunk, T)
        u, k = self._queries_and_keys(u)
        scores = u[:, :, -T:] @ k.mT * u.shape[-1] ** -0.5
        return softmax_of_counts(scores, v, N.clamp(max=1) if self.dedupe else N), state

    def reference(self, q, k, v, key_mask, global_mask):
        """softmax(S + log N) over all pairs, N counted by hand."""
        real = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if key_mask is None else key_mask
        is_global = torch.zeros_like(real) if global_mask is None else global_mask & real
        N = counted(self.hash.by_hand(q), real & ~is_global, self.chunk, **self.kinds)
        N = N.clamp(max=1) if self.dedupe else N
        pairs = (is_global[:, :, None] | is_global[:, None]) & real[:, None]
        pairs = (pairs.tril() if self.causal else pairs)[:, None]
        k = q / (q.square().mean(-1, keepdim=True) + EPSILON).sqrt() / q.shape[-1] ** 0.5
        scores = q @ k.mT / (q.shape[-1] ** 0.5 if self.scale == "root" else 1)
        return softmax_of_counts(scores, v, torch.where(pairs, 1, N))

    def flops(self, T, head_dim):
        """Hashing, and two products over the runs of each round."""
        _, _, rounds, directions = self.hash.rotations.shape
        chunk = min(self.chunk, T)
        return 2 * rounds * T * head_dim * (directions + 2 * chunk * (2 + self.causal))
