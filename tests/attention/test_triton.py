"""Triton kernels: interpreted on the CPU, compiled without a GPU, refused, and on a GPU."""

from importlib.metadata import version

import pytest
import torch
from contract import (
    HERE,
    TOLERANCE,
    assert_near,
    full_and_causal,
    gradients,
    qkv,
    run_in_new_process,
)
from kernel_checks import run_file, run_tests
from packaging.version import Version

from longspan.attention import build
from longspan.attention.kernels import linear as kernels
from longspan.attention.kernels import triton
from longspan.errors import InputError

needs_triton = pytest.mark.skipif(not triton.IS_INSTALLED, reason="needs triton (Linux)")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# Shared memory that a block may have, by compute capability, for the kernels that it runs.
SHARED = {"90": 232_448, "80": 166_912, "86": 101_376}


@needs_triton
@pytest.mark.skipif(
    triton.IS_INSTALLED and Version(version("triton")) < Version("3.7"),
    reason="the interpreter of triton 3.6 ends in a TypeError of NumPy",
)
def test_interpreted_kernels_equal_the_reference():
    """Own process: the interpreter is chosen when triton is imported."""
    assert " passed" in run_tests(HERE / "triton_interpreted.py", TRITON_INTERPRET="1")


def compile_kernels(folder, *case):
    out = run_file(HERE / "compile_kernels.py", *case, TRITON_CACHE_DIR=str(folder))
    return {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}


@needs_triton
@full_and_causal
def test_kernels_compile_for_hopper_without_a_gpu(causal, tmp_path):
    shared = compile_kernels(tmp_path, 90, int(causal), 32, 32, "bfloat16")
    assert len(shared) == (5 if causal else 4)
    assert max(shared.values()) <= SHARED["90"]


