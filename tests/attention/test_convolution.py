"""Depthwise convolution as products with bands: equal to the sum that defines it."""

import pytest
import torch
from contract import TOLERANCE, assert_near, qkv
from layouts import LAYOUTS, contiguous
from test_fused import names_of_graph

from longspan.attention.ops.convolution import BLOCK, convolve_values, make_depthwise_conv

H = 3
CASES = [(1, 1), (1, 5), (3, 9), (BLOCK - 1, 3), (BLOCK, 33), (BLOCK + 1, 7), (100, 65)]
every_case = pytest.mark.parametrize(("T", "size"), CASES)


def convolve_by_sum(v, kernels):
    """Add the shifted values, one place of the kernels after another."""
    T, size = v.shape[2], kernels.shape[1]
    padded = torch.nn.functional.pad(v, (0, 0, size // 2, size // 2))
    return sum(kernels[:, n, None, None] * padded[:, :, n : n + T] for n in range(size))


def inputs(T, size, dtype=torch.float64):
    """Return a convolution and values of two rows."""
    torch.manual_seed(0)
    conv = make_depthwise_conv(H, size).to(dtype)
    return conv, qkv(T, B=2)[2].to(dtype).requires_grad_()


def all_derivatives(function, v, weight):
    """Return the output, first and second derivatives."""
    out = function()
    first = torch.autograd.grad(out.square().sum(), (v, weight), create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), (v, weight))
    plain = torch.autograd.grad(function().square().sum(), (v, weight))
    return out, *first, *second, *plain


@every_case
def test_equals_the_sum_over_places(T, size):
    conv, v = inputs(T, size)
    out = convolve_values(conv, v)
    assert "_BandsBackward" in names_of_graph(out.grad_fn)
    found = all_derivatives(lambda: convolve_values(conv, v), v, conv.weight)
    expected = all_derivatives(lambda: convolve_by_sum(v, conv.weight[:, 0]), v, conv.weight)
    assert_near(found, expected, f"T={T}, {size} places")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_narrow_dtypes_keep_their_precision(dtype):
    """The gradient of the kernel by torch has errors of percents here, in float32."""
    conv, v = inputs(1024, 65, dtype)
    out = convolve_values(conv, v)
    found = out, *torch.autograd.grad(out.sum(), (v, conv.weight))
    wide, x = conv.double(), v.detach().double().requires_grad_()
    out = convolve_by_sum(x, wide.weight[:, 0])
    expected = out, *torch.autograd.grad(out.sum(), (x, wide.weight))
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == dtype
        assert (own - other).abs().max() <= TOLERANCE[dtype] * other.abs().max()


def test_transforms_have_the_same_derivatives():
    conv, v = inputs(40, 5)

    def convolve(v):
        return convolve_values(conv, v)

    assert_near(torch.func.vmap(convolve)(v[None])[0], convolve(v), "vmap")
    tangent = torch.func.jvp(convolve, (v.detach(),), (torch.ones_like(v),))[1]
    assert_near(tangent, convolve(torch.ones_like(v)), "forward mode")


def test_masked_values_contribute_nothing():
    conv, v = inputs(50, 7)
    mask = torch.rand(2, 50) < 0.6
    expected = convolve_by_sum(v * mask[:, None, :, None], conv.weight[:, 0])
    assert_near(convolve_values(conv, v, mask), expected, "masked")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_values_and_gradients(layout):
    conv, found = make_depthwise_conv(H, 5).double(), []
    views = [LAYOUTS[layout](x) for x in qkv(40, B=2)[:2]]
    for v, grad in (views, [contiguous(x) for x in views]):
        v = v.detach().requires_grad_()
        out = convolve_values(conv, v)
        found.append((out, *torch.autograd.grad(out, [v, conv.weight], grad)))
    assert_near(*found, layout)
