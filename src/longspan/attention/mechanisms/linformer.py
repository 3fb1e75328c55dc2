"""Linformer, Wang et al. 2020 (https://arxiv.org/abs/2006.04768), eq. 7.

    out = softmax(q (E k)^T / sqrt(D)) (F v),   E, F: rank x max_length

Keys and values are projected along the sequence to `rank` slots. A shorter input uses the leading
columns of E and F, and padded keys are zero before they are projected, so padding changes nothing.
Entries start at N(0, 1 / columns): a projected key then has the scale of a key. There is no causal
form, because every slot mixes the future.

`sharing` (section 4): "none" (E and F for each head), "headwise" (E and F for all heads),
"key_value" (one E = F for all heads), "layerwise" (one E = F for all layers of a model, which owns
it and passes it to every layer).
`projection`: "learned"; "random", not trained, with entries of N(0, 1 / rank) as in Theorem 2, so
that E^T E is I in expectation and a slot is sqrt(S / rank) times as large as a key; or one of the
alternatives of section 4. "mean" and "max" pool `rank` segments of each row's real tokens (of
nearly equal size; fewer tokens are slots themselves) and have no parameters. "convolution" is an E
whose rows repeat one row of W = ceil(max_length / rank) weights, each W columns further. Only slots
with a real token exist.
"""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention, Traits, register
from longspan.attention.ops.draws import draw_normal, to_defaults
from longspan.attention.ops.open_sizes import fit_block, resize, split_blocks
from longspan.attention.ops.pooling import (
    averaging_matrix,
    membership_matrix,
    segment_maxima,
    segment_tokens,
)
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.option_types import PositiveInt
from longspan.errors import OptionError

MATRICES = ("learned", "random")


