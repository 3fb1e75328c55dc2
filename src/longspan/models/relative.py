"""Relative positions: numbers added to scores that depend on the distance of query and key.

    t5:        score_ij = q_i . k_j / sqrt(D) + b_(bucket of i - j)
    relative:  score_ij = ((q_i + u) . k_j + (q_i + w) . r_(i-j)) / sqrt(D),   r_d = P R_d

`t5` is that of Raffel et al. 2020 (https://arxiv.org/abs/1910.10683, section 2.1): one table of
numbers b for each head, which all layers share. T5 itself does not divide the products by sqrt(D).
`relative` is that of Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860, section
3.3): R_d is the sinusoid of the distance d, P its projection to a head, u and w a vector per head
(the paper's u and v); each layer has its own. Distances count positions of a row, padding included,
as windows do. They have no largest value, with global tokens included: those beyond
`relative_attention_max_distance` share a bucket, and `relative_clamp` limits the others.

Images have one learned number per head and two-dimensional offset, added to the scores of an exact
softmax as in Swin (Liu et al. 2021, https://arxiv.org/abs/2103.14030, eq. 4); Tay et al. 2021
(https://arxiv.org/abs/2011.04006), appendix A.2.1, report such inductive biases and leave their
form open:

    score_ij = q_i . k_j / sqrt(D) + b_(row_i - row_j, column_i - column_j)
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from longspan.attention import MECHANISMS, Attention, RelativeBias
from longspan.attention.ops.relative_positions import sinusoids
from longspan.errors import InputError, OptionError
from longspan.shapes import Float, Int

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


# Trait that a position encoding requires of every mechanism.
TRAITS = {"relative_2d": "bias", "t5": "relative", "relative": "relative"}


def t5_buckets(
    distances: Int[Tensor, " R"], buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, " R"]:
    """Return the bucket of each distance i - j of a query i and a key j.

    Half of the buckets hold one distance each, the others logarithmically more, and the last one
    all distances from `max_distance` on.

    Args:
        distances: distances, negative for keys after the query.
        buckets: number of buckets.
        max_distance: first distance of which all greater ones share the bucket.
        causal: whether all buckets are for keys before the query; if not, the second half is for
            those after it.
    """
    first = torch.zeros_like(distances)
    if causal:
        distances = distances.clamp(min=0)
    else:
        buckets //= 2
        first, distances = (distances < 0) * buckets, distances.abs()
    exact = buckets // 2
    # In float32, as in T5: a logarithm at the edge of two buckets may be rounded to either.
    ratio = torch.log(distances.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distances < exact, distances, far)


def has_buckets(config: "LongspanConfig") -> bool:
    """Return whether scores have the numbers of "t5", as the position or beside it."""
    return config.position == "t5" or config.has_relative_attention_bias


class T5Positions(nn.Module):
    """Table of one learned number for each bucket of distances and each head."""

    def __init__(self, config: "LongspanConfig"):
        super().__init__()
        self.buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.causal = config.is_decoder
        self.relative_attention_bias = nn.Embedding(self.buckets, config.num_attention_heads)

    def forward(self) -> RelativeBias:
        """Return the numbers of all distances."""
        return RelativeBias(self._numbers)

    def _numbers(self, distances: Tensor) -> Tensor:
        """Return the numbers (H, R) of distances (R,)."""
        entries = t5_buckets(distances, self.buckets, self.max_distance, self.causal)
        return self.relative_attention_bias(entries).mT


class RelativePositions(nn.Module):
    """Relative positions of Transformer-XL: P, u and w of one layer."""

    def __init__(self, heads: int, head_dim: int, clamp: int | None = None):
        super().__init__()
        self.clamp = clamp
        self.position = nn.Parameter(torch.empty(heads, head_dim, heads * head_dim))
        self.content_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.position_bias = nn.Parameter(torch.empty(heads, head_dim))

    def initialize(self, std: float) -> None:
        """Initialize all parameters that no checkpoint has set."""
        for parameter in self.parameters():
            initialization.normal_(parameter, std=std)

    def forward(self, q: Float[Tensor, "B H T D"]) -> tuple[Float[Tensor, "B H T D"], RelativeBias]:
        """Return the queries of the products, q + u, and the numbers of all distances.

        With one token, q + w is projected to the width of R instead of each R to a head.
        """
        u, w, project = (
            x.to(q.dtype)
            for x in (self.content_bias[:, None], self.position_bias[:, None], self.position)
        )
        asking, dtype = (q + w) * q.shape[3] ** -0.5, q.dtype
        if q.shape[2] == 1 and len(q) < q.shape[3]:
            relative = RelativeBias(lambda d: self._sinusoids(d, dtype)[None], asking @ project)
        else:
            relative = RelativeBias(lambda d: self._sinusoids(d, dtype) @ project.mT, asking)
        return q + u, relative

    def _sinusoids(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """Return R (distances, H x D)."""
        return sinusoids(distances, self.position.shape[2], self.clamp).to(dtype)


class RelativePositions2D(nn.Module):
    """Table of learned numbers for the offsets of two pixels of a `side` x `side` image."""

    def __init__(self, heads: int, side: int):
        super().__init__()
        self.side = side
        self.offsets = nn.Embedding((2 * side - 1) ** 2, heads)

    def forward(self, length: int, device: torch.device | None = None) -> Float[Tensor, "1 H N N"]:
        """Return the numbers of all pairs of N positions.

        Args:
            length: N, side x side pixels in row order, or one more for a summary token before
                them, whose pairs have the number zero.
            device: device of the input; None: that of the table.

        Raises:
            InputError: the number of pixels is another one.
        """
        pixels = self.side**2
        if length - pixels not in (0, 1):
            raise InputError(
                f"position='relative_2d' was built for images of {self.side} x {self.side} pixels, "
                f"got an input of {length}; use whole images, or another position encoding"
            )
        pixel = torch.arange(pixels, device=device or self.offsets.weight.device)
        row, column = (
            x[:, None] - x + self.side - 1 for x in (pixel // self.side, pixel % self.side)
        )
        entries = row * (2 * self.side - 1) + column
        bias = self.offsets(entries).permute(2, 0, 1)[None]
        return F.pad(bias, (1, 0, 1, 0)) if length > pixels else bias


def image_side(pixels: int) -> int | None:
    """Return the side of a square image, or None if the number of pixels is no square."""
    side = math.isqrt(pixels)
    return side if side * side == pixels else None


LayerPositions = RelativePositions2D | RelativePositions


def build_layer_positions(config: "LongspanConfig", mechanism: Attention) -> LayerPositions | None:
    """Build the relative positions that a layer owns; None: there are none.

    Raises:
        OptionError: the mechanism adds no such numbers to its scores with its options.
    """
    trait = _required_trait(config)
    if trait is not None and not getattr(mechanism.traits, trait):
        raise OptionError(
            f"{_chosen_field(config)} adds numbers to scores, which {mechanism.name} does not "
            "support with these options; change the options or the position"
        )
    side = image_side(config.max_position_embeddings)
    if config.position == "relative_2d" and side is not None:
        return RelativePositions2D(config.num_attention_heads, side)
    if config.position == "relative":
        return RelativePositions(config.num_attention_heads, config.head_dim, config.relative_clamp)
    return None


def add_positions(
    positions: LayerPositions | None, shared: RelativeBias | None, q: Float[Tensor, "B H T D"]
) -> tuple[Float[Tensor, "B H T D"], dict[str, Any]]:
    """Return the queries of a mechanism, and its `bias` or `relative`, if there are any.

    Args:
        positions: relative positions of the layer, or None.
        shared: numbers of distances that all layers share, or None.
        q: queries of the layer.
    """
    if isinstance(positions, RelativePositions2D):
        return q, {"bias": positions(q.shape[2], q.device).to(q.dtype)}
    if positions is not None:
        q, shared = positions(q)
    return q, {} if shared is None else {"relative": shared.to(q.dtype)}


def relative_refusals(config: "LongspanConfig") -> Iterator[str]:
    """Yield the reasons why a model cannot have the relative positions of its configuration."""
    trait = _required_trait(config)
    names = dict.fromkeys(config.attention_names)
    unable = [x for x in names if trait and not getattr(MECHANISMS[x].traits, trait)]
    if trait and unable:
        able = [name for name, cls in MECHANISMS.items() if getattr(cls.traits, trait)]
        yield (
            f"{_chosen_field(config)} adds numbers to scores, which {unable[0]} does not "
            f"support; use one of {', '.join(able)}, or another position"
        )
    if config.has_relative_attention_bias and config.position in TRAITS:
        yield (
            f"has_relative_attention_bias=True with position={config.position!r}: both add numbers "
            "to scores; set one of them"
        )
    if has_buckets(config):
        yield from _bucket_refusals(config)


def _required_trait(config: "LongspanConfig") -> str | None:
    """Return the trait of mechanisms that the positions require, or None."""
    return TRAITS.get("t5" if has_buckets(config) else config.position)


def _chosen_field(config: "LongspanConfig") -> str:
    """Return the field, and its value, that adds numbers to scores."""
    if config.has_relative_attention_bias:
        return "has_relative_attention_bias=True"
    return f"position={config.position!r}"


def _bucket_refusals(config: "LongspanConfig") -> Iterator[str]:
    """Yield the reason why buckets cannot hold the distances."""
    buckets = config.relative_attention_num_buckets
    farthest = config.relative_attention_max_distance
    sides = 1 if config.is_decoder else 2
    exact = buckets // sides // 2
    if buckets < 2 * sides or buckets % sides:
        yield (
            f"relative_attention_num_buckets must be at least {2 * sides}, and even unless "
            f"is_decoder=True, got {buckets}"
        )
    elif farthest <= exact:
        yield (
            f"relative_attention_max_distance must be greater than {exact}, the distances with a "
            f"bucket of their own, got {farthest}; change it or relative_attention_num_buckets"
        )