@needs_triton
@pytest.mark.slow
@full_and_causal
@pytest.mark.parametrize(
    "case",
    [
        *((90, 64, 64, "float32"), (90, 128, 128, "float32"), (90, 128, 128, "bfloat16")),
        *((90, 256, 64, "bfloat16"), (90, 64, 256, "float16")),
        *((86, 64, 64, "bfloat16"), (86, 64, 64, "float32"), (80, 64, 64, "float16")),
    ],
    ids=str,
)
def test_widest_tiles_fit_into_shared_memory(case, causal, tmp_path):
    capability, *widths, dtype = case
    assert not kernels.width_refusals(*widths, getattr(torch, dtype), capability // 10)
    shared = compile_kernels(tmp_path, capability, int(causal), *widths, dtype)
    assert max(shared.values()) <= SHARED[str(capability)]


def test_import_does_not_need_triton_and_does_not_import_it():
    code = """
import sys
if len(sys.argv) > 1:
    sys.modules["triton"] = None  # as if it were not installed
import torch, longspan
out = longspan.build("linear")(*(torch.ones(1, 1, 4, 4) for _ in range(3)))
assert out.shape == (1, 1, 4, 4)
assert len(sys.argv) > 1 or "triton" not in sys.modules
try:
    longspan.build("linear", backend="triton")(*(torch.ones(1, 1, 4, 4) for _ in range(3)))
except longspan.errors.InputError as error:
    print("not installed" if "triton is not installed" in str(error) else "installed")
"""
    assert run_in_new_process("import longspan.errors\n" + code, "without") == "not installed\n"
    if triton.IS_INSTALLED:
        assert run_in_new_process("import longspan.errors\n" + code) == "installed\n"


def test_every_reason_is_listed(monkeypatch):
    monkeypatch.setattr(triton, "IS_INSTALLED", False)
    inputs = qkv(5)
    own = {"heads": 3, "head_dim": 8, "features": 4, "causal": True}
    attention = build("performer", backend="triton", **own).double()
    with pytest.raises(InputError) as refused:
        torch.func.vmap(attention)(*(x[None] for x in inputs))
    for reason in (
        "pip install triton",
        "a CUDA device is required, or the CPU with TRITON_INTERPRET=1, got cpu",
        "torch.func transforms",
        "causal sums of feature_map='softmax' are relative to levels",
    ):
        assert reason in str(refused.value)
    attention.backend = "auto"
    assert attention(*inputs).isfinite().all()
    assert attention.backend_used == "torch"


WIDTHS = [
    ((64, 64), torch.float32, 8, True),
    ((65, 64), torch.float32, 8, False),
    ((64, 65), torch.bfloat16, 12, False),
    ((128, 128), torch.float32, 9, True),
    ((129, 16), torch.float32, 9, False),
    ((256, 64), torch.bfloat16, 9, True),
    ((256, 65), torch.bfloat16, 9, False),
    ((257, 16), torch.float16, 10, False),
]


@pytest.mark.parametrize(("widths", "dtype", "major", "fits"), WIDTHS, ids=str)
def test_widths_beyond_the_tiles_are_refused(widths, dtype, major, fits):
    assert (not kernels.width_refusals(*widths, dtype, major)) == fits


SQUARE = [(64, 64), (96, 96), (128, 128)]
# Of features and of values. In float32 narrow tiles have compiled to wrong code.
OTHER_WIDTHS = [(8, 8), (16, 16), (32, 32), (8, 64), (64, 8), (16, 128), (128, 16), (24, 40)]
ON_CUDA = [
    (dtype, widths)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    for widths in SQUARE + OTHER_WIDTHS * (dtype == torch.float32)
]


@pytest.mark.gpu
@needs_cuda
@full_and_causal
@pytest.mark.parametrize(("dtype", "widths"), ON_CUDA, ids=str)
@pytest.mark.parametrize("programs", [24, 528], ids=["many chunks", "one chunk"])
def test_cuda_kernels_equal_float64(causal, dtype, widths, programs, monkeypatch):
    """Without a host synchronization, and bit for bit in a second call.

    Of 32 chunks of a row a program computes 16 or one; the code compiled for one has no loop.
    """
    from longspan.attention.kernels.triton import launches

    monkeypatch.setattr(launches, "PROGRAMS", programs)
    inputs = [x.cuda() for x in qkv(2000, H=4, D=widths[0], E=widths[1])]
    key_mask = (torch.rand(3, 2000, generator=torch.Generator().manual_seed(0)) < 0.7).cuda()
    found = []
    for backend in ("reference", "triton", "triton"):
        to = torch.float64 if backend == "reference" else dtype
        own = [x.to(dtype).to(to).requires_grad_() for x in inputs]
        attention = build("linear", causal=causal, backend=backend)
        if backend == "triton":
            torch.cuda.set_sync_debug_mode("error")
        try:
            out = attention(*own, key_mask=key_mask)
            grads = torch.autograd.grad(out, own, torch.ones_like(out) * inputs[2].to(to))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append((out, *grads))
    for x, y, again in zip(*found, strict=True):
        size = x.abs().max()
        assert_near(y.double() / size, x / size, "float64", 2 * TOLERANCE[dtype])
        assert torch.equal(y, again)


@pytest.mark.gpu
@needs_cuda
@full_and_causal
@pytest.mark.parametrize("name", ["linear", "performer"])
def test_cuda_autocast_and_compilation(causal, name):
    own = {"linear": {}, "performer": {"heads": 3, "head_dim": 64, "features": 64}}[name]
    if name == "performer":
        own["feature_map"] = "relu"
    attention = build(name, causal=causal, backend="triton", **own).cuda()
    inputs = [x.cuda().float().requires_grad_() for x in qkv(300, D=64)]
    compiled = torch.compile(attention, fullgraph=True)
    results = []
    for call in (attention, compiled):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = call(*inputs)
        results.append((out, *gradients(out.cpu(), inputs, attention)))
    # inductor removes the rounding of inputs to bfloat16 where it computes with them in float32.
    for x, y in zip(*results, strict=True):
        size = x.abs().max()
        assert_near(x / size, y / size, "compiled", 1e-2)


@pytest.mark.gpu
@needs_cuda
def test_cuda_kernels_run_on_the_device_of_their_inputs_and_refuse_float64():
    inputs = [x.cuda() for x in qkv(10)]
    attention = build("linear", backend="triton")
    out = attention(*(x.float() for x in inputs))
    assert out.device == inputs[0].device
    with pytest.raises(InputError, match="float64 runs in the interpreter only"):
        attention(*inputs)
