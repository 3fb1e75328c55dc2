"""Compressive Transformer, Rae et al. 2020 (https://arxiv.org/abs/1911.05507), section 3.

    out_i = sum_j softmax_j(((q_i + u) . k_j + (q_i + w) . r_(i-j)) / sqrt(D)) v_j

over [C; M; h]: h the segment of i (up to i when causal), M the `memory` tokens before it, C at
most `compressed` slots of `ratio` c tokens each, from before those; u, w, r as in Transformer-XL,
distances along [C; M; h] (at most `clamp`), a slot being one position. After each segment the rows
that leave M fill groups of c, counted from the first token; f_c (`compression`) makes a slot of
each. Rows that do not fill a group yet stay in M: any segment, memory and ratio go together.

Nothing flows back into M and C (unless `through`), so f_c learns from `reconstruction_loss` or
`autoencoding_loss` (`autoencoder`) alone, and nothing else learns from them.

What differs from the paper: memories hold keys and values of each head, and f_c works on those; the
paper compresses the states they are projected from (for the mean it is the same). Most used means:
most looked at, in content attention, by the last segment that had the row in M.
"""

import torch

from longspan.attention._compression import Compression, CompressionLosses, Kind
from longspan.attention._relative import RelativeAttention
from longspan.attention._segments import Rows, beside
from longspan.attention.base import Traits, register
from longspan.errors import OptionError


@register("compressive", knob="memory")
class CompressiveAttention(CompressionLosses, RelativeAttention):
    """A segment, the tokens before it, and slots of the tokens before those."""

    traits = Traits(
        paper="Rae et al. 2020, https://arxiv.org/abs/1911.05507",
        cost="T",
        exact=False,
        causal=True,
        sizes=("heads", "head_dim"),
    )
    small = {"segment": 12, "memory": 9, "compressed": 4, "ratio": 5}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        segment: int = 512,
        memory: int = 512,
        compressed: int = 512,
        ratio: int = 4,
        compression: Kind = "mean",
        autoencoder: bool = False,
        clamp: int | None = None,
        through: bool = False,
        causal: bool = False,
    ):
        """Take the sizes, what f_c is, and whether g (its inverse) is learned too."""
        super().__init__(heads, head_dim, segment, memory, clamp, through, causal)
        if compressed < 0 or ratio < 1:
            got = f"got compressed={compressed}, ratio={ratio}"
            raise OptionError(f"compressive needs compressed >= 0 and ratio >= 1, {got}")
        self.compressed, self.ratio = compressed, ratio
        self.compression = Compression(compression, ratio, heads, head_dim, autoencoder)
        self.idle = self.compression.learned or autoencoder

    @property
    def span(self):
        """Slots, memory with what waits to be compressed, segment."""
        return self.compressed + self.memory + self.ratio - 1 + self.segment

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: a learned f_c belongs to values of this width."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        width = self.content_bias.shape[1]
        if self.compression.learned and v.shape[3] != width:
            reasons.append(f"its compression was built for values of {width}, got {v.shape[3]}")
        return reasons

    def groups(self, start: int) -> int:
        """How many groups the memory of the segment at `start` has compressed."""
        return max(0, start - self.memory) // self.ratio if self.compressed else 0

    def _first(self, start: int) -> int:
        """The oldest token in the memory of the segment at `start`."""
        return self.groups(start) * self.ratio if self.compressed else max(0, start - self.memory)

    def recall(self, rows, start, cache):
        """Slots from the cache, then the rows."""
        if cache is None:
            return rows, rows
        k, v, real = (cache.state[f"slot_{x}"] for x in ("k", "v", "real"))
        return Rows(k, v, None if rows.real is None else real), rows

    def remember(self, memory, own, q, start):
        """Compress the groups that are full and older than the memory, keep the newest slots."""
        slots, rows = memory[0], beside(memory[1], own)
        if not self.compressed:
            return slots, rows.last(self.memory)
        full = (self.groups(start + self.segment) - self.groups(start)) * self.ratio
        old, rows = rows.split([full, rows.size - full])
        if full:
            slots = beside(slots, self.compression(old, q, own.real)).last(self.compressed)
        return slots, rows

    def kept(self, memory, q):
        """Slots; the queries of the segment if f_c looks at them."""
        k, v, real = memory[0]
        real = k.new_ones(k.shape[0], k.shape[2]).bool() if real is None else real
        state = {"slot_k": k, "slot_v": v, "slot_real": real}
        return state | ({"q": q} if self.compression.kind == "most_used" and q is not None else {})

    def reference(self, q, k, v, key_mask):
        """One row of the batch after another, segment by segment."""
        real = q.new_ones(q.shape[0], q.shape[2]).bool() if key_mask is None else key_mask
        rows = zip(q, k, v, real, strict=True)
        return torch.stack([torch.cat(list(self._plain(*row)), 1) for row in rows])

    def _plain(self, q, k, v, real):
        """What each segment reads (H, n, E), from a list of slots and tokens."""
        stop = (lambda x: x) if self.through else torch.Tensor.detach
        slots: list[tuple] = []
        for start in range(0, q.shape[1], self.segment):
            own, first = slice(start, start + self.segment), self._first(start)
            tokens = [(stop(k[:, j]), stop(v[:, j]), real[j]) for j in range(first, start)]
            mine = list(zip(k[:, own].unbind(1), v[:, own].unbind(1), real[own], strict=True))
            seen = slots[-self.compressed :] + tokens + mine
            keys, values = (torch.stack([row[x] for row in seen], 1) for x in (0, 1))
            j = torch.arange(len(seen), device=q.device)
            i = j[-len(mine) :, None]
            mask = torch.stack([row[2] for row in seen]) & (j <= (i if self.causal else j[-1]))
            yield self.plain_weights(q[None, :, own], keys[None], i - j, mask)[0] @ values
            old = slice(first, self._first(own.stop))
            if self.compressed and old.stop > old.start and len(mine) == self.segment:
                rows = (k[:, old], v[:, old], real[old])
                made = self.compression.plain(rows, q[:, own], real[own])
                slots += [(stop(x), stop(y), z) for x, y, z in made]

    def past(self, start):
        """Slots and rows."""
        return min(self.compressed, self.groups(start)) + start - self._first(start)

    def flops(self, T, head_dim):
        """As with memory alone, and f_c of the keys and values."""
        rows = self.groups(T - T % self.segment) * self.ratio
        own = {"conv": 4 * head_dim**2, "dilated": 8 * head_dim**2}
        own["most_used"] = 2 * self.segment * head_dim
        return super().flops(T, head_dim) + rows * own.get(self.compression.kind, 0)

    def pairs(self, T):
        """None: a slot is no key of its own."""
        return None
