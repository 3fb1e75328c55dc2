"""Softmax with relative positions, piece by piece: derivatives, and what is saved."""

import pytest
import torch
from contract import (
    TOLERANCE,
    assert_near,
    both_derivatives,
    qkv,
    reference_copy,
    run_and_count_saved,
)
from test_fused import names_of_graph

from longspan import build
from longspan.attention.ops import relative_positions

T, B, H = 150, 2, 3
SIZES = {"heads": H, "head_dim": 8, "segment": 40, "causal": True}
CASES = {
    "memory": ("transformer_xl", {**SIZES, "memory": 30}),
    "no memory": ("transformer_xl", {**SIZES, "memory": 0}),
    "same length": ("transformer_xl", {**SIZES, "memory": 30, "same_length": True}),
    "through memory": ("transformer_xl", {**SIZES, "memory": 30, "backprop_through_memory": True}),
    "bidirectional": ("transformer_xl", {**SIZES, "memory": 30, "causal": False}),
    "bidirectional slots": (
        "compressive",
        {**SIZES, "memory": 20, "compressed_memory": 6, "ratio": 3, "causal": False},
    ),
    "slots": ("compressive", {**SIZES, "memory": 20, "compressed_memory": 6, "ratio": 3}),
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(params=[(1, 16), (2, 13), (4, 20)], ids=str)
def piece(request, monkeypatch):
    """Set the size of pieces: some heads, also of two samples, and some queries."""
    for name, size in zip(("HEADS", "BLOCK"), request.param, strict=True):
        monkeypatch.setattr(relative_positions, name, size)


def key_mask(kind):
    """Return a mask of two rows, or None."""
    if kind == "none":
        return None
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :3], mask[0, 70:118], mask[1, 110:] = False, False, False
    mask[1] &= kind == "ragged"
    return mask


def derivatives(case, kind, backend):
    """Return rows, gradients of inputs and parameters, and second derivatives."""
    name, options = CASES[case]
    torch.manual_seed(0)
    attention = build(name, backend=backend, **options).double()
    inputs = [x.requires_grad_() for x in qkv(T, B=B, H=H, D=8)]
    out = attention(*inputs, key_mask=key_mask(kind))
    if backend == "torch":
        assert "_RelativePieces" in names_of_graph(out.grad_fn)
    return out, *both_derivatives(out, [*inputs, *attention.parameters()])


@every_case
@pytest.mark.parametrize("kind", ["none", "ragged", "empty row"])
def test_all_derivatives_equal_the_reference(piece, case, kind):
    found, expected = (derivatives(case, kind, backend) for backend in ("torch", "reference"))
    for x, y in zip(found, expected, strict=True):
        assert_near(x, y, "derivative", 1e-8)
    if kind == "empty row":
        assert (found[0][1] == 0).all()


def test_weights_are_not_saved():
    name, options = CASES["memory"]
    inputs = [x.requires_grad_() for x in qkv(1024, B=1, H=H, D=8)]
    attention = build(name, **{**options, "segment": 512, "memory": 512}).double()
    _, saved = run_and_count_saved(attention, *inputs)
    weights = H * (512 * 512 + 512 * 1024) * 8
    assert saved < weights / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_in_half_precision_keep_the_weights(dtype):
    name, options = CASES["memory"]
    attention = build(name, **{**options, "segment": 512, "memory": 512}).to(dtype)
    inputs = [x.to(dtype).requires_grad_() for x in qkv(600, B=1, H=H, D=8)]
    names = names_of_graph(attention(*inputs).grad_fn)
    assert ("_RelativePieces" in names) == (dtype == torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_in_half_precision_is_piecewise(dtype, monkeypatch):
    """Keeping all scores took 27 times the memory."""
    calls = []
    run = relative_positions.relative_softmax
    monkeypatch.setattr(
        relative_positions, "relative_softmax", lambda *x: calls.append(x[2].dtype) or run(*x)
    )
    attention = build("transformer_xl", heads=H, head_dim=8, segment=1024).to(dtype)
    inputs = [x.to(dtype) for x in qkv(600, B=1, H=H, D=8)]
    with torch.no_grad():
        out = attention(*inputs)
    assert calls == [torch.float32]
    expected = reference_copy(attention).double()(*(x.double() for x in inputs))
    assert_near(out.double(), expected, "inference", 2 * TOLERANCE[dtype])


def test_few_queries_keep_the_weights():
    name, options = CASES["memory"]
    attention = build(name, **{**options, "segment": 128, "memory": 512}).double()
    inputs = [x.requires_grad_() for x in qkv(600, B=1, H=H, D=8)]
    assert "_RelativePieces" not in names_of_graph(attention(*inputs).grad_fn)