@register("linformer", size_option="rank")
class LinformerAttention(Attention):
    """Softmax attention over `rank` mixtures of the keys."""

    traits = Traits(
        paper="Wang et al. 2020, https://arxiv.org/abs/2006.04768",
        family="low rank",
        cost="T",
        exact=False,
        row_sums="any",
        cross=True,
        scale=True,
        shares_parameter=True,
        sizes=("heads", "max_length", "layer"),
        anchored=True,
    )
    small_options = {"rank": 8}
    picture_options = {"projection": "mean"}
    layered_options = {"rank": 1}
    released: bool = False  # whether the model owns the projection

    projection: Tensor | None

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        layer: int = 0,
        rank: PositiveInt | list[PositiveInt] = 256,
        sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise",
        projection: Literal["learned", "random", "mean", "max", "convolution"] = "learned",
        seed: int = 0,
    ):
        """Create the projections along the sequence.

        Args:
            rank: number of slots; a list gives one number per layer.
            sharing: which heads, layers, keys and values share a projection.
            projection: kind of projection.
        """
        super().__init__()
        ranks = rank if isinstance(rank, list) else [rank] * (layer + 1)
        if len(ranks) <= layer:
            expected = f"must have an entry for layer {layer}"
            raise OptionError(f"linformer: option rank {expected}; got {rank}")
        if sharing == "layerwise" and len(set(ranks)) > 1:
            expected = "requires one rank for all layers"
            raise OptionError(f"linformer: sharing='layerwise' {expected}, got {rank}")
        self.rank, self.sharing, self.built_for = ranks[layer], sharing, {"max_length": max_length}
        self.kind, pools = projection, projection in ("mean", "max")
        if projection == "mean":
            self.traits = dataclasses.replace(type(self).traits, row_sums="one")
        rows = heads if sharing == "none" and not pools else 1
        if rows > 1:
            self.built_for["heads"] = heads
        both = 1 if sharing in ("key_value", "layerwise") else 2
        columns = -(-max_length // self.rank) if projection == "convolution" else max_length
        slots = 1 if projection == "convolution" else self.rank
        self.shape = shape = both, rows, slots, columns
        if projection == "random":
            layer_seed = seed * 1_000_003 + (0 if sharing == "layerwise" else layer)
            generator = torch.Generator().manual_seed(layer_seed)
            drawn = draw_normal(shape, generator, torch.float64) * self.rank**-0.5
            self.register_buffer("projection", to_defaults(drawn))
            return
        self.projection = None if pools else nn.Parameter(torch.empty(shape))
        if self.projection is not None:
            nn.init.normal_(self.projection, std=columns**-0.5)

    def release_shared(self):
        """Return E, which the model owns from now on, if all layers share it."""
        if self.sharing != "layerwise" or not isinstance(self.projection, nn.Parameter):
            return None
        projection, self.projection, self.released = self.projection, None, True
        return projection

    def refusals(self, x):
        """Add reasons: a projection is missing, superfluous or of another shape."""
        reasons, shared = super().refusals(x), x.shared
        if not self.released:
            wrong = ["shared must be None: the mechanism owns its projection"]
            return reasons + wrong * (shared is not None)
        if shared is None:
            reason = "shared is required: the model owns the projection (release_shared)"
            return [*reasons, reason]
        shape = tuple(getattr(shared, "shape", ()))
        return reasons + [f"shared must be {self.shape}, got {shape}"] * (shape != self.shape)

    def attend(self, x):
        """Project k and v (zero where padded), then attend to the slots."""
        (q, k, v), real = x[:3], x.real
        weights: Any = self.projection if x.shared is None else x.shared
        if self.kind in MATRICES:
            return softmax_attention(q, _project(weights[0], k), _project(weights[-1], v), None)
        if self.kind == "convolution":
            W, E, F = weights.shape[-1], weights[0, :, None], weights[-1, :, None]
            slots, mixed = (
                (w.to(y.dtype) @ split_blocks(y, W)).squeeze(3) for w, y in ((E, k), (F, v))
            )
            live = split_blocks(real[:, None, :, None], W).any(3).mT
            return softmax_attention(q, slots, mixed, live)
        index, live = segment_tokens(real, fit_block(self.rank, k.shape[2]))
        if self.kind == "max":
            slots, mixed = (segment_maxima(y, index, live.shape[1]) for y in (k, v))
        else:
            matrix = averaging_matrix(membership_matrix(index, live.shape[1], k.dtype))
            slots, mixed = matrix @ k, matrix @ v
        return softmax_attention(q, slots, mixed, live[:, None, None])

    def reference(self, x):
        """Pool, apply softmax and mix, row by row and slot by slot."""
        (q, k, v), real = x[:3], x.real.expand(len(x.k), -1)
        every, rows = torch.ones((), dtype=torch.bool, device=q.device), []
        weights: Any = self.projection if x.shared is None else x.shared
        for b in range(len(q)):
            slots, mixed = (
                self._slots(None if weights is None else weights[i], y[b], real[b])
                for i, y in ((0, k), (-1, v))
            )
            rows.append(softmax_reference(q[b], slots, mixed, every))
        return torch.stack(rows)

    def _slots(self, weights, x, real):
        """Return the slots (H, slots, D) of one row (H, S, D); one zero slot if there are none."""
        places = real.nonzero()[:, 0]
        if self.kind in MATRICES:
            return weights[..., places].expand(len(x), -1, -1) @ x[:, places]
        if self.kind == "convolution":
            W = weights.shape[-1]
            groups = [places[places // W == run] for run in (places // W).unique()]
            slots = [(weights[:, 0, g % W, None] * x[:, g]).sum(1) for g in groups]
        else:
            L = min(self.rank, len(places))
            size, longer = divmod(len(places), max(L, 1))
            groups = places.split([size] * (L - longer) + [size + 1] * longer)
            slots = [x[:, g].mean(1) if self.kind == "mean" else x[:, g].amax(1) for g in groups]
        return torch.stack(slots or [0 * x[:, 0]], 1)

    def is_dense(self, T):
        """Return whether there are as many slots as keys."""
        return self.rank >= T

    def flops(self, T, head_dim):
        """Count two products with the slots, and two projections along the sequence."""
        products = 4 * T * self.rank * head_dim
        projections = {"max": 0, "convolution": 4 * T * head_dim}.get(self.kind, products)
        return products + projections


def _project(matrix, x):
    """Compute E x for each head (B, H, rank, D), as one product over samples and shared heads."""
    matrix = resize(matrix, x.shape[-2], -1).to(x.dtype)
    if matrix.shape[0] == 1:
        return torch.einsum("rs,bhsd->bhrd", matrix[0], x)
    return torch.einsum("hrs,bhsd->bhrd", matrix, x)
