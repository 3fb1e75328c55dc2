"""Half precision: large scores give the rows of the float64 reference, and large inputs no NaN."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_near,
    build_small,
    every_mechanism,
    key_masks,
    qkv,
    reference_copy,
    run_or_skip,
)

from longspan.attention import MECHANISMS, build

HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
SCALE, T = 300, 70
# Their keys are means or sums of keys, which half precision rounds as it does a projection.
MIXED_KEYS = ("compressive", "linformer", "long_short", "sinkhorn")


def builds(name, causal, backend, dtype):
    """Yield mechanisms with small blocks, and with the default options."""
    yield build_small(name, causal, backend).to(dtype)
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 128}
    yield build(name, causal=causal, backend=backend, **sizes).to(dtype)


@every_mechanism
@HALF
@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
def test_large_scores_equal_the_float64_reference(name, causal, backend, dtype, trained):
    for attention in builds(name, causal, backend, dtype):
        exact = reference_copy(attention).double()
        q, k, v = qkv(T, B=2)
        q = SCALE * q  # scores of standard deviation SCALE
        inputs = [x.to(dtype).requires_grad_(trained) for x in (q, k, v)]
        mask = key_masks(T, B=2)["ragged"]
        out = run_or_skip(attention, *inputs, mask)
        assert out.isfinite().all()
        if trained:
            found = torch.autograd.grad(
                out.sum(), inputs, allow_unused=True, materialize_grads=True
            )
            assert all(x.isfinite().all() for x in found)
        if name not in MIXED_KEYS:
            expected = exact(*(x.detach().double() for x in inputs), mask)
            label = str(attention.options)
            # Rows that are no means of values grow with the queries.
            size = max(1.0, float(expected.abs().max()))
            assert_near(out.detach().double(), expected, label, 2 * size * TOLERANCE[dtype])


@every_mechanism
@HALF
def test_large_inputs_give_finite_rows(name, causal, backend, dtype):
    for attention in builds(name, causal, backend, dtype):
        inputs = [(SCALE * x).to(dtype) for x in qkv(T, B=2)]
        exact = reference_copy(attention).double()
        for mask in (None, key_masks(T, B=2)["holes"]):
            out = run_or_skip(attention, *inputs, mask)
            if attention.traits.row_sums == "any":  # a row may be too large for the dtype
                expected = exact(*(x.double() for x in inputs), mask)
                out = out[expected.abs() < torch.finfo(dtype).max / 2]
            assert out.isfinite().all()


@pytest.mark.parametrize("name", [x for x, cls in MECHANISMS.items() if cls.traits.bias])
@HALF
def test_large_biases_equal_the_float64_reference(name, dtype):
    attention = build_small(name).to(dtype)
    bias = (SCALE * qkv(T, D=T, seed=5)[0]).to(dtype)
    inputs = [x.to(dtype) for x in qkv(T)]
    expected = reference_copy(attention).double()(*(x.double() for x in inputs), bias=bias.double())
    out = attention(*inputs, bias=bias)
    assert_near(out.double(), expected, "bias", 2 * TOLERANCE[dtype])
