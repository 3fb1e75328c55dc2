"""Triton kernels of the recurrences: interpreted, compiled without a GPU, refused, and on a GPU."""

import pytest
import torch
from contract import HERE, TOLERANCE, assert_near, full_and_causal, qkv
from kernel_checks import run_file, run_tests
from test_triton import SHARED, needs_cuda, needs_triton

from longspan.attention import build
from longspan.attention.kernels import recurrence as kernels
from longspan.attention.kernels import triton
from longspan.attention.ops.recurrence import mix
from longspan.attention.registry import KERNELS
from longspan.errors import InputError

NAMES = ("retention", "ssd", "gated_linear", "delta", "gated_delta", "kimi_delta")


@needs_triton
@pytest.mark.timeout(900)  # half a minute of one core
def test_interpreted_kernels_equal_the_engine():
    """Own process: the interpreter is chosen when triton is imported."""
    pytest.importorskip(
        "triton", minversion="3.7", reason="the interpreter of 3.6 ends in an error"
    )
    assert " passed" in run_tests(HERE / "interpreted_recurrence.py", TRITON_INTERPRET="1")


def compile_kernels(folder, *case):
    out = run_file(HERE / "compile_recurrence.py", *case, TRITON_CACHE_DIR=str(folder))
    return {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_without_a_gpu(capability, tmp_path):
    shared = compile_kernels(tmp_path, capability, 1, 0, 32, 32, "bfloat16")
    assert len(shared) == 7
    assert max(shared.values()) <= SHARED[str(capability)]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("delta", [0, 1], ids=["sum", "delta"])
def test_kernels_of_channels_compile_without_a_gpu(delta, capability, tmp_path):
    shared = compile_kernels(tmp_path, capability, delta, 1, 32, 32, "float16")
    assert len(shared) == (7 if delta else 6)
    assert max(shared.values()) <= SHARED[str(capability)]


WIDEST = [
    *((90, 0, 128, 128, "bfloat16"), (90, 0, 128, 128, "float32"), (90, 1, 128, 128, "bfloat16")),
    *((90, 1, 64, 64, "float32"), (86, 1, 64, 64, "bfloat16"), (86, 1, 64, 64, "float32")),
]


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", WIDEST, ids=str)
def test_widest_tiles_fit_into_shared_memory(case, tmp_path):
    capability, channels, width, values, dtype = case
    decays = width if channels else 1
    assert not kernels.key_refusals(width, decays, getattr(torch, dtype), capability // 10)
    shared = compile_kernels(tmp_path, capability, 1, channels, width, values, dtype)
    assert max(shared.values()) <= SHARED[str(capability)]


def make(name, heads=3, head_dim=8, **options):
    sizes = {"heads": heads, "head_dim": head_dim, "width": heads * head_dim}
    sizes = {"heads": heads} if name == "retention" else sizes
    return build(name, backend="triton", **sizes, **options)


def test_every_reason_is_listed(monkeypatch):
    monkeypatch.setattr(triton, "IS_INSTALLED", False)
    attention = make("gated_delta").double()
    with pytest.raises(InputError) as refused:
        torch.func.vmap(attention)(*(x[None] for x in qkv(5)))
    for reason in (
        "pip install triton",
        "a CUDA device is required, or the CPU with TRITON_INTERPRET=1, got cpu",
        "torch.func transforms",
    ):
        assert reason in str(refused.value)
    attention.backend = "auto"
    assert attention(*qkv(5)).isfinite().all()
    assert attention.backend_used == "torch"


LIMITS = [
    (128, 1, torch.float32, 9, True),
    (129, 1, torch.bfloat16, 9, False),
    (128, 128, torch.bfloat16, 10, True),
    (64, 64, torch.float32, 9, True),
    (65, 65, torch.float32, 9, False),
    (64, 64, torch.float32, 8, True),
    (65, 1, torch.bfloat16, 8, False),
    (65, 1, torch.float16, 12, False),
]


@pytest.mark.parametrize(("width", "decays", "dtype", "major", "fits"), LIMITS, ids=str)
def test_wider_heads_are_refused(width, decays, dtype, major, fits):
    reasons = kernels.key_refusals(width, decays, dtype, major)
    assert reasons == [] or f"got {width}" in reasons[0]
    assert (not reasons) == fits


def test_kernels_run_by_name_alone():
    for cls in kernels.MECHANISMS:
        assert not KERNELS[cls]["triton"].automatic
    assert sorted(cls.name for cls in kernels.MECHANISMS) == sorted(NAMES)


ON_CUDA = [
    (dtype, width)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    for width in (16, 64, 96, 128)
]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(("dtype", "width"), ON_CUDA, ids=str)
@pytest.mark.parametrize("channels", [False, True], ids=["head", "channel"])
@pytest.mark.parametrize("delta", [False, True], ids=["sum", "delta"])
def test_cuda_kernels_equal_float64(delta, channels, dtype, width):
    """Without a host synchronization, and bit for bit in a second call."""
    decays = width if channels else 1
    major = torch.cuda.get_device_properties(0).major
    if reasons := kernels.key_refusals(width, decays, dtype, major):
        pytest.skip(reasons[0])
    q, k, v = (x.cuda() for x in qkv(1000, H=4, D=width))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    gates = [-q[..., :decays].square(), v[..., 0].sigmoid()]
    results = []
    for run in (mix, kernels.mix_in_kernels, kernels.mix_in_kernels):
        to = torch.float64 if run is mix else dtype
        rows = [x.to(dtype).to(to).requires_grad_() for x in (q, k, v)]
        wide = torch.promote_types(to, torch.float32)
        inputs = rows + [x.float().to(wide).requires_grad_() for x in gates]
        torch.cuda.set_sync_debug_mode("default" if run is mix else "error")
        try:
            out = run(*inputs, delta=delta)
            out = out[0] if run is mix else out
            grads = torch.autograd.grad(out, inputs, rows[2].detach())
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results.append((out, *grads))
    for x, y, again in zip(*results, strict=True):
        size = x.abs().max()
        assert_near(y.double() / size, x / size, "float64", 2 * TOLERANCE[dtype])
        assert torch.equal(y, again)


@pytest.mark.gpu
@needs_cuda
@full_and_causal
@pytest.mark.parametrize("name", NAMES)
def test_cuda_autocast_and_compilation(name, causal):
    attention = make(name, head_dim=64, causal=causal).cuda()
    inputs = [x.cuda().float().requires_grad_() for x in qkv(300, D=64)]
    compiled = torch.compile(attention, fullgraph=True)
    results = []
    for call in (attention, compiled):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = call(*inputs)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    # inductor removes the rounding of inputs to bfloat16 where it computes with them in float32.
    for x, y in zip(*results, strict=True):
        size = x.abs().max()
        assert_near(x / size, y / size, "compiled", 1e-2)
