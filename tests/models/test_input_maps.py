"""Linear maps of the same states: values, derivatives, and modules that stand in their place."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from longspan.models.input_maps import map_states

SHAPE = (2, 7, 6)


def make_maps(bias=True):
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(6, size, bias=bias) for size in (4, 8, 4)]).double()


def one_by_one(x, maps):
    return tuple(each(x) for each in maps)


def is_joint(outputs):
    return outputs[0].grad_fn.name() == "_LinearMapsBackward"


def derivatives(function, x, maps):
    """Return outputs, gradients and second derivatives."""
    tensors = [y for y in (x, *maps.parameters()) if y.requires_grad]
    outputs = function(x, maps)
    # Outputs and gradients enter with different weights, so that no term cancels.
    loss = sum((y * torch.arange(1, y.shape[-1] + 1)).pow(3).sum() for y in outputs)
    first = torch.autograd.grad(loss, tensors, create_graph=True)
    second = torch.autograd.grad(sum(y.square().sum() for y in first), tensors)
    return *outputs, *first, *second


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no bias"])
@pytest.mark.parametrize("count", [1, 3])
def test_all_derivatives_equal_those_of_the_modules(bias, count):
    maps, x = make_maps(bias)[:count], torch.randn(SHAPE).double().requires_grad_()
    assert is_joint(map_states(x, maps))
    for found, expected in zip(
        derivatives(map_states, x, maps), derivatives(one_by_one, x, maps), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("frozen", ["states", "weight", "bias"])
def test_what_is_frozen_has_no_gradient(frozen):
    maps, x = make_maps(), torch.randn(SHAPE).double().requires_grad_()
    tensor = {"states": x, "weight": maps[1].weight, "bias": maps[0].bias}[frozen]
    tensor.requires_grad_(False)
    for found, expected in zip(
        derivatives(map_states, x, maps), derivatives(one_by_one, x, maps), strict=True
    ):
        torch.testing.assert_close(found, expected)
    sum(y.sum() for y in map_states(x, maps)).backward()
    assert tensor.grad is None
    assert all(y.grad is not None for y in (x, *maps.parameters()) if y is not tensor)


def test_an_output_that_is_not_used_adds_nothing():
    maps, x = make_maps(), torch.randn(SHAPE).double().requires_grad_()
    map_states(x, maps)[1].sum().backward()
    torch.testing.assert_close(x.grad, maps[1].weight.sum(0).expand(SHAPE))
    assert not maps[0].weight.grad.any()


class Doubled(nn.Linear):
    """Map that a library puts in place of another."""

    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Module):
    def forward(self, weight):
        return 3 * weight


def hook(maps, seen):
    maps[1].register_forward_hook(lambda *_: seen.append("hook"))


def pre_hook(maps, seen):
    maps[1].register_forward_pre_hook(lambda *_: seen.append("hook"))


def backward_hook(maps, seen):
    maps[1].register_full_backward_hook(lambda *_: seen.append("hook"))


def other_module(maps, seen):
    maps[1] = Doubled(6, 8).double()


def other_forward(maps, seen):
    own = maps[1].forward
    maps[1].forward = lambda x: seen.append("hook") or own(x)


def parametrization(maps, seen):
    parametrize.register_parametrization(maps[1], "weight", Scaled())


CHANGES = [hook, pre_hook, backward_hook, other_module, other_forward, parametrization]


@pytest.mark.parametrize("change", CHANGES, ids=lambda x: x.__name__)
def test_a_changed_module_is_called(change):
    maps, seen = make_maps(), []
    change(maps, seen)
    x = torch.randn(SHAPE).double().requires_grad_()
    outputs = map_states(x, maps)
    assert not is_joint(outputs)
    sum(y.sum() for y in outputs).backward()
    assert change in (other_module, parametrization) or seen
    for found, expected in zip(outputs, one_by_one(x, maps), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_hook_on_all_modules_is_called():
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("hook"))
    try:
        map_states(torch.randn(SHAPE).double(), make_maps())
    finally:
        handle.remove()
    assert len(seen) == 3


def test_autocast_and_transforms_apply():
    maps, x = make_maps().float(), torch.randn(SHAPE)
    with torch.autocast("cpu", torch.bfloat16):
        assert {y.dtype for y in map_states(x, maps)} == {torch.bfloat16}
    rows = torch.func.vmap(lambda y: map_states(y, maps)[1])(x)
    torch.testing.assert_close(rows, maps[1](x))
    tangent = torch.func.jvp(lambda y: map_states(y, maps)[1], (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, maps[1].weight.sum(1).expand_as(tangent))
