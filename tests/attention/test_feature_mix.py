"""Sums of features that are kept: precision, derivatives and what the backward pass needs."""

import pytest
import torch
from contract import (
    assert_near,
    check_higher_derivatives,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_and_count_saved,
    run_with_gradients,
)

from longspan import build
from longspan.attention.ops.feature_pieces import mix


@pytest.mark.parametrize("mask", [None, "holes"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 3), (torch.float16, 2)], ids=["bfloat16", "float16"]
)
def test_half_precision_is_near_the_reference_of_its_inputs(dtype, tolerance, mask):
    key_mask = None if mask is None else key_masks(200)[mask]
    attention, results = build("linear"), []
    half = qkv(200, dtype=dtype)
    for own, wide in ((attention, False), (reference_copy(attention), True)):
        inputs = [x.double() for x in half] if wide else half
        results.append(run_with_gradients(own, inputs, mask=key_mask))
    assert {x.dtype for x in results[0]} == {dtype}
    for label, a, b in zip(("output", "q", "k", "v"), *results, strict=True):
        assert_near(a.double(), b, label, tolerance * torch.finfo(dtype).eps)


@pytest.mark.parametrize("mask", ["none", "holes"])
def test_second_derivatives_and_forward_mode(mask):
    key_mask = key_masks(12)["holes"] if mask == "holes" else None
    check_higher_derivatives(build("linear"), key_mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_features_are_kept_in_place_of_the_inputs(dtype):
    inputs = [torch.randn(2, 3, 512, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    out, saved = run_and_count_saved(build("linear"), *inputs)
    assert saved < 1.2 * sum(x.nbytes for x in (*inputs, out))


def test_rows_of_no_weight_are_zero_and_have_no_gradient():
    q, k, v = (x.abs() for x in qkv(6))
    q[:, :, 2] = 0
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = mix(*inputs)
    assert not out[:, :, 2].any()
    assert out[:, :, 1].all()
    grads = gradients(out, inputs, torch.nn.Identity())
    assert not grads[0][:, :, 2].any()
    rest = [x.detach()[:, :, [0, 1, 3, 4, 5]] for x in inputs[:1]]
    alone = [x.detach().requires_grad_() for x in (*rest, *inputs[1:])]
    expected = torch.autograd.grad(mix(*alone), alone, torch.ones_like(out)[:, :, [0, 1, 3, 4, 5]])
    found = torch.autograd.grad(mix(*inputs), inputs, torch.ones_like(out))
    assert_near(found[1:], expected[1:], "gradient of keys and values")


def test_a_threshold_above_the_weights_hides_their_rows():
    fq, fk, v = (x.abs() for x in qkv(6))
    weight = (fq @ fk.mT).sum(-1)
    low, high = weight.flatten().sort().values[len(weight.flatten()) // 2 - 1 :][:2].tolist()
    least = (low + high) / 2  # between two weights, whatever their rounding
    assert torch.equal(mix(fq, fk, v, least=least).any(-1), weight > least)
