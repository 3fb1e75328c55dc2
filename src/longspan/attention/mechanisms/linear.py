"""Linear attention, Katharopoulos et al. 2020 (https://arxiv.org/abs/2006.16236), eq. 5 and 7.

    out_t = phi(q_t)^T sum_s phi(k_s) v_s^T / (phi(q_t)^T sum_s phi(k_s))

    elu        phi(x) = elu(x) + 1                      the paper
    relu       phi(x) = max(x, 0)                       Kasai et al. 2021, after a learned map
    taylor     phi(x) = [1, x, x (x) x / sqrt 2]        Based, x scaled by D^(-1/4)
    hedgehog   phi(x) = softmax([x W, -x W])            Hedgehog, W per head, the identity at first
    softmax    phi(x) = softmax(x) over the features    half of LoLCATs' map, without its W

The sums run over s <= t when causal (computed exactly, in chunks), over all keys otherwise.
`feature_dim` projects q and k to so many coordinates first, by matrices of each head; that of
hedgehog is the width of its W. There is no 1/sqrt(D) but in taylor, and no epsilon in the
denominator: the weights of a row sum to one. A row of relu is zero if no feature of its query is
one of a key.

`distillation` adds the loss of Hedgehog (https://arxiv.org/abs/2402.04347): the cross-entropy
between the weights of softmax attention, softmax(q k^T / sqrt D), and those of the map. It trains W
alone, next to the loss of the task, where the paper trains W first with all other parameters fixed.
At most 256 queries, evenly spaced, take part, so the cost stays linear. Steps of a sequence compare
the weights of their tokens alone.

Other sources: https://arxiv.org/abs/2103.13076 (relu), https://arxiv.org/abs/2402.18668 (Based) and
https://arxiv.org/abs/2410.10254 (LoLCATs). Their code adds an epsilon to sums or features. Products
of features of hedgehog and softmax are taken relative to the largest, so norms may be of any size.
"""

import dataclasses

import torch
from torch import Tensor

from longspan.attention.base import Attention, Traits, register
from longspan.attention.derivatives import apply_function
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.masking import masked_softmax, zero_masked
from longspan.attention.ops.feature_map_sums import (
    State,
    causal_mix,
    causal_mix_exponential,
    finite_level,
    mix_documents,
)
from longspan.attention.ops.feature_maps import (
    EXPONENTIAL,
    Map,
    Projections,
    count_features,
    feature_exponents,
    taylor_features,
    taylor_weights,
)
from longspan.attention.ops.feature_pieces import mix
from longspan.attention.ops.precision import as_operands, at_least_float32, dot_products
from longspan.attention.ops.recurrence import CHUNK
from longspan.attention.ops.softmax import pair_mask
from longspan.attention.option_types import PositiveInt
from longspan.errors import OptionError

QUERIES = 256  # largest number of queries of a distillation


