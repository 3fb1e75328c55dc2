"""Performer, Choromanski et al. 2021 (https://arxiv.org/abs/2009.14794), FAVOR+.

    out_t = phi(q_t)^T sum_s phi(k_s) v_s^T / (phi(q_t)^T sum_s phi(k_s))

phi has `features` entries made of rows w_r ~ N(0, I) such that E[phi(q) . phi(k)] is
exp(q . k / sqrt D). With x~ = x / D^(1/4), `feature_map` is

    softmax         exp(w_r . x~ - |x~|^2 / 2)                        positive, eq. 7
    hyperbolic      the same of w_r, and of -w_r                      positive, less variance
    trigonometric   exp(|x~|^2 / 2) (cos(w_r . x~), sin(w_r . x~))    of either sign
    relu            max(w_r . x~, 0) + 1e-3                           positive, another kernel

The sum of phi(q)_i phi(k)_i over all entries, divided by R rows (2 R if hyperbolic), has the
expectation exp(q . k / sqrt D) with the first three. The code omits constants and factors of each
query, which cancel in attention. The first two maps are computed from their exponents, relative to
the largest visible key of each feature, so norms may be of any size. Trigonometric weights may be
negative; a row is zero if its weights sum to less than 1/1000 of the most that one key can weigh.
For relu see section 4.

Training redraws the rows every `redraw_every` steps, between steps: within one, a checkpointed
forward pass would be repeated with other rows. The rows are saved.

Differences from the public code: no epsilon is added to features; the stabilizer ignores padding
and, when causal, the future; directions are Haar distributed; each head and layer draws its own
rows.
"""

import dataclasses
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from longspan.attention.base import Attention, Traits, register
from longspan.attention.derivatives import has_transforms
from longspan.attention.ops.draws import draw_normal
from longspan.attention.ops.feature_map_sums import (
    CHUNK,
    State,
    causal_mix,
    causal_mix_exponential,
    finite_level,
)
from longspan.attention.ops.feature_pieces import Product, mix_mapped
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import pair_mask
from longspan.attention.option_types import PositiveInt
from longspan.errors import OptionError

LEAST = 1e-3
Map = Literal["softmax", "hyperbolic", "trigonometric", "relu"]
MAPS = ("softmax", "hyperbolic", "trigonometric", "relu")
EXPONENTIAL = ("softmax", "hyperbolic")
_PAIRED = ("hyperbolic", "trigonometric")  # two features per row
_RELU_FLOOR = 1e-3


