"""Synthesizer, Tay et al. 2021 (https://arxiv.org/abs/2005.00743), section 3.

    out = softmax(sum_i w_i S_i) v,   w = softmax(alpha), learned

    dense              S_ts = (W2 relu(q_t) + b2)_s
    factorized_dense   S_ts = (A relu(q_t) + a)_{s div n} (B relu(q_t) + b)_{s mod n}
    random             S_ts = R_ts
    factorized_random  S_ts = sum_j U_tj V_sj,  j = 1 .. factors
    dot                S_ts = q_t . k_s / sqrt(D)

`scores` names the parts i, joined by "+"; one part has weight one, and with `mixture="sum"` all
have. The matrices are a head's own and made for `max_length` positions, n = ceil(sqrt(max_length));
a shorter input uses the leading entries, a longer one is refused. Only `dot` is scaled. With
`trainable=False` the random parts stay as drawn from (seed, layer). Whatever the parts, T x T
scores are made: it is a baseline, not a way to save.

What differs: the first linear map (W1, b1) of the dense parts is the model's query projection, so
`dot` and both factors share it; q and k are not projected where no part reads them. Padded keys
are masked in every case (the public code forgets them without `dot`), a dense score stays with its
head and position (there a reshape scatters them), W2 is not shared among heads, as it is there.
"""

import dataclasses
import math
from typing import ClassVar, Literal, cast

import torch
from torch import Generator, Tensor, nn

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.softmax import pair_mask
from longspan.attention.traits import Inputs
from longspan.errors import OptionError


@register("synthesizer", size_option="factors")
class SynthesizerAttention(Attention):
    """Softmax attention whose scores come from queries alone, or from nothing."""

    traits = Traits(
        paper="Tay et al. 2021, https://arxiv.org/abs/2005.00743",
        cost="T^2",
        exact=False,
        causal=True,
        inputs="v",
        sizes=("heads", "head_dim", "max_length", "layer"),
    )
    small_options = {
        "scores": "dot+dense+factorized_dense+random+factorized_random",
        "factors": 3,
        "trainable": False,
    }

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        max_length: int,
        layer: int = 0,
        scores: str = "factorized_random",
        factors: int = 8,
        trainable: bool = True,
        mixture: Literal["convex", "sum"] = "convex",
        seed: int = 0,
        causal: bool = False,
    ):
        """Take the parts, the factors of a random one, whether it is trained, how parts mix."""
        super().__init__()
        names = scores.split("+")
        if not set(names) <= set(PARTS) or len(set(names)) < len(names):
            choice = f"different ones of {', '.join(PARTS)}, joined by +"
            raise OptionError(f"synthesizer scores are {choice}, got {scores!r}")
        if factors < 1:
            raise OptionError(f"synthesizer needs factors >= 1, got {factors}")
        if mixture not in ("convex", "sum"):
            raise OptionError(f"synthesizer mixture is convex or sum, got {mixture!r}")
        self.heads, self.head_dim, self.max_length = heads, head_dim, max_length
        self.causal = causal
        generator = None if trainable else torch.Generator().manual_seed(seed * 1_000_003 + layer)
        sizes = (heads, head_dim, max_length, factors, generator)
        self.parts = nn.ModuleDict({name: PARTS[name](*sizes) for name in names})
        mixed = mixture == "convex" and len(names) > 1
        self.alpha = nn.Parameter(torch.zeros(len(names))) if mixed else None
        read = "".join(PARTS[name].inputs for name in names)
        reads: Inputs = "qkv" if "k" in read else "qv" if "q" in read else "v"
        self.traits = dataclasses.replace(type(self).traits, inputs=reads)

    def _parts(self) -> "list[Part]":
        return cast("list[Part]", list(self.parts.values()))

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: the matrices belong to these heads, this width and this many positions."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        expected, got = (self.heads, self.head_dim), (q.shape[1], q.shape[3])
        if got != expected:
            reasons.append(f"it was built for (heads, head_dim) = {expected}, got {got}")
        return reasons + self._beyond(k.shape[2])

    def _step_refusals(self, q, k, v, cache):
        reasons = super()._step_refusals(q, k, v, cache)
        return reasons if cache is None else reasons + self._beyond(cache.length + k.shape[2])

    def _beyond(self, length):
        if length <= self.max_length:
            return []
        return [f"T={length} is beyond max_length={self.max_length}; build it longer"]

    def attend(self, q, k, v, key_mask):
        """All rows."""
        return self._rows(q, k, v, key_mask, 0)

    def advance(self, q, k, v, key_mask, cache):
        """The new rows only, over all keys so far."""
        state = append_tokens(cache, {"k": k, "v": v}, key_mask)
        first = 0 if cache is None else cache.length
        return self._rows(q, state["k"], state["v"], state.get("real"), first), state

    def _rows(self, q, k, v, key_mask, first):
        """Rows first .. first + T - 1; scores that no input enters are made once for the batch."""
        parts = [part(q, k, first).to(q.dtype) for part in self._parts()]
        if self.alpha is not None:
            weights = self.alpha.softmax(0).to(q.dtype)
            parts = [w * x for w, x in zip(weights, parts, strict=True)]
        scores, mask = sum(parts[1:], parts[0]), None
        if self.causal or key_mask is not None:
            mask = pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask)
        one = len(weights) == 1
        out = torch.einsum("hts,bhse->bhte", weights[0], v) if one else weights @ v
        return out if mask is None else apply_mask(out, mask.any(-1, keepdim=True))

    def reference(self, q, k, v, key_mask):
        """Mix the scores, exp, sum over the admissible keys, divide."""
        parts = [part.reference(q, k).expand(*q.shape[:3], -1) for part in self._parts()]
        w = q.new_ones(len(parts))
        if self.alpha is not None:
            w = self.alpha.exp() / self.alpha.exp().sum()
        scores = torch.einsum("i,ibhts->bhts", w, torch.stack(parts))
        allowed = pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        scores = scores.masked_fill(~allowed, -torch.inf)
        highest = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
        weights = (scores - highest).exp()
        return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)

    def flops(self, T, head_dim):
        """The products of the parts, and that with the values."""
        return sum(part.flops(T, head_dim) for part in self._parts()) + 2 * T * T * head_dim