@register("linear")
class LinearAttention(Attention):
    """Attention with weights phi(q) . phi(k): keys and values are summed once for all queries."""

    traits = Traits(
        paper="Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236",
        family="kernel",
        cost="T",
        exact=False,
        causal=True,
        cross=True,
        packed=True,
        ignores_gaps=True,
        state_size="1",
    )
    empty_state = {"level": -torch.inf}

    def __init__(
        self,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        feature_map: Map = "elu",
        feature_dim: PositiveInt | None = None,
        distillation: bool = False,
        causal: bool = False,
    ):
        """Create the learned part of the feature map, if it has one.

        Args:
            feature_map: phi, see the module.
            feature_dim: coordinates to which q and k are projected, or None.
            distillation: whether hedgehog learns from the weights of softmax attention too.
        """
        super().__init__()
        if distillation and feature_map != "hedgehog":
            expected = f'requires feature_map="hedgehog", got {feature_map!r}'
            raise OptionError(f"linear: option distillation {expected}")
        self.causal, self.feature_map, self.has_auxiliary_loss = causal, feature_map, distillation
        self.feature_dim, self.projections = feature_dim, None
        is_exponential = feature_map in EXPONENTIAL
        # Chunks of exponents have levels, which one chunk after another raises.
        self.loops_over_length = causal and is_exponential
        if is_exponential:
            self.traits = dataclasses.replace(self.traits, packed=False)
        if feature_map == "relu":
            self.traits = dataclasses.replace(self.traits, row_sums="at most one")
        if feature_map == "hedgehog" or feature_dim is not None:
            if heads is None or head_dim is None:
                reason = f"feature_map={feature_map!r} and feature_dim={feature_dim}"
                raise OptionError(f"linear: {reason} require the sizes heads and head_dim")
            self.built_for = {"heads": heads, "head_dim": head_dim}
            width, identity = feature_dim or head_dim, feature_map == "hedgehog"
            self.projections = Projections(heads, head_dim, width, identity=identity)

    def attend(self, x):
        """Sum phi(k) v^T over the keys, then multiply by phi(q)."""
        if self.causal:
            return self.advance(x)[0]
        q, k, v, key_mask = x[:4]
        if self.feature_map in EXPONENTIAL:
            features = _relative_features(*self._exponents(q, k, key_mask))
            return mix(*features, at_least_float32(v)).to(v.dtype)
        if q.dtype != torch.bfloat16 or self.feature_map != "elu" or self.projections is not None:
            fq, fk = self._features(q, k, None)
            return mix(fq, fk, at_least_float32(v), key_mask).to(v.dtype)
        # phi of a bfloat16 is rounded once.
        q, k, v = as_operands(q, k, v)
        return mix(phi(q), phi(k), v, key_mask)

    def attend_packed(self, x):
        """Sum phi(k) v^T within each document."""
        fq, fk = self._features(x.q, x.k, None)
        return mix_documents(fq, fk, at_least_float32(x.v), x.documents, self.causal).to(x.v.dtype)

    def _projected(self, q, k):
        if self.projections is None:
            return at_least_float32(q), at_least_float32(k)
        return self.projections(q, k)

    def _features(self, q, k, key_mask):
        feature_map = {"elu": phi, "relu": torch.relu, "taylor": taylor_features}[self.feature_map]
        fq, fk = map(feature_map, self._projected(q, k))
        return fq, fk if key_mask is None else fk * key_mask[:, None, :, None]

    def _exponents(self, q, k, key_mask):
        """Return the logarithms of the features, -inf at masked keys."""
        eq, ek = (feature_exponents(self.feature_map, y) for y in self._projected(q, k))
        if key_mask is not None:
            ek = ek.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        return eq, ek

    def advance(self, x):
        """Update the running sums, whose size is constant."""
        state, wide_v = None if x.cache is None else State(**x.cache.state), at_least_float32(x.v)
        if self.feature_map in EXPONENTIAL:
            eq, ek = self._exponents(x.q, x.k, x.key_mask)
            out, state = causal_mix_exponential(eq, ek, wide_v, state)
        else:
            fq, fk = self._features(x.q, x.k, x.key_mask)
            out, state = causal_mix(fq, fk, wide_v, state=state)
        return out.to(x.v.dtype), state._asdict()

    def reference(self, x):
        """Compute the matrix of weights, masked and normalized."""
        q, k, v, key_mask = x[:4]
        if self.projections is not None:
            q = torch.einsum("bhtd,hdf->bhtf", q, self.projections.query)
            k = torch.einsum("bhtd,hdf->bhtf", k, self.projections.key)
        weights = self._products(q, k)
        weights = weights * pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        total = weights.sum(-1, keepdim=True)
        return (weights / torch.where(total > 0, total, 1.0)) @ v

    def _products(self, q, k):
        """Compute phi(q) . phi(k) by the formula."""
        if self.feature_map == "taylor":
            return taylor_weights(q, k)
        if self.feature_map == "elu":
            fq, fk = phi(q), phi(k)
        elif self.feature_map == "relu":
            fq, fk = q.clamp(min=0), k.clamp(min=0)
        else:
            both = self.feature_map == "hedgehog"
            fq, fk = ((torch.cat([y, -y], -1) if both else y).softmax(-1) for y in (q, k))
        return torch.einsum("bhtd,bhsd->bhts", fq, fk)

    def auxiliary_loss(self, x):
        """Return the cross-entropy between the weights of softmax attention and those of the map.

        It is the mean over heads and over real queries, of which at most `QUERIES` take part.
        """
        if not self.has_auxiliary_loss:
            return None
        real = x.real if x.mask is None else x.mask
        q, k = (zero_masked(y.detach(), x.mask) for y in (x.q, x.k))
        rows = torch.linspace(0, q.shape[2] - 1, min(QUERIES, q.shape[2]), device=q.device).long()
        q, k = q[:, :, rows], repeat_heads(k, q.shape[1])
        mask = real[:, None, None, :]
        if self.causal:
            mask = mask & (torch.arange(k.shape[2], device=q.device) <= rows[:, None])
        expected = masked_softmax(dot_products(q, k, q.shape[-1] ** -0.5), mask)
        fq, fk = _relative_features(*self._exponents(q, k, real.expand(len(q), -1)))
        scores, least = fq @ fk.mT * mask, torch.finfo(fq.dtype).tiny
        logs = scores.clamp(min=least).log() - scores.sum(-1, keepdim=True).clamp(min=least).log()
        used = (real[:, rows] & mask.any(-1)[:, 0]).to(fq.dtype)
        losses = -(expected * mask * logs).sum(-1).mean(1)
        return (losses * used).sum() / used.expand_as(losses).sum().clamp(min=1)

    def flops(self, T, head_dim):
        """Count two products with the M x D summary, with the chunk when causal, projections."""
        width = self.feature_dim or head_dim
        M = count_features(self.feature_map, width)
        inside = 2 * T * min(CHUNK, T) * (M + head_dim) if self.causal else 0
        projections = 0 if self.projections is None else 4 * T * head_dim * width
        return 4 * T * M * head_dim + 4 * T * M + inside + projections


def _relative_features(eq: Tensor, ek: Tensor) -> tuple[Tensor, Tensor]:
    """Return features relative to the largest key of each feature, and to the largest of a query.

    Both factors cancel in attention, so they need no gradient.
    """
    level = finite_level(ek.detach().amax(-2, keepdim=True))
    return (eq + level).softmax(-1), (ek - level).exp()


class _Phi(torch.autograd.Function):
    """phi, with a derivative that is read from its value: min(phi(x), 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        # elu itself rounds to -1 from x = -17 on.
        return x.clamp(max=0).exp_().add_(x.relu())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return ctx.saved_tensors[0].clamp(max=1).mul_(grad)

    @staticmethod
    def tangents(ctx, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0].clamp(max=1)


def phi(x: Tensor) -> Tensor:
    """Compute elu(x) + 1, positive everywhere."""
    if torch.compiler.is_compiling():  # inductor fuses this
        return x.clamp(max=0).exp() + x.relu()
    return apply_function(_Phi, x)