@register("performer", size_option="features")
class PerformerAttention(Attention):
    """Attention with random features whose products estimate the softmax kernel."""

    traits = Traits(
        paper="Choromanski et al. 2021, https://arxiv.org/abs/2009.14794",
        family="kernel",
        cost="T",
        exact=False,
        causal=True,
        cross=True,
        scale=True,
        state_size="1",
        sizes=("heads", "head_dim", "layer"),
        ignores_gaps=True,
    )
    small_options = {"features": 16}
    empty_state = {"level": -torch.inf}

    projection: torch.Tensor

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        layer: int = 0,
        features: PositiveInt | None = 256,
        feature_map: Map = "softmax",
        orthogonal: bool = True,
        norms: Literal["chi", "sqrt_d"] = "chi",
        redraw_every: PositiveInt | None = None,
        seed: int = 0,
        causal: bool = False,
    ):
        """Draw the projection (heads, rows, head_dim) from (seed, layer).

        Args:
            features: number of features; None: the coordinates themselves, with relu only, as in
                Long Range Arena.
            feature_map: phi, see the module.
            orthogonal: whether rows are orthogonal in blocks of D, which lowers the error.
            norms: norms of the rows: chi distributed, or all sqrt(D).
            redraw_every: training steps between redraws of the rows, or None.
        """
        super().__init__()
        self.causal, self.feature_map, self.layer = causal, feature_map, layer
        self.orthogonal, self.norms = orthogonal, norms
        self.random, self.features = features is not None, features or head_dim
        rows, odd = divmod(self.features, 2) if feature_map in _PAIRED else (self.features, 0)
        if odd or not (self.random or feature_map == "relu"):
            least = "an even number" if feature_map in _PAIRED else "a number"
            raise OptionError(
                f"performer, feature_map {feature_map!r}: features must be {least}, got {features}"
            )
        if redraw_every is not None and not self.random:
            raise OptionError(f"performer: redraw_every={redraw_every} requires features, got None")
        self.redraw_every = redraw_every
        # Chunks of other maps have levels, which one chunk after another raises.
        self.loops_over_length = causal and feature_map != "relu"
        if feature_map == "relu":
            self.traits = dataclasses.replace(type(self).traits, scale=False)
        self.built_for = {"heads": heads, "head_dim": head_dim}
        self.register_buffer("projection", torch.empty(heads, rows, head_dim))
        self.redraw(seed)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Draw new rows from (seed, layer), equal in every process."""
        heads, rows, columns = self.projection.shape
        generator = torch.Generator().manual_seed(seed * 1_000_003 + self.layer)
        how = (generator, self.orthogonal, self.norms)
        drawn = [random_rows(rows, columns, *how) for _ in range(heads if self.random else 0)]
        self.projection.copy_(torch.stack(drawn) if drawn else torch.eye(columns) * columns**0.25)

    def attend(self, x):
        """Compute stable features and one summary of the keys, in pieces or causal chunks."""
        if self.causal:
            return self.advance(x)[0]
        phi = RandomFeatures(self.feature_map, self.projection)
        return mix_mapped(phi, x.q, x.k, x.v, x.key_mask, self._min_weight())

    def advance(self, x):
        """Update the summary of the keys, whose size is constant."""
        state = None if x.cache is None else State(**x.cache.state)
        q, k, wide_v = map(at_least_float32, x[:3])
        name, W = self.feature_map, self.projection
        real = None if x.key_mask is None else x.key_mask[:, None, :, None]
        if name in EXPONENTIAL:
            # The common factor of a query, |q~|^2 / 2, cancels.
            eq, ek = _projected(name, q, W), _key_exponents(name, k, W, real)
            out, state = causal_mix_exponential(eq, ek, wide_v, state)
            return out.to(x.v.dtype), state._asdict()
        if name == "relu":
            fq, fk, weight = _rectified(q, W), _rectified(k, W, real), None
        else:
            (fq, _), (fk, weight) = _trigonometric(q, W), _trigonometric(k, W, real)
            weight = weight[..., 0]
        out, state = causal_mix(fq, fk, wide_v, weight, state, self._min_weight())
        return out.to(x.v.dtype), state._asdict()

    def _min_weight(self):
        return LEAST * self.projection.shape[1] if self.feature_map == "trigonometric" else None

    def _phi(self, x):
        """Compute the features (B, H, T, M) as in the formula, exponential ones as logarithms."""
        p = torch.einsum("bhtd,hmd->bhtm", x, self.projection.to(x.dtype)) / x.shape[-1] ** 0.25
        half = x.square().sum(-1, keepdim=True) / (2 * x.shape[-1] ** 0.5)
        if self.feature_map == "relu":
            return p.relu() + _RELU_FLOOR
        if self.feature_map == "trigonometric":
            return torch.cat([p.cos(), p.sin()], -1) * half.exp()
        return torch.cat([p, -p] if self.feature_map == "hyperbolic" else [p], -1) - half

    def reference(self, x):
        """Compute the matrix of estimated weights, masked and normalized."""
        q, k, v, key_mask = x[:4]
        fq, fk = self._phi(q), self._phi(k)
        allowed = pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        if self.feature_map in EXPONENTIAL:
            # Weights of large norms are outside the range of float64.
            rows = [(fq[:, :, t, None] + fk).logsumexp(-1) for t in range(q.shape[2])]
            logs = torch.stack(rows, 2).masked_fill(~allowed, -torch.inf)
            weights = (logs - finite_level(logs.detach().amax(-1, keepdim=True))).exp()
        else:
            weights = fq @ fk.mT * allowed
        total = weights.sum(-1, keepdim=True)
        some = total.abs() > 0
        if self.feature_map == "trigonometric":
            norms = fq.norm(dim=-1)[..., None] * fk.norm(dim=-1)[:, :, None]
            some = total.abs() > LEAST * (norms * allowed).amax(-1, True)
        return (weights / total.where(some, 1.0) * some) @ v

    def flops(self, T, head_dim):
        """Count features of q and k, the summary, its reading, and the chunk when causal."""
        M, rows = self.features, self.projection.shape[1]
        inside = 2 * T * min(CHUNK, T) * (M + head_dim) if self.causal else 0
        return 4 * T * (rows + M) * head_dim + 4 * T * M + inside


class RandomFeatures(NamedTuple):
    """Feature map of `ops.feature_pieces`: one of `MAPS` and its rows."""

    name: Map
    rows: Tensor  # H R D

    @property
    def num_features(self) -> int:
        """Return the number of features M."""
        return self.rows.shape[1] * (2 if self.name in _PAIRED else 1)

    @property
    def is_signed(self) -> bool:
        """Return whether features are of either sign."""
        return self.name == "trigonometric"

    def of_keys(
        self, k: Tensor, real: Tensor | None, level: Tensor | None, is_highest: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the features of keys, relative to the largest key of each feature.

        Of trigonometric ones the largest key of all features counts.
        """
        if self.name == "relu":
            return _rectified(k, self.rows, real), None
        if self.name in EXPONENTIAL:
            ek = _key_exponents(self.name, k, self.rows, real)
            level = _level(level, ek, is_highest)
            return ek.sub_(finite_level(level)).exp_(), level
        fk, weight = _trigonometric(k, self.rows, real)
        level = _level(level, weight, is_highest)
        return fk * (weight - finite_level(level)).exp(), level

    def of_queries(self, q: Tensor, level: Tensor | None) -> Tensor:
        """Compute the features of queries.

        The level of a feature moves from keys to queries, which prevents underflow of the sums. A
        common factor of a query cancels: its largest exponential feature is one.
        """
        if self.name == "relu":
            return _rectified(q, self.rows)
        if self.name == "trigonometric":
            return _trigonometric(q, self.rows)[0]
        assert level is not None, "features of keys come first"
        eq, level = _projected(self.name, q, self.rows), finite_level(level)
        # vmap may map the keys alone.
        eq = eq + level if has_transforms() else eq.add_(level)
        return eq.sub_(eq.detach().amax(-1, keepdim=True)).exp_()

    def key_gradient(self, k: Tensor, fk: Tensor, dfk: Tensor, multiply: Product) -> Tensor:
        """Compute the gradient of keys, whose norms are in their features too, except with relu."""
        if self.name == "relu":
            return self.query_gradient(fk, dfk, multiply)
        if self.name == "trigonometric":
            norm = (fk * dfk).sum(-1, keepdim=True)
            dk = self.query_gradient(fk, dfk, multiply)
        else:
            change = dfk.mul_(fk)
            norm = change.sum(-1, keepdim=True).neg_().to(k.dtype)
            dk = self._gradient(self._unpaired(change), multiply)
        return dk.addcmul_(k, norm, value=k.shape[-1] ** -0.5)

    def query_gradient(self, fq: Tensor, dfq: Tensor, multiply: Product) -> Tensor:
        """Compute the gradient of queries from the derivative of their projections."""
        if self.name == "relu":
            return self._gradient(dfq.mul_(fq > _RELU_FLOOR), multiply)
        if self.name in EXPONENTIAL:
            return self._gradient(self._unpaired(dfq.mul_(fq)), multiply)
        (cos, sin), (dcos, dsin) = fq.chunk(2, -1), dfq.chunk(2, -1)
        return self._gradient(cos * dsin - sin * dcos, multiply)

    def _unpaired(self, change: Tensor) -> Tensor:
        """Return derivatives by the rows from those by exponents, which may be mirrored."""
        if self.name == "softmax":
            return change
        plus, minus = change.chunk(2, -1)
        return plus - minus

    def _gradient(self, change: Tensor, multiply: Product) -> Tensor:
        """Return the gradient of x from that of its projections w_r . x~."""
        rows = self.rows.to(change.dtype)
        return multiply(change, rows).mul_(rows.shape[-1] ** -0.25)


