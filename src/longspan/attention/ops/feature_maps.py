"""Feature maps phi of linear attention besides elu + 1, and learned projections before them.

    relu        max(x, 0)
    taylor      1, x_i / D^(1/4), x_i x_j / sqrt(D) (i < j), x_i^2 / sqrt(2 D)
    hedgehog    softmax over the 2 F entries of x W and -x W
    softmax     softmax over the D entries of x

Products of `taylor` are the first three terms of exp(s) in s = q . k / sqrt(D), 1 + s + s^2 / 2,
which is at least 1/2. The pairs of x (x) x are folded: their D^2 products occur twice. The last two
maps are given by their logarithms, since products of small features underflow.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from longspan.attention.ops.precision import at_least_float32

Map = Literal["elu", "relu", "taylor", "hedgehog", "softmax"]
MAPS = get_args(Map)
EXPONENTIAL = ("hedgehog", "softmax")


def count_features(feature_map: str, width: int) -> int:
    """Return the number of features of so many coordinates."""
    if feature_map == "taylor":
        return 1 + width + width * (width + 1) // 2
    return 2 * width if feature_map == "hedgehog" else width


def taylor_features(x: Tensor) -> Tensor:
    """Compute the features of the second-order Taylor series of exp, (..., D) to (..., M)."""
    x = x * x.shape[-1] ** -0.25
    # Slices have gradients that are sums of slices; those of an index are scattered.
    pairs = [x[..., i : i + 1] * x[..., i + 1 :] for i in range(x.shape[-1] - 1)]
    return torch.cat([torch.ones_like(x[..., :1]), x, x.square() * 2**-0.5, *pairs], -1)


def taylor_weights(q: Tensor, k: Tensor) -> Tensor:
    """Compute phi(q) . phi(k) of `taylor` for all pairs, without features."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return 1 + scores + scores.square() / 2


def feature_exponents(feature_map: str, x: Tensor) -> Tensor:
    """Compute the logarithms of the features of a map in `EXPONENTIAL`."""
    return (torch.cat([x, -x], -1) if feature_map == "hedgehog" else x).log_softmax(-1)


class Projections(nn.Module):
    """Learned maps of the queries and keys of each head, before the feature map.

    The maps are equal at first: the identity, or normal numbers with which q . k / sqrt(D) is the
    expectation of its projection.
    """

    def __init__(self, heads: int, head_dim: int, width: int, *, identity: bool):
        """Create both maps, (heads, head_dim, width)."""
        super().__init__()
        if identity:
            first = torch.eye(head_dim, width).repeat(heads, 1, 1)
        else:
            first = torch.randn(heads, head_dim, width) * (head_dim * width) ** -0.25
        self.query, self.key = nn.Parameter(first), nn.Parameter(first.clone())

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Project queries and keys (B, H, T, D) to (B, H, T, width), float32 or wider."""
        q, k = at_least_float32(q), at_least_float32(k)
        return q @ self.query.to(q.dtype), k @ self.key.to(k.dtype)
