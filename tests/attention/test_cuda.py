"""On CUDA every mechanism gives what it gives on the CPU: run with `-m gpu` where there is one."""

import copy

import pytest
import torch
from contract import TOLERANCE, assert_near, built, every_mechanism, gradients, key_masks, qkv, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@every_mechanism
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_output_and_gradients_equal_those_of_the_cpu(name, causal, backend, dtype):
    here = built(name, causal, backend).to(dtype)
    there = copy.deepcopy(here).cuda()
    for mask in key_masks(70).values():
        inputs = [x.requires_grad_() for x in qkv(70, dtype=dtype)]
        moved = [x.detach().cuda().requires_grad_() for x in inputs]
        out = run(here, *inputs, mask)
        other = run(there, *moved, None if mask is None else mask.cuda())
        assert_near(other.cpu(), out, f"{name} output", TOLERANCE[dtype])
        for a, b in zip(
            gradients(out, inputs, here), gradients(other.cpu(), moved, there), strict=True
        ):
            assert_near(b.cpu(), a, f"{name} gradient", 10 * TOLERANCE[dtype])


@every_mechanism
def test_memory_on_cuda_grows_as_claimed(name, causal, backend):
    peaks = {}
    for T in (2048, 16384):
        attention = built(name, causal, backend, max_length=T).float().cuda()
        inputs = [x.cuda().requires_grad_() for x in qkv(T, B=1, dtype=torch.float32)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(attention, *inputs).sum().backward()
        peaks[T] = torch.cuda.max_memory_allocated() - before
    if attention.traits.cost == "T":
        assert peaks[16384] <= 8 * 1.1 * peaks[2048]
