"""Mechanisms whose weights are known, and calls to try weights on."""

import torch

from longspan.analysis.weights import Call
from longspan.attention import MECHANISMS, Attention, Traits, build

HEADS, HEAD_DIM, LENGTH = 3, 8, 33


class Given(Attention):
    """The weights it was given, (H, T, S), whatever q and k are."""

    name = "given"
    traits = Traits(paper="none", cost="T^2", exact=False, cross=True)

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def attend(self, q, k, v, key_mask):
        return self.weights.to(v) @ v


def given(weights, B=1, key_mask=None):
    """A call of it."""
    weights = torch.as_tensor(weights, dtype=torch.float64)
    H, T, S = weights.shape
    q, k = (torch.zeros(B, H, n, 4, dtype=torch.float64) for n in (T, S))
    return Call(Given(weights), q, k, key_mask=key_mask)


def built(name, causal=False, options=None):
    """A small mechanism in float64 whose parameters are nowhere zero or one."""
    options = MECHANISMS[name].small_options if options is None else options
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 64}
    torch.manual_seed(5)
    attention = build(name, causal=causal, **sizes, **options).double().eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return attention


def call_of(attention, B=2, T=LENGTH, mask=None, global_mask=None, seed=0):
    """Random inputs; what stands at padded positions is large."""
    generator = torch.Generator().manual_seed(seed)
    shape = (B, HEADS, T, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return Call(attention, q, k, v, mask, global_mask=global_mask)


def ragged(T=LENGTH):
    """Two rows, the second one six tokens shorter."""
    return torch.arange(T) < torch.tensor([T, T - 6])[:, None]
