"""Kernels of torch's libraries on CUDA equal the float64 reference. Run with `-m gpu`."""

import pytest
import torch
from contract import TOLERANCE, assert_near, build_small, full_and_causal, qkv, reference_copy
from kernel_checks import build_flex, check_rows_and_gradients, flex_cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALF = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "options", "causal"),
    flex_cases(),
    ids=[f"{n}-{'-'.join(map(str, o.values()))}-{c}" for n, o, c in flex_cases()],
)
def test_flex_rows_and_gradients(name, options, causal):
    """A length that is no multiple of a tile, a batch, rows without keys, compiled gradients."""
    attention = build_flex(name, causal, **options)
    for dtype in (torch.float32, torch.bfloat16):
        tolerance = 10 * TOLERANCE[dtype]
        check_rows_and_gradients(attention, 300, device="cuda", dtype=dtype, atol=tolerance)


@pytest.mark.parametrize("T", [1, 127, 128, 129, 1000])
def test_flex_lengths_around_a_tile(T):
    atol = 10 * TOLERANCE[torch.float32]
    check_rows_and_gradients(build_flex("local", max_length=1000), T, "cuda", torch.float32, atol)


@pytest.mark.parametrize("name", ["bigbird", "local", "longformer"])
def test_flex_does_not_wait_for_the_device(name):
    attention = build_flex(name, max_length=512).cuda().bfloat16()
    inputs = [x.cuda() for x in qkv(300, D=16, dtype=torch.bfloat16)]
    masks = {
        "key_mask": (torch.arange(300) < torch.tensor([[300], [200], [10]])).cuda(),
        "global_mask": (torch.arange(300) % 50 == 0).expand(3, -1).cuda(),
    }
    attention(*inputs, **masks)  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention(*inputs, **{name: mask.clone() for name, mask in masks.items()})
    finally:
        torch.cuda.set_sync_debug_mode("default")


@full_and_causal
@pytest.mark.parametrize("name", ["full", "local"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_varlen_rows_and_gradients(name, causal, dtype):
    attention = build_small(name, causal, "varlen", head_dim=16, max_length=1000)
    exact = reference_copy(attention).double()
    attention = attention.cuda()
    rounded = [x.to(dtype) for x in qkv(1000, D=16)]
    results = []
    for module, place, kind in ((attention, "cuda", dtype), (exact, "cpu", torch.float64)):
        inputs = [x.to(place, kind).requires_grad_() for x in rounded]
        out = module(*inputs)
        grads = torch.autograd.grad(out.square().sum(), inputs)
        results.append([x.cpu().double() for x in (out, *grads)])
    for x, y in zip(*results, strict=True):
        size = y.abs().max()
        assert_near(x / size, y / size, "varlen", 2 * TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["full", "local"])
def test_varlen_packed_documents(name):
    attention = build_small(name, backend="varlen", head_dim=16, max_length=1000).cuda()
    exact = reference_copy(attention).cpu().double()
    bounds = torch.tensor([0, 500, 501, 1000])
    q, k, v = (x[0].transpose(0, 1).bfloat16() for x in qkv(1000, B=1, D=16))
    out = attention.packed(*(x.cuda() for x in (q, k, v)), bounds.cuda())
    assert attention.backend_used == "varlen"
    expected = exact.packed(*(x.double() for x in (q, k, v)), bounds)
    assert_near(out.cpu().double(), expected, "packed", TOLERANCE[torch.bfloat16])