# Ways to make attention scores: from queries and keys, from queries alone, or from nothing.
#
# A part is built for heads, their width, `max_length` positions, a number of factors and, where it
# draws numbers, a generator (its matrices are then fixed) or None (they are parameters). Its
# `forward(q, k, first)` gives the scores of queries first .. first + T - 1 for all S keys,
# (B, H, T, S), with B = 1 where they are the same for all samples; `reference(q, k)` the same
# the first query on, as plainly as it can be read. Sizes below `max_length` use the leading entries.


class Part(nn.Module):
    """What the parts have in common."""

    inputs: ClassVar[str]  # of q and k

    def __init__(self, heads: int, D: int, N: int, factors: int, generator: Generator | None):
        super().__init__()
        self.make(heads, D, N, factors, generator)

    def make(self, heads: int, D: int, N: int, factors: int, generator: Generator | None) -> None:
        """Make the matrices; here none."""

    def forward(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """Scores of the queries, the first of which has position `first`."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def reference(self, q: Tensor, k: Tensor) -> Tensor:
        """The same for first = 0."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def flops(self, T: int, D: int) -> int:
        """Operations of one head."""
        raise TypeError(f"{type(self).__name__} does not define flops")

    def drawn(self, name: str, scale: float, shape: tuple, generator: Generator | None) -> None:
        """Keep Gaussian numbers: a buffer from the generator, or a parameter without one."""
        numbers = scale * torch.randn(shape, generator=generator)
        if generator is None:
            self.register_parameter(name, nn.Parameter(numbers))
        else:
            self.register_buffer(name, numbers)


class Dot(Part):
    """S_ts = q_t . k_s / sqrt(D)."""

    inputs = "qk"

    def forward(self, q, k, first):
        """One product."""
        return (q * q.shape[-1] ** -0.5) @ k.mT

    def reference(self, q, k):
        """The formula."""
        return torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5

    def flops(self, T, D):
        """One product."""
        return 2 * T * T * D


class Dense(Part):
    """S_ts = (W2 relu(q_t) + b2)_s."""

    inputs = "q"

    def make(self, heads, D, N, factors, generator):
        """W2 and b2, with the initial values of a linear map."""
        self.map = _Maps(heads, N, D)

    def forward(self, q, k, first):
        """The first S rows of W2."""
        return self.map(q.relu(), k.shape[2])

    def reference(self, q, k):
        """All rows, then those of the positions."""
        scores = torch.einsum("bhtd,hsd->bhts", q.clamp(min=0), self.map.weight)
        return (scores + self.map.bias[:, None])[..., : k.shape[2]]

    def flops(self, T, D):
        """One product."""
        return 2 * T * T * D


class FactorizedDense(Part):
    """S_ts = (A relu(q_t) + a)_{s div n} (B relu(q_t) + b)_{s mod n}, n the root of max_length."""

    inputs = "q"

    def make(self, heads, D, N, factors, generator):
        """Two maps to about sqrt(max_length) numbers."""
        self.n = math.isqrt(N - 1) + 1
        self.outer, self.inner = _Maps(heads, -(-N // self.n), D), _Maps(heads, self.n, D)

    def forward(self, q, k, first):
        """Each number of the first map is repeated, the second map is tiled."""
        hidden, S = q.relu(), k.shape[2]
        outer, inner = self.outer(hidden, -(-S // self.n)), self.inner(hidden, self.n)
        return (outer[..., None] * inner[..., None, :]).flatten(-2)[..., :S]

    def reference(self, q, k):
        """Position by position."""
        hidden, n = q.clamp(min=0), self.n
        A, B = (
            torch.einsum("bhtd,hnd->bhtn", hidden, x.weight) + x.bias[:, None]
            for x in (self.outer, self.inner)
        )
        return torch.stack([A[..., s // n] * B[..., s % n] for s in range(k.shape[2])], -1)

    def flops(self, T, D):
        """Two thin products."""
        return 2 * T * D * (self.n + -(-T // self.n))


class Random(Part):
    """S_ts = R_ts, standard normal at first."""

    inputs = ""
    matrix: Tensor

    def make(self, heads, D, N, factors, generator):
        """R of each head."""
        self.drawn("matrix", 1.0, (heads, N, N), generator)

    def forward(self, q, k, first):
        """The rows of the queries, the columns of the keys."""
        return self.matrix[None, :, first : first + q.shape[2], : k.shape[2]]

    def reference(self, q, k):
        """The leading corner."""
        return self.matrix[None, :, : q.shape[2], : k.shape[2]]

    def flops(self, T, D):
        """None: it is looked up."""
        return 0


class FactorizedRandom(Part):
    """S_ts = U_t . V_s, with `factors` entries each; of deviation one at first."""

    inputs = ""
    factors: Tensor

    def make(self, heads, D, N, factors, generator):
        """U and V of each head."""
        self.drawn("factors", factors**-0.25, (2, heads, N, factors), generator)

    def forward(self, q, k, first):
        """The product of the rows and columns that are there."""
        U, V = self.factors
        return (U[:, first : first + q.shape[2]] @ V[:, : k.shape[2]].mT)[None]

    def reference(self, q, k):
        """The whole product, then its leading corner."""
        product = torch.einsum("htk,hsk->hts", self.factors[0], self.factors[1])
        return product[None, :, : q.shape[2], : k.shape[2]]

    def flops(self, T, D):
        """One thin product."""
        return 2 * T * T * self.factors.shape[-1]


class _Maps(nn.Module):
    """A linear map of each head, with the initial values of torch's."""

    def __init__(self, heads: int, rows: int, D: int):
        super().__init__()
        bound = D**-0.5
        self.weight = nn.Parameter(torch.empty(heads, rows, D).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, rows).uniform_(-bound, bound))

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """The first outputs of the map, (B, H, T, D) to (B, H, T, rows)."""
        weight, bias = self.weight[:, :rows].to(x.dtype), self.bias[:, None, :rows].to(x.dtype)
        return x @ weight.mT + bias


PARTS: dict[str, type[Part]] = {
    "dot": Dot,
    "dense": Dense,
    "factorized_dense": FactorizedDense,
    "random": Random,
    "factorized_random": FactorizedRandom,
}
