"""Synthesizer, Tay et al. 2021 (https://arxiv.org/abs/2005.00743), section 3.

    out = softmax(sum_i w_i S_i) v,   w = softmax(alpha), learned

    dense              S_ts = (W2 relu(q_t) + b2)_s
    factorised_dense   S_ts = (A relu(q_t) + a)_{s div n} (B relu(q_t) + b)_{s mod n}
    random             S_ts = R_ts
    factorised_random  S_ts = sum_j U_tj V_sj,  j = 1 .. factors
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
from typing import Literal, cast

import torch
from torch import nn

from longspan.attention._softmax import pair_mask
from longspan.attention._synthetic import PARTS, Part
from longspan.attention.base import Attention, Traits, joined, register
from longspan.attention.masking import masked_softmax, zeroed
from longspan.attention.traits import Reads
from longspan.errors import OptionError


@register("synthesizer", knob="factors")
class SynthesizerAttention(Attention):
    """Softmax attention whose scores come from queries alone, or from nothing."""

    traits = Traits(
        paper="Tay et al. 2021, https://arxiv.org/abs/2005.00743",
        cost="T^2",
        exact=False,
        causal=True,
        reads="v",
        sizes=("heads", "head_dim", "max_length", "layer"),
    )
    small = {"scores": "+".join(PARTS), "factors": 3, "trainable": False}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        max_length: int,
        layer: int = 0,
        scores: str = "factorised_random",
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
        read = "".join(PARTS[name].reads for name in names)
        reads: Reads = "qkv" if "k" in read else "qv" if "q" in read else "v"
        self.traits = dataclasses.replace(type(self).traits, reads=reads)

    def _parts(self) -> list[Part]:
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
        state = joined(cache, {"k": k, "v": v}, key_mask)
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
        return out if mask is None else zeroed(out, mask.any(-1, keepdim=True))

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
