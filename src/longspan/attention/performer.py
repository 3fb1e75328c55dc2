"""Performer, Choromanski et al. 2021 (https://arxiv.org/abs/2009.14794), FAVOR+.

    out_t = phi(q_t)^T sum_s phi(k_s) v_s^T / (phi(q_t)^T sum_s phi(k_s))

phi has `features` entries made of rows w_r ~ N(0, I) such that E[phi(q) . phi(k)] is
exp(q . k / sqrt D), by `map` (formulas in _features.py): "softmax" (positive, eq. 7),
"hyperbolic" (w_r and -w_r, less variance), "trigonometric" (weights may be negative; where those
of a row sum to less than 1/1000 of the most that one key can weigh, the row is zero), or "relu"
(another kernel, section 4; `features=None`: of the coordinates alone, as in Long Range Arena).
`orthogonal`: in blocks of D rows, which lowers the error. `norms`: of the rows, chi or sqrt(D).

Training redraws the rows every `redraw_every` steps, between steps: inside one a checkpointed
forward pass would be repeated with other rows. They are saved. What differs from the public code:
no epsilon is added to features; the stabiliser never looks at padding or, when causal, at the
future (keys keep their own scale c_s as a weight exp(c_s)); directions are Haar; each head and
layer draws its own.
"""

from typing import Literal

import torch

from longspan.attention._features import MAPS, PAIRED, RELU_FLOOR, Map, features, key_features
from longspan.attention._kernelised import CHUNK, State, causal_mix, mix, wide
from longspan.attention._projections import random_rows
from longspan.attention._softmax import pair_mask
from longspan.attention.base import Attention, Traits, register
from longspan.errors import OptionError

NORMS = ("chi", "sqrt_d")
LEAST = 1e-3


@register("performer", knob="features")
class PerformerAttention(Attention):
    """Random features whose products estimate the softmax kernel."""

    traits = Traits(
        paper="Choromanski et al. 2021, https://arxiv.org/abs/2009.14794",
        cost="T",
        exact=False,
        causal=True,
        cross=True,
        sizes=("heads", "head_dim", "layer"),
    )
    small = {"features": 16}
    blank = {"level": -torch.inf}

    projection: torch.Tensor

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        layer: int = 0,
        features: int | None = 256,
        map: Map = "softmax",
        orthogonal: bool = True,
        norms: Literal["chi", "sqrt_d"] = "chi",
        redraw_every: int | None = None,
        seed: int = 0,
        causal: bool = False,
    ):
        """Draw the projection (heads, rows, head_dim) from (seed, layer)."""
        super().__init__()
        for given, names in ((map, MAPS), (norms, NORMS)):
            if given not in names:
                raise OptionError(f"performer knows {', '.join(names)}, not {given!r}")
        self.causal, self.map, self.layer = causal, map, layer
        self.orthogonal, self.norms = orthogonal, norms
        self.random, self.features = features is not None, features or head_dim
        rows, odd = divmod(self.features, 2) if map in PAIRED else (self.features, 0)
        if rows < 1 or odd or features == 0 or not (self.random or map == "relu"):
            least = "an even number" if map in PAIRED else "at least 1"
            raise OptionError(f"performer, map {map!r}: features must be {least}, got {features}")
        if redraw_every is not None and (redraw_every < 1 or not self.random):
            raise OptionError(f"performer redraws rows every n >= 1 steps, got {redraw_every}")
        self.redraw_every = redraw_every
        self.register_buffer("projection", torch.empty(heads, rows, head_dim))
        self.redraw(seed)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Draw new rows from (seed, layer), the same in every process."""
        heads, rows, columns = self.projection.shape
        generator = torch.Generator().manual_seed(seed * 1_000_003 + self.layer)
        how = (generator, self.orthogonal, self.norms)
        drawn = [random_rows(rows, columns, *how) for _ in range(heads if self.random else 0)]
        self.projection.copy_(torch.stack(drawn) if drawn else torch.eye(columns) * columns**0.25)

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: the projection belongs to these heads and this width."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        expected = (self.projection.shape[0], self.projection.shape[2])
        if (got := (q.shape[1], q.shape[3])) != expected:
            reasons.append(f"it was built for (heads, head_dim) = {expected}, got {got}")
        return reasons

    def attend(self, q, k, v, key_mask):
        """Features in range, then one summary of the keys (running in chunks when causal)."""
        if self.causal:
            return self.advance(q, k, v, key_mask, None)[0]
        q, k, wide_v = (wide(x) for x in (q, k, v))
        fq, fk = features(self.map, q, k, self.projection, key_mask)
        return mix(fq, fk, wide_v, self._least()).to(v.dtype)

    def advance(self, q, k, v, key_mask, cache):
        """The summary of the keys is all there is to keep: its size does not grow."""
        state = None if cache is None else State(**cache.state)
        fq, fk, weight = key_features(self.map, wide(q), wide(k), self.projection, key_mask)
        out, state = causal_mix(fq, fk, wide(v), weight, state, self._least())
        return out.to(v.dtype), state._asdict()

    def _least(self):
        return LEAST * self.projection.shape[1] if self.map == "trigonometric" else None

    def _phi(self, x):
        """The features (B, H, T, M), written out."""
        p = torch.einsum("bhtd,hmd->bhtm", x, self.projection.to(x.dtype)) / x.shape[-1] ** 0.25
        half = x.square().sum(-1, keepdim=True) / (2 * x.shape[-1] ** 0.5)
        if self.map == "relu":
            return p.relu() + RELU_FLOOR
        if self.map == "trigonometric":
            return torch.cat([p.cos(), p.sin()], -1) * half.exp()
        return torch.cat([p, -p] if self.map == "hyperbolic" else [p], -1).sub(half).exp()

    def reference(self, q, k, v, key_mask):
        """The matrix of estimated weights, masked and normalised."""
        fq, fk = self._phi(q), self._phi(k)
        allowed = pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        weights = fq @ fk.mT * allowed
        total = weights.sum(-1, keepdim=True)
        most = (fq.norm(dim=-1)[..., None] * fk.norm(dim=-1)[:, :, None] * allowed).amax(-1, True)
        some = total.abs() > (LEAST * most if self.map == "trigonometric" else 0)
        return (weights / total.where(some, 1.0) * some) @ v

    def flops(self, T, head_dim):
        """Features of q and k, the summary, its reading, and the chunk when causal."""
        M, rows = self.features, self.projection.shape[1]
        inside = 2 * T * min(CHUNK, T) * (M + head_dim) if self.causal else 0
        return 4 * T * (rows + M) * head_dim + 4 * T * M + inside
