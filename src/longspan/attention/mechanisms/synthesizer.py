"""Synthesizer, Tay et al. 2021 (https://arxiv.org/abs/2005.00743), section 3.

    out = softmax(sum_i w_i S_i) v,   w = softmax(alpha), learned

    dense              S_ts = (W2 relu(q_t) + b2)_s
    factorized_dense   S_ts = (A relu(q_t) + a)_{s div n} (B relu(q_t) + b)_{s mod n}
    random             S_ts = R_ts
    factorized_random  S_ts = sum_j U_tj V_sj,  j = 1 .. factors
    dot                S_ts = q_t . k_s / sqrt(D)

The matrices are per head and sized for `max_length` positions, n = ceil(sqrt(max_length)); a
shorter input uses the leading entries, a longer one is refused. Only `dot` is scaled. All parts
compute T x T scores: the mechanism is a baseline and saves nothing.

Differences: the first linear map (W1, b1) of the dense parts is the model's query projection, so
`dot` and both factors share it; q and k are not projected if no part uses them. Padded keys are
always masked (the public code masks them only with `dot`), a dense score stays with its head and
position (there a reshape scatters them), and heads do not share W2, as they do there.
"""

import dataclasses
import math
from typing import ClassVar, Literal, cast

import torch
from torch import Generator, Tensor, nn

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.draws import draw_normal, to_defaults
from longspan.attention.ops.open_sizes import count_blocks, resize
from longspan.attention.ops.precision import dot_products
from longspan.attention.ops.softmax import pair_mask
from longspan.attention.option_types import PositiveInt
from longspan.attention.traits import Projected
from longspan.errors import OptionError


@register("synthesizer", size_option="factors")
class SynthesizerAttention(Attention):
    """Softmax attention with scores from queries only, or from no input."""

    traits = Traits(
        paper="Tay et al. 2021, https://arxiv.org/abs/2005.00743",
        family="hybrid",
        cost="T^2",
        exact=False,
        causal=True,
        inputs="v",
        sizes=("heads", "head_dim", "max_length", "layer"),
        anchored=True,
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
        factors: PositiveInt = 8,
        trainable: bool = True,
        mixture: Literal["convex", "sum"] = "convex",
        seed: int = 0,
        causal: bool = False,
    ):
        """Create the parts.

        Args:
            scores: names of the parts i, joined by "+".
            factors: number of factors of `factorized_random`.
            trainable: whether random parts are trained; if not, they are drawn from (seed, layer).
            mixture: "convex": weights w as above; "sum": all parts have weight one.
        """
        super().__init__()
        names = scores.split("+")
        if not set(names) <= set(_TERMS) or len(set(names)) < len(names):
            choice = f"different names of {', '.join(_TERMS)}, joined by +"
            raise OptionError(f"synthesizer: option scores must be {choice}; got {scores!r}")
        self.built_for = {"heads": heads, "head_dim": head_dim, "max_length": max_length}
        self.causal, self.factors = causal, factors
        generator = None if trainable else torch.Generator().manual_seed(seed * 1_000_003 + layer)
        sizes = (heads, head_dim, max_length, factors, generator)
        self.parts = nn.ModuleDict({name: _TERMS[name](*sizes) for name in names})
        mixed = mixture == "convex" and len(names) > 1
        self.alpha = nn.Parameter(torch.zeros(len(names))) if mixed else None
        read = "".join(_TERMS[name].inputs for name in names)
        inputs: Projected = "qkv" if "k" in read else "qv" if "q" in read else "v"
        is_product = all(_TERMS[name].inputs != "q" for name in names) and "k" in read
        self.traits = dataclasses.replace(type(self).traits, inputs=inputs, scale=is_product)

    def _parts(self) -> "list[ScoreTerm]":
        return cast("list[ScoreTerm]", list(self.parts.values()))

    def attend(self, x):
        """Compute all rows."""
        return self._rows(x.q, x.k, x.v, x.key_mask, 0)

    def advance(self, x):
        """Compute the new rows, over all keys so far."""
        state = append_tokens(x.cache, {"k": x.k, "v": x.v}, x.key_mask, grows=True)
        return self._rows(x.q, state["k"], state["v"], state.get("real"), x.before), state

    def _rows(self, q, k, v, key_mask, first):
        """Compute rows first .. first + T - 1; input-independent scores once per batch."""
        wide = torch.promote_types(q.dtype, torch.float32)
        parts = [part(q, k, first).to(wide) for part in self._parts()]
        if self.alpha is not None:
            weights = self.alpha.softmax(0).to(wide)
            parts = [w * x for w, x in zip(weights, parts, strict=True)]
        scores, mask = sum(parts[1:], parts[0]), None
        if self.causal or key_mask is not None:
            mask = pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask)
        weights = weights.to(v.dtype)
        one = key_mask is None and not any(part.inputs for part in self._parts())
        out = torch.einsum("hts,bhse->bhte", weights[0], v) if one else weights @ v
        return out if mask is None else apply_mask(out, mask.any(-1, keepdim=True))

    def reference(self, x):
        """Mix the scores; exp, sum over the allowed keys, divide."""
        q, k, v, key_mask = x[:4]
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

    def is_dense(self, T):
        """Return whether the factors have the rank of all scores."""
        return self.factors >= T

    def flops(self, T, head_dim):
        """Count the products of the parts, and the one with the values."""
        return sum(part.flops(T, head_dim) for part in self._parts()) + 2 * T * T * head_dim


