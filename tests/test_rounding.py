"""Option `--other-rounding`: products that follow from the layout, as on another processor."""

import pytest
import torch

from longspan.attention import MECHANISMS, build
from rounding import OtherRounding


def misaligned(x):
    """Return the same numbers eight bytes further."""
    flat = torch.cat((x.new_zeros(1), x.flatten()))
    return flat[1:].view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_follow_from_the_layout_and_stay_close(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(2, 20, 20, dtype=dtype)
    plain = a @ b
    with OtherRounding():
        first, again, elsewhere, batch = a @ b, a @ b, a @ misaligned(b), (a[:7] @ b)
    assert torch.equal(first, again)
    assert not torch.equal(first, plain)
    assert not torch.equal(first, elsewhere)
    assert not torch.equal(first[:7], batch)
    for found in (first, elsewhere):
        torch.testing.assert_close(found, plain)


def test_zeros_and_values_that_are_not_finite_stay():
    a = torch.tensor([[0.0, 1.0], [torch.nan, 0.0]])
    with OtherRounding():
        found = a @ torch.zeros(2, 2)
    assert found[0].eq(0).all()
    assert found[1].isnan().all()


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_mechanisms_are_stable_under_it(name):
    """A mechanism whose result jumps with the last digit would differ between processors."""
    torch.manual_seed(0)
    sizes = {"heads": 2, "head_dim": 8, "max_length": 64}
    attention = build(name, **sizes, **MECHANISMS[name].small_options).double()
    inputs = [x.requires_grad_() for x in torch.randn(3, 2, 2, 50, 8).double()]
    plain = attention(*inputs)
    with OtherRounding():
        other = attention(*inputs)
    torch.testing.assert_close(other, plain)
    used = [x for x, letter in zip(inputs, "qkv", strict=True) if letter in attention.traits.inputs]
    gradients = torch.autograd.grad(plain.square().sum(), used)
    with OtherRounding():
        others = torch.autograd.grad(attention(*inputs).square().sum(), used)
    for one, two in zip(others, gradients, strict=True):
        torch.testing.assert_close(one, two)
