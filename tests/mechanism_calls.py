"""Mechanisms with known weights and calls of them."""

import torch

from longspan.attention import MECHANISMS, Attention, Inputs, Traits, build
from longspan.attention.weights import Call

HEADS, HEAD_DIM, LENGTH = 3, 8, 33


class FixedWeights(Attention):
    """Mechanism with fixed weights (H, T, S), independent of q and k."""

    name = "fixed_weights"
    traits = Traits(paper="none", family="dense", cost="T^2", exact=False, cross=True)

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def attend(self, x):
        return self.weights.to(x.v) @ x.v


def call_with(weights, B=1, mask=None):
    """Return a call of a mechanism with these weights."""
    weights = torch.as_tensor(weights, dtype=torch.float64)
    H, T, S = weights.shape
    q, k = (torch.zeros(B, H, n, 4, dtype=torch.float64) for n in (T, S))
    return Call(FixedWeights(weights), Inputs(q, k, k, mask=mask))


def build_small(name, causal=False, options=None):
    """Build a small mechanism in float64 with perturbed parameters."""
    options = MECHANISMS[name].small_options if options is None else options
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 64}
    torch.manual_seed(5)
    attention = build(name, causal=causal, **sizes, **options).double().eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return attention


def make_call(attention, B=2, T=LENGTH, mask=None, global_mask=None, seed=0):
    """Return a call with random inputs."""
    generator = torch.Generator().manual_seed(seed)
    shape = (B, HEADS, T, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return Call(attention, Inputs(q, k, v, global_mask=global_mask, mask=mask))


def ragged_mask(T=LENGTH):
    """Return the mask of two rows; the second is six tokens shorter."""
    return torch.arange(T) < torch.tensor([T, T - 6])[:, None]
