"""What the contract tests share: the cases, small inputs, and the one table of tolerances."""

import copy
import inspect

import pytest
import torch
from torch import Tensor

from longspan.attention import MECHANISMS, Attention, backends, build
from longspan.errors import InputError

HEADS, HEAD_DIM = 3, 8

# Absolute error allowed against the float64 reference on inputs of unit size.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}

CASES = [
    pytest.param(name, causal, backend, id=f"{name}-{'causal' if causal else 'full'}-{backend}")
    for name, cls in MECHANISMS.items()
    for causal in ((False, True) if cls.traits.causal else (False,))
    for backend in backends(name)
    if backend not in ("auto", "reference")
]
every_mechanism = pytest.mark.parametrize(("name", "causal", "backend"), CASES)


def built(name, causal=False, backend="torch", max_length=128, **sizes) -> Attention:
    """The mechanism at a size where a few dozen tokens show all of it, in float64."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": max_length, **sizes}
    small = MECHANISMS[name].small_options
    return build(name, causal=causal, backend=backend, **sizes, **small).double()


def unchecked(name, **options) -> Attention:
    """Build past the types that the tests check, so that the mechanism itself must refuse."""
    attention = MECHANISMS[name].__new__(MECHANISMS[name])
    inspect.unwrap(type(attention).__init__)(attention, **options)
    return attention


def slow_twin(attention: Attention) -> Attention:
    """The same weights, computed by the reference."""
    twin = copy.deepcopy(attention)
    twin.backend = "reference"
    return twin


def run(attention: Attention, *inputs, **masks) -> Tensor:
    """Call the mechanism; where a kernel refuses such inputs by itself, skip and say why."""
    try:
        return attention(*inputs, **masks)
    except InputError as refusal:
        if attention.backend in ("torch", "reference"):
            raise
        pytest.skip(str(refusal))


def qkv(T, S=None, B=3, H=HEADS, D=HEAD_DIM, E=None, seed=0, dtype=torch.float64):
    """Random queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, E)."""
    g = torch.Generator().manual_seed(seed)
    S = T if S is None else S
    shapes = ((B, H, T, D), (B, H, S, D), (B, H, S, D if E is None else E))
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def key_masks(T, B=3):
    """No mask, padding on the right of different length in each row, and holes anywhere."""
    g = torch.Generator().manual_seed(T)
    lengths = torch.tensor([T, max(1, T - 3), (T + 1) // 2])[:B]
    return {
        "none": None,
        "ragged": torch.arange(T) < lengths[:, None],
        "holes": torch.rand(B, T, generator=g) < 0.6,
    }


def global_masks(name, T, B=3):
    """Only None, or also a different number of global tokens in each row, one row without."""
    masks = [None]
    if MECHANISMS[name].traits.global_tokens:
        g = torch.Generator().manual_seed(T + 1)
        share = torch.tensor([0.1, 0.3, 0.0])[:B, None]
        masks.append(torch.rand(B, T, generator=g) < share)
    return masks


def obeys(attention: Attention, lengths=(1, 7, 8, 9, 33, 64)) -> None:
    """The heart of the contract for one more set of options, in float64.

    Output and gradients equal the reference's under every mask; padding (NaN), the other rows of
    the batch and, where causal, the future have no influence; steps equal the whole.
    """
    name = attention.name
    for T in lengths:
        for kind, mask in key_masks(T).items():
            for global_mask in global_masks(name, T):
                found = []
                for body in (attention, slow_twin(attention)):
                    inputs = [x.requires_grad_() for x in qkv(T)]
                    out = body(*inputs, mask, global_mask=global_mask)
                    found.append((out, *gradients(out, inputs, body)))
                names = ["output", "q", "k", "v", *(n for n, _ in attention.named_parameters())]
                for what, a, b in zip(names, *found, strict=True):
                    assert_near(a, b, f"T={T}, {kind}, {what}")
    T, p = 33, 7
    inputs, mask = qkv(T), torch.arange(T + p) < T
    whole = attention(*inputs)
    padded = [torch.cat([x, torch.full_like(x[:, :, :p], torch.nan)], 2) for x in inputs]
    assert_near(attention(*padded, mask.expand(3, -1))[:, :, :T], whole, "padding")
    for b in range(3):
        assert_near(attention(*(x[b : b + 1] for x in inputs))[0], whole[b], f"row {b} alone")
    if attention.causal:
        for t in (0, 8, 20):
            future = (torch.arange(T) > t)[:, None]
            changed = [torch.where(future, 50 * x, x) for x in inputs]
            rows = slice(None, t + 1)
            assert_near(attention(*changed)[:, :, rows], whole[:, :, rows], f"rows up to {t}")
        outs, cache = [], None
        for t in range(T):
            out, cache = attention.step(*(x[:, :, t : t + 1] for x in inputs), cache)
            outs.append(out)
        assert_near(torch.cat(outs, 2), whole, "one token after another")


def gradients(out: Tensor, inputs, attention: Attention, seed=0):
    """Gradients of a random projection of `out` to the inputs and every parameter."""
    g = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(out.shape, generator=g, dtype=torch.float64).to(out.dtype)
    targets = [*inputs, *attention.parameters()]
    return torch.autograd.grad(out, targets, cotangent, allow_unused=True, materialize_grads=True)


def assert_near(actual: Tensor, expected: Tensor, what: str, atol: float = 1e-10):
    """Elementwise equality up to `atol` absolutely, and relatively where values exceed one."""
    torch.testing.assert_close(
        actual, expected, atol=atol, rtol=atol, msg=lambda text: f"{what}: {text}"
    )
