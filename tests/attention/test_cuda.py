"""Every mechanism on CUDA equals the CPU. Run with `-m gpu`."""

import copy

import pytest
import torch
from contract import (
    TOLERANCE,
    assert_near,
    build_small,
    every_mechanism,
    gradients,
    key_masks,
    qkv,
    run_or_skip,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@every_mechanism
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_cuda_output_and_gradients_equal_cpu(name, causal, backend, dtype):
    on_cuda = build_small(name, causal, backend).to(dtype).cuda()
    on_cpu = copy.deepcopy(on_cuda).cpu()
    on_cpu.backend = "torch"  # kernels may need the GPU
    for mask in key_masks(70).values():
        inputs = [x.requires_grad_() for x in qkv(70, dtype=dtype)]
        cuda_inputs = [x.detach().cuda().requires_grad_() for x in inputs]
        out = run_or_skip(on_cpu, *inputs, mask)
        cuda_out = run_or_skip(on_cuda, *cuda_inputs, None if mask is None else mask.cuda())
        assert_near(cuda_out.cpu(), out, f"{name} output", TOLERANCE[dtype])
        for a, b in zip(
            gradients(out, inputs, on_cpu),
            gradients(cuda_out.cpu(), cuda_inputs, on_cuda),
            strict=True,
        ):
            assert_near(b.cpu(), a, f"{name} gradient", 10 * TOLERANCE[dtype])


@every_mechanism
def test_cuda_memory_grows_as_claimed(name, causal, backend):
    peaks = {}
    for T in (2048, 16384):
        attention = build_small(name, causal, backend, max_length=T).float().cuda()
        inputs = [x.cuda().requires_grad_() for x in qkv(T, B=1, dtype=torch.float32)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run_or_skip(attention, *inputs).sum().backward()
        peaks[T] = torch.cuda.max_memory_allocated() - before
    if attention.traits.cost == "T":
        assert peaks[16384] <= 8 * 1.1 * peaks[2048]