def _level(level: Tensor | None, exponents: Tensor, is_highest: bool) -> Tensor:
    """Raise a level (B, H, 1, M), unless it is the highest, to exponents of keys (B, H, P, M).

    Levels cancel in the ratio of the sums, so they need no gradient.
    """
    if level is not None and is_highest:
        return level
    highest = exponents.detach().amax(-2, keepdim=True)
    return highest if level is None else torch.maximum(level, highest)


def _scaled(x: Tensor) -> Tensor:
    return x * x.shape[-1] ** -0.25


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True) / 2


def _key_exponents(feature_map: Map, k: Tensor, W: Tensor, real: Tensor | None) -> Tensor:
    """Return the logarithms of the features of keys (B, H, S, M), -inf if masked."""
    half = _half_square(_scaled(k))
    half = half if real is None else half.masked_fill(~real, torch.inf)
    return _projected(feature_map, k, W).sub_(half)


def _projected(feature_map: Map, x: Tensor, W: Tensor) -> Tensor:
    """Return w_r . x~, and its negative if mirrored."""
    p = _scaled(x) @ W.to(x.dtype).mT
    return p if feature_map == "softmax" else torch.cat([p, -p], -1)


def _trigonometric(x: Tensor, W: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return trigonometric features without their first factor, and its logarithm (B, H, T, 1)."""
    x = _scaled(x)
    p, weight = x @ W.to(x.dtype).mT, _half_square(x)
    weight = weight if real is None else weight.masked_fill(~real, -torch.inf)
    return torch.cat([p.cos(), p.sin()], -1), weight


def _rectified(x: Tensor, W: Tensor, real: Tensor | None = None) -> Tensor:
    fx = (_scaled(x) @ W.to(x.dtype).mT).relu() + _RELU_FLOOR
    return fx if real is None else fx * real


def random_rows(
    rows: int, columns: int, generator: torch.Generator, orthogonal: bool, norms: str
) -> Tensor:
    """Draw `rows` vectors of uniform direction.

    Args:
        rows: number of vectors.
        columns: width of a vector, D.
        generator: source of randomness.
        orthogonal: whether rows are orthogonal within every block of D rows, or independent. Blocks
            are Haar distributed: the signs of QR's diagonal are undone, otherwise the first
            coordinates are biased to one side and so is exp(w.x).
        norms: "chi" (of D degrees, drawn separately: every row alone is exactly N(0, I)) or
            "sqrt_d" (equal norms: the "regularized" kernel). Choromanski et al. 2021, section 3.

    Returns:
        float64 matrix (rows, columns).
    """

    def gaussian(count: int) -> Tensor:
        return draw_normal((count, columns), generator, torch.float64)

    if orthogonal:
        blocks = [_haar(gaussian(columns)) for _ in range(-(-rows // columns))]
        directions = torch.cat(blocks)[:rows]
    else:
        directions = torch.nn.functional.normalize(gaussian(rows), dim=1)
    if norms == "sqrt_d":
        return directions * columns**0.5
    return directions * gaussian(rows).norm(dim=1)[:, None]


def _haar(gaussian: Tensor) -> Tensor:
    """Return the orthogonal factor of a square Gaussian matrix, uniform among orthogonal ones."""
    q, r = torch.linalg.qr(gaussian)
    # The signs make the columns of q uniform.
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)