class ScoreTerm(nn.Module):
    """Base class of attention scores: from queries and keys, from queries alone, or from no input.

    Matrices are sized for N positions; inputs that are shorter use the leading entries. With a
    generator the random matrices are fixed buffers; without one they are parameters. Scores are
    (B, H, T, S), with B = 1 if they are equal for all samples.

    Attributes:
        inputs: which of q and k it uses.
    """

    inputs: ClassVar[str]

    def __init__(self, heads: int, D: int, N: int, factors: int, generator: Generator | None):
        super().__init__()
        self.make(heads, D, N, factors, generator)

    def make(self, heads: int, D: int, N: int, factors: int, generator: Generator | None) -> None:
        """Create the matrices; the default creates none."""

    def forward(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """Return the scores of queries `first` .. `first` + T - 1 for all S keys."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def reference(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores for first = 0, written plainly."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def flops(self, T: int, D: int) -> int:
        """Return the FLOPs of one head."""
        raise TypeError(f"{type(self).__name__} does not define flops")

    def drawn(self, name: str, scale: float, shape: tuple, generator: Generator | None) -> None:
        """Store Gaussian numbers: a buffer if there is a generator, else a parameter."""
        if generator is None:
            self.register_parameter(name, nn.Parameter(scale * torch.randn(shape)))
            return
        drawn = scale * draw_normal(shape, generator, torch.get_default_dtype())
        self.register_buffer(name, to_defaults(drawn))


class Dot(ScoreTerm):
    """S_ts = q_t . k_s / sqrt(D)."""

    inputs = "qk"

    def forward(self, q, k, first):
        """Compute one product."""
        return dot_products(q, k, q.shape[-1] ** -0.5)

    def reference(self, q, k):
        """Apply the formula."""
        return torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5

    def flops(self, T, D):
        """Count one product."""
        return 2 * T * T * D


class Dense(ScoreTerm):
    """S_ts = (W2 relu(q_t) + b2)_s."""

    inputs = "q"

    def make(self, heads, D, N, factors, generator):
        """Create W2 and b2, initialized like a linear map."""
        self.map = _Maps(heads, N, D)

    def forward(self, q, k, first):
        """Use the first S rows of W2."""
        return self.map(q.relu(), k.shape[2])

    def reference(self, q, k):
        """Compute all rows, then select those of the positions."""
        scores = torch.einsum("bhtd,hsd->bhts", q.clamp(min=0), self.map.weight)
        return (scores + self.map.bias[:, None])[..., : k.shape[2]]

    def flops(self, T, D):
        """Count one product."""
        return 2 * T * T * D


class FactorizedDense(ScoreTerm):
    """S_ts = (A relu(q_t) + a)_{s div n} (B relu(q_t) + b)_{s mod n}, n the root of max_length."""

    inputs = "q"

    def make(self, heads, D, N, factors, generator):
        """Create two maps to about sqrt(max_length) numbers."""
        self.n = math.isqrt(N - 1) + 1
        self.outer, self.inner = _Maps(heads, -(-N // self.n), D), _Maps(heads, self.n, D)

    def forward(self, q, k, first):
        """Repeat each number of the first map, tile the second map."""
        hidden, S = q.relu(), k.shape[2]
        outer, inner = self.outer(hidden, count_blocks(S, self.n)), self.inner(hidden, self.n)
        return resize((outer[..., None] * inner[..., None, :]).flatten(-2), S, -1)

    def reference(self, q, k):
        """Compute position by position."""
        hidden, n = q.clamp(min=0), self.n
        A, B = (
            torch.einsum("bhtd,hnd->bhtn", hidden, x.weight) + x.bias[:, None]
            for x in (self.outer, self.inner)
        )
        return torch.stack([A[..., s // n] * B[..., s % n] for s in range(k.shape[2])], -1)

    def flops(self, T, D):
        """Count two thin products."""
        return 2 * T * D * (self.n + -(-T // self.n))


class Random(ScoreTerm):
    """S_ts = R_ts, initialized with standard normal numbers."""

    inputs = ""
    matrix: Tensor

    def make(self, heads, D, N, factors, generator):
        """Create R of each head."""
        self.drawn("matrix", 1.0, (heads, N, N), generator)

    def forward(self, q, k, first):
        """Select the rows of the queries and the columns of the keys."""
        rows = resize(self.matrix[None, :, first:], q.shape[2])
        return resize(rows, k.shape[2], 3)

    def reference(self, q, k):
        """Return the leading corner."""
        return self.matrix[None, :, : q.shape[2], : k.shape[2]]

    def flops(self, T, D):
        """Return zero: scores are looked up."""
        return 0


class FactorizedRandom(ScoreTerm):
    """S_ts = U_t . V_s, with `factors` entries each; standard deviation one at first."""

    inputs = ""
    factors: Tensor

    def make(self, heads, D, N, factors, generator):
        """Create U and V of each head."""
        self.drawn("factors", factors**-0.25, (2, heads, N, factors), generator)

    def forward(self, q, k, first):
        """Multiply the rows of the queries and the columns of the keys."""
        U, V = self.factors
        return dot_products(resize(U[:, first:], q.shape[2], 1), resize(V, k.shape[2], 1))[None]

    def reference(self, q, k):
        """Compute the whole product, then its leading corner."""
        product = torch.einsum("htk,hsk->hts", self.factors[0], self.factors[1])
        return product[None, :, : q.shape[2], : k.shape[2]]

    def flops(self, T, D):
        """Count one thin product."""
        return 2 * T * T * self.factors.shape[-1]


class _Maps(nn.Module):
    """Linear map per head, initialized like torch's."""

    def __init__(self, heads: int, rows: int, D: int):
        super().__init__()
        bound = D**-0.5
        self.weight = nn.Parameter(torch.empty(heads, rows, D).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, rows).uniform_(-bound, bound))

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """Return the first outputs of the map, (B, H, T, D) to (B, H, T, rows)."""
        weight, bias = (resize(y, rows, 1) for y in (self.weight, self.bias))
        return dot_products(x, weight.to(x.dtype)) + bias[:, None]


_TERMS: dict[str, type[ScoreTerm]] = {
    "dot": Dot,
    "dense": Dense,
    "factorized_dense": FactorizedDense,
    "random": Random,
    "factorized_random": FactorizedRandom,
}
