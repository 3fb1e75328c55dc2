"""Compressive Transformer, Rae et al. 2020 (https://arxiv.org/abs/1911.05507), section 3.

    out_i = sum_j softmax_j(((q_i + u) . k_j + (q_i + w) . r_(i-j)) / sqrt(D)) v_j

over [C; M; h]: h the segment of i (up to i when causal), M the `memory` tokens before it, C at most
`compressed_memory` slots of `ratio` c tokens each, from before those; u, w, r as in Transformer-XL,
distances along [C; M; h], with one position per slot. After each segment the rows that leave M
form groups of c, counted from the first token; f_c (`compression`) turns each group into a slot.
Rows of an incomplete group stay in M: any segment, memory and ratio can be combined.

No gradient flows back into M and C (unless `backprop_through_memory`), so f_c learns only from
`reconstruction_loss` or `autoencoding_loss`, and nothing else learns from these losses. Both take
the arguments of `forward`, change no state, and are zero while no row has left the memory.

Padded rows take no part: they are excluded from a maximum, a mean and a choice, and are zeros in a
product. A slot is real if one of its rows is.

Differences from the paper: memories hold keys and values of each head, and f_c applies to those;
the paper compresses the states they are projected from (for the mean it is the same). Most used
means: in each group and head the row of largest weight, in content attention, from the last segment
that had it in M (the paper preserves the most used of all rows that leave).
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Cache, Inputs, Traits, append_tokens, register
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.precision import at_least_float32, dot_products
from longspan.attention.ops.relative_positions import RelativeAttention
from longspan.attention.ops.segments import Rows, concat_rows
from longspan.attention.ops.softmax import softmax_attention
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.errors import InputError, OptionError
from longspan.shapes import Bool, Float

Kind = Literal["max", "mean", "conv", "dilated", "most_used"]


@register("compressive", size_option="memory")
class CompressiveAttention(RelativeAttention):
    """Attention to a segment, the tokens before it, and slots of older tokens."""

    traits = Traits(
        paper="Rae et al. 2020, https://arxiv.org/abs/1911.05507",
        family="recurrence",
        cost="T",
        exact=False,
        causal=True,
        carries_positions=True,
        state_size="1",
        sizes=("heads", "head_dim"),
        anchored=True,
    )
    small_options = {"segment": 12, "memory": 9, "compressed_memory": 4, "ratio": 5}
    part_names = ("compressed memory", "memory", "segment")

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        segment: PositiveInt = 512,
        memory: NonNegativeInt = 512,
        compressed_memory: NonNegativeInt = 512,
        ratio: PositiveInt = 4,
        compression: Kind = "mean",
        autoencoder: bool = False,
        backprop_through_memory: bool = False,
        causal: bool = False,
    ):
        """Create the relative positions and the compression.

        Args:
            segment: tokens per segment.
            memory: tokens in the memory before a segment.
            compressed_memory: maximum number of slots.
            ratio: tokens per slot, c.
            compression: f_c, see `Compression`.
            autoencoder: whether an inverse g of f_c is learned.
            backprop_through_memory: whether gradients flow through the memory.
        """
        super().__init__(heads, head_dim, segment, memory, None, backprop_through_memory, causal)
        self.compressed_memory, self.ratio = compressed_memory, ratio
        self.compression = Compression(compression, ratio, heads, head_dim, autoencoder)
        self.has_unused_parameters = self.compression.learned or autoencoder
        self.has_auxiliary_loss = self.compression.learned and compressed_memory > 0
        if self.compression.learned:
            self.built_for = {**self.built_for, "value_dim": head_dim}
        if compression in ("conv", "dilated"):
            self.traits = dataclasses.replace(type(self).traits, row_sums="any")
        if compression == "most_used":  # the queries of a segment choose rows for later ones
            self.traits = dataclasses.replace(type(self).traits, mixes_queries=True)

    @property
    def span(self):
        """Maximum number of keys: slots, memory with its incomplete group, segment."""
        return self.compressed_memory + self.memory + self.ratio - 1 + self.segment

    @property
    def memory_tokens(self):
        """Maximum number of tokens of the memory and of the slots before it."""
        return self.memory + self.compressed_memory * self.ratio

    def groups(self, start: int) -> int:
        """Return how many groups are compressed before the segment at `start`."""
        return max(0, start - self.memory) // self.ratio if self.compressed_memory else 0

    def _first(self, start: int) -> int:
        """Return the oldest token in the memory of the segment at `start`."""
        return (
            self.groups(start) * self.ratio
            if self.compressed_memory
            else max(0, start - self.memory)
        )

    def load_memory(self, rows, start, cache):
        """Return slots from the cache, then the rows."""
        if cache is None:
            return rows, rows
        k, v, real = (cache.state[f"slot_{x}"] for x in ("k", "v", "real"))
        return Rows(k, v, None if rows.real is None else real), rows

    def update_memory(self, memory, current, q, start):
        """Compress complete groups older than the memory; keep the newest slots."""
        slots, rows = memory[0], concat_rows(memory[1], current)
        if not self.compressed_memory:
            return slots, rows.last(self.memory)
        full = (self.groups(start + self.segment) - self.groups(start)) * self.ratio
        old, rows = rows.split([full, rows.size - full])
        if full:
            slots = concat_rows(slots, self.compression(old, q, current.real))
            slots = slots.last(self.compressed_memory).copy()
        return slots, rows

    def cache_memory(self, memory, q):
        """Return the slots, and the queries of the segment if f_c uses them."""
        k, v, real = memory[0]
        real = k.new_ones(k.shape[0], k.shape[2]).bool() if real is None else real
        state = {"slot_k": k, "slot_v": v, "slot_real": real}
        if self.compression.kind == "most_used" and q is not None:
            state["q"] = q.clone()  # without the queries of earlier segments
        return state

    def reconstruction_loss(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Bool[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, ""]:
        """Compute the attention reconstruction loss: the change of content attention.

        The queries of each segment attend to the rows that leave the memory after it, and to their
        slots; the loss is the mean squared difference over real queries, heads and features.

        Raises:
            InputError: `forward` would refuse the inputs.
        """
        total = count = at_least_float32(q.new_zeros(()))
        for old, queries, query_mask in self._evicted(q, k, v, mask, cache):
            both = (old, self.compression(old, queries, query_mask))
            masks = [None if x.real is None else x.real[:, None, None, :] for x in both]
            pairs = zip(both, masks, strict=True)
            a, b = (softmax_attention(queries, x.k, x.v, real) for x, real in pairs)
            total, count = _accumulate(total, count, a - b, query_mask)
        return total / count.clamp(min=1)

    def autoencoding_loss(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Bool[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, ""]:
        """Compute the mean squared error of g(slots) against real keys and values.

        Raises:
            OptionError: there is no g; build with `autoencoder=True`.
            InputError: `forward` would refuse the inputs.
        """
        if self.compression.back_keys is None:
            raise OptionError("autoencoding_loss() requires autoencoder=True")
        total = count = at_least_float32(q.new_zeros(()))
        for old, queries, query_mask in self._evicted(q, k, v, mask, cache):
            back = self.compression.decompress(self.compression(old, queries, query_mask))
            for x, y in zip((old.k, old.v), back, strict=True):
                total, count = _accumulate(total, count, x - y, old.real)
        return total / count.clamp(min=1)

    def auxiliary_loss(self, x):
        """Return the loss of a learned f_c: that of its inverse if there is one."""
        if not self.has_auxiliary_loss:
            return None
        has_inverse = self.compression.back_keys is not None
        loss = self.autoencoding_loss if has_inverse else self.reconstruction_loss
        return loss(x.q, x.k, x.v, x.mask, x.cache)

    def _evicted(
        self, q, k, v, key_mask, cache=None
    ) -> Iterator[tuple[Rows, Tensor, Tensor | None]]:
        """Yield rows that leave the memory per segment, its queries and their mask.

        The queries of a segment that began in an earlier step are those of this step only.
        """
        if reasons := self.refusals(Inputs(q, k, v, mask=key_mask)):
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        q, k, v = (x.detach() for x in (q, k, v))
        if key_mask is not None:
            q, k, v = (apply_mask(x, key_mask[:, None, :, None]) for x in (q, k, v))
        seen, T = 0 if cache is None else cache.length, q.shape[2]
        state = append_tokens(cache, {"k": k, "v": v}, key_mask)
        rows = Rows(state["k"].detach(), state["v"].detach(), state.get("real"))
        first = seen + T - rows.size  # token of the first row
        begun = seen - seen % self.segment
        for end in range(begun + self.segment, seen + T + 1, self.segment):
            old, stop = (self.groups(x) * self.ratio for x in (end - self.segment, end))
            if stop > old:
                segment = slice(max(end - self.segment, seen) - seen, end - seen)
                evicted = rows.split([old - first, stop - old, rows.size - (stop - first)])[1]
                yield evicted, q[:, :, segment], None if key_mask is None else key_mask[:, segment]

    def reference(self, x):
        """Process one row of the batch after another, segment by segment."""
        rows = zip(*x[:3], x.real.expand(len(x.q), -1), strict=True)
        return torch.stack([torch.cat(list(self._reference_row(*row)), 1) for row in rows])

    def _reference_row(self, q, k, v, real):
        """Yield the output of each segment (H, n, E), from a list of slots and tokens."""
        stop = (lambda x: x) if self.backprop_through_memory else torch.Tensor.detach
        slots: list[tuple] = []
        for start in range(0, q.shape[1], self.segment):
            segment, first = slice(start, start + self.segment), self._first(start)
            tokens = [(stop(k[:, j]), stop(v[:, j]), real[j]) for j in range(first, start)]
            columns = k[:, segment].unbind(1), v[:, segment].unbind(1), real[segment]
            current = list(zip(*columns, strict=True))
            seen = slots[-self.compressed_memory :] + tokens + current
            keys, values = (torch.stack([row[x] for row in seen], 1) for x in (0, 1))
            j = torch.arange(len(seen), device=q.device)
            i = j[-len(current) :, None]
            mask = torch.stack([row[2] for row in seen]) & (j <= (i if self.causal else j[-1]))
            yield self.reference_weights(q[None, :, segment], keys[None], i - j, mask)[0] @ values
            old = slice(first, self._first(segment.stop))
            if self.compressed_memory and old.stop > old.start and len(current) == self.segment:
                rows = (k[:, old], v[:, old], real[old])
                compressed = self.compression.reference(rows, q[:, segment], real[segment])
                slots += [(stop(x), stop(y), z) for x, y, z in compressed]

    def memory_length(self, start):
        """Return the number of slots and rows."""
        return min(self.compressed_memory, self.groups(start)) + start - self._first(start)

    def flops(self, T, head_dim):
        """Count attention to all keys, and f_c of keys and values."""
        rows = self.groups(T - T % self.segment) * self.ratio
        cost_per_slot = {"conv": 4 * head_dim**2, "dilated": 8 * head_dim**2}
        cost_per_slot["most_used"] = 2 * self.segment * head_dim
        return super().flops(T, head_dim) + rows * cost_per_slot.get(self.compression.kind, 0)

    def pairs(self, T):
        """Return None: a slot is not a key."""
        return None


class Compression(nn.Module):
    """f_c, for the keys and values of each head, and its approximate inverse g.

    max, mean: over the rows, feature by feature.
    conv: a convolution with kernel and stride `ratio`.
    dilated: ceil(log2 ratio) convolutions of two rows at distances 1, 2, 4, ...; no activation.
    most_used: the row of each head with the largest mean weight among all rows given, in content
        attention from the queries given; the oldest of equals.

    Learned kinds start as the mean, g as a copy of the slot to each of its rows.
    """

    def __init__(self, kind: str, ratio: int, heads: int, head_dim: int, autoencoder: bool):
        super().__init__()
        self.kind, self.ratio = kind, ratio
        layers = (ratio - 1).bit_length()
        identity = torch.eye(head_dim).expand(heads, -1, -1)
        start = None
        if kind == "conv":
            start = identity.repeat(1, ratio, 1) / ratio
        elif kind == "dilated":
            start = identity.repeat(layers, 1, 2, 1) * ratio ** (-1 / max(layers, 1))
        self.keys = None if start is None else nn.Parameter(start.clone())
        self.values = None if start is None else nn.Parameter(start.clone())
        back = identity.repeat(1, 1, ratio) if autoencoder else None
        self.back_keys = None if back is None else nn.Parameter(back.clone())
        self.back_values = None if back is None else nn.Parameter(back.clone())

    @property
    def learned(self) -> bool:
        """True if f_c or g has weights, and so a fixed width of values."""
        return self.keys is not None or self.back_keys is not None

    def forward(self, rows: Rows, q: Tensor, query_mask: Tensor | None) -> Rows:
        """Compress.

        Args:
            rows: complete groups, a multiple of `ratio` rows.
            q: queries (B, H, T, D), for `most_used`.
            query_mask: True at real queries (B, T), or None.
        """
        real = None if rows.real is None else rows.real.unflatten(1, (-1, self.ratio))
        best = self._most_used(rows, q, query_mask) if self.kind == "most_used" else None
        k = self._slots(rows.k, real, self.keys, best)
        v = self._slots(rows.v, real, self.values, best)
        return Rows(k, v, None if real is None else real.any(-1))

    def _slots(self, x, real: Tensor | None, weight, best) -> Tensor:
        """Return one slot (B, H, G, D) for each group of x (B, H, G * ratio, D)."""
        x = x.unflatten(2, (-1, self.ratio))
        if best is not None:
            return x.gather(3, best[..., None, None].expand(*best.shape, 1, x.shape[-1]))[..., 0, :]
        if self.kind == "conv":
            return x.flatten(3) @ weight.to(x.dtype)
        if self.kind == "dilated":
            x = F.pad(x, (0, 0, 2 ** len(weight) - self.ratio, 0))
            for layer in weight.to(x.dtype):
                x = x.unflatten(3, (-1, 2)).flatten(4) @ layer[:, None]
            return x[..., 0, :]
        if real is None:
            return x.mean(3) if self.kind == "mean" else x.amax(3)
        real = real[:, None, ..., None]
        if self.kind == "mean":
            return x.sum(3) / real.sum(3).clamp(min=1)
        lowest = (real.to(x.dtype) - 1) * (torch.finfo(x.dtype).max / 2)
        return apply_mask((x + lowest).amax(3), real.any(3))

    def _most_used(self, rows: Rows, q: Tensor, query_mask: Tensor | None) -> Tensor:
        """Return the index of the most used row within each group (B, H, G)."""
        scores = dot_products(q, rows.k, q.shape[-1] ** -0.5)
        if rows.real is not None:
            weights = masked_softmax(scores, rows.real[:, None, None, :])
        else:
            weights = scores.softmax(-1)
        if query_mask is not None:
            weights = apply_mask(weights, query_mask[:, None, :, None])
        usage = weights.sum(2, dtype=torch.promote_types(weights.dtype, torch.float32))
        if rows.real is not None:
            usage = usage.masked_fill(~rows.real[:, None], -1)
        return usage.unflatten(2, (-1, self.ratio)).argmax(-1)

    def decompress(self, slots):
        """Apply g: return as many keys and values as were compressed."""
        pairs = ((slots.k, self.back_keys), (slots.v, self.back_values))
        rows = (x @ weight.to(x.dtype) for x, weight in pairs if weight is not None)
        return tuple(x.unflatten(3, (self.ratio, -1)).flatten(2, 3) for x in rows)

    def reference(self, rows, q, query_mask):
        """Return key, value and real flag of each slot for one row of the batch.

        Args:
            rows: keys (H, S, D), values (H, S, E), and which of them are real (S,).
            q: queries (H, T, D).
            query_mask: True at real queries (T,).
        """
        k, v, real = rows
        scores = torch.einsum("htd,hsd->hts", q, k).detach()[:, query_mask] / q.shape[-1] ** 0.5
        usage = scores.masked_fill(~real, -torch.inf).softmax(-1).sum(1)
        slots = []
        for group in torch.arange(len(real)).split(self.ratio):
            rest = real[group], usage[:, group]
            slot_k = self._reference_slot(k[:, group], self.keys, *rest)
            slot_v = self._reference_slot(v[:, group], self.values, *rest)
            slots.append((slot_k, slot_v, real[group].any()))
        return slots

    def _reference_slot(self, x, weight, real, usage):
        """Return the slot of x (H, ratio, D), by learned weight or usage (H, ratio)."""
        if not real.any():
            return torch.zeros_like(x[:, 0])
        if self.kind in ("max", "mean"):
            return x[:, real].amax(1) if self.kind == "max" else x[:, real].mean(1)
        if self.kind == "most_used":
            some = real.nonzero()[:, 0].tolist()
            used = [[(-u[t].item(), t) for t in some] for u in usage]
            return torch.stack([x[h, min(pairs)[1]] for h, pairs in enumerate(used)])
        if self.kind == "conv":
            taps = weight.unflatten(1, (self.ratio, -1))
            return torch.einsum("htd,htde->he", x, taps)
        rows = list(x.unbind(1))
        for older, newer in (layer.chunk(2, 1) for layer in weight):
            rows = [torch.zeros_like(rows[0])] * (len(rows) % 2) + rows
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [(a[:, None] @ older + b[:, None] @ newer)[:, 0] for a, b in pairs]
        return rows[0]


def _accumulate(total: Tensor, count: Tensor, errors: Tensor, real: Tensor | None):
    """Add the sum of squares, and the number, of real errors (B, H, T, D) to running totals."""
    squares = at_least_float32(errors).square()  # sums and counts leave half precision
    if real is None:
        return total + squares.sum(), count + squares.numel()
    squares = apply_mask(squares, real[:, None, :, None])
    return total + squares.sum(), count + real.sum() * squares.shape[1] * squares.shape[3]
