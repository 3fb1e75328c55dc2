"""Every mechanism on CUDA equals the CPU. Run with `-m gpu`."""

import copy

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_near,
    build_small,
    every_mechanism,
    every_stepping_mechanism,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_in_new_process,
    run_or_skip,
)
from layouts import LAYOUTS, ROTATIONS, contiguous

from longspan.attention import MECHANISMS, backends, build
from longspan.errors import InputError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def input_gradients(out, inputs, cotangent=None):
    """Return gradients of the inputs, zeros of those that are not read."""
    return torch.autograd.grad(out, inputs, cotangent, allow_unused=True, materialize_grads=True)


def assert_all_near(found, expected, label, atol):
    """Compare tensors, as a share of the largest number where it exceeds one."""
    for a, b in zip(found, expected, strict=True):
        size = max(1.0, float(b.detach().abs().max()))
        assert_near(a / size, b / size, label, atol)


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
    if build_small(name, causal, backend).traits.cost != "T":
        pytest.skip("not linear (trait)")
    peaks = {}
    for T in (8192, 65536):
        attention = build_small(name, causal, backend, max_length=T).float().cuda()
        inputs = [x.cuda().requires_grad_() for x in qkv(T, B=1, dtype=torch.float32)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run_or_skip(attention, *inputs).sum().backward()
        peaks[T] = torch.cuda.max_memory_allocated() - before
    # Kernels of libraries have buffers of their own.
    assert peaks[65536] <= 8 * 1.5 * peaks[8192]


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_built_on_cuda_equal_those_moved_there(name):
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 256}
    usual = build(name, **sizes)
    with torch.device("cuda"):
        built = build(name, **sizes)
    tensors = [*built.parameters(), *built.buffers()]
    assert {x.device.type for x in tensors} <= {"cuda"}
    drawn = dict(usual.named_buffers())
    assert drawn.keys() == dict(built.named_buffers()).keys()
    for key, x in built.named_buffers():
        assert torch.equal(x.cpu(), drawn[key]), key


AUTO = [
    (name, causal)
    for name, cls in MECHANISMS.items()
    if "auto" in backends(name)
    for causal in ((False, True) if cls.traits.causal else (False,))
]


@pytest.mark.parametrize(("name", "causal"), AUTO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_automatic_choice_equals_the_float64_reference(name, causal, dtype):
    attention = build_small(name, causal, "auto", 1000, head_dim=16).to(dtype)
    exact, on_cuda = reference_copy(attention).double(), attention.cuda()
    for T in (70, 1000):
        rounded = [x.to(dtype) for x in qkv(T, B=2, D=16)]
        mask = key_masks(T, B=2)["ragged"]
        results = []
        for module, place, kind in ((on_cuda, "cuda", dtype), (exact, "cpu", torch.float64)):
            inputs = [x.to(place, kind).requires_grad_() for x in rounded]
            out = module(*inputs, mask.to(place))
            found = out, *input_gradients(out.square().sum(), inputs)
            results.append([x.cpu().double() for x in found])
        label = f"T={T}, {on_cuda.backend_used}"
        assert_all_near(*results, label, 3 * TOLERANCE[dtype])


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_results_do_not_depend_on_the_layout(name, causal, backend, dtype):
    attention = build_small(name, causal, backend, 160).to(dtype).cuda()
    inputs = [x.cuda() for x in (*qkv(150, B=2), qkv(150, B=2, seed=1)[0])]
    for chosen in ROTATIONS:
        views = [LAYOUTS[x](y.to(dtype)) for x, y in zip(chosen, inputs, strict=True)]
        results = []
        for given in (views, [contiguous(x) for x in views]):
            leaves = [x.detach().requires_grad_() for x in given[:3]]
            out = run_or_skip(attention, *leaves)
            results.append((out, *input_gradients(out, leaves, given[3])))
        assert_all_near(*results, f"layouts {chosen}", 4 * TOLERANCE[dtype])


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_large_scores_stay_finite_on_cuda(name, causal, backend, dtype):
    attention = build_small(name, causal, backend).to(dtype).cuda()
    q, k, v = qkv(70, B=2)
    inputs = [x.cuda().to(dtype).requires_grad_() for x in (300 * q, k, v)]
    out = run_or_skip(attention, *inputs, key_masks(70, B=2)["ragged"].cuda())
    assert all(x.isfinite().all() for x in (out, *input_gradients(out.sum(), inputs)))


@every_stepping_mechanism
def test_cuda_steps_equal_the_whole_sequence(name, causal, backend):
    attention, cache, outs = build_small(name, causal, backend).cuda(), None, []
    inputs = [x.cuda() for x in qkv(40, B=2)]
    for start, end in ((0, 25), (25, 26), (26, 40)):
        out, cache = attention.step(*(x[:, :, start:end] for x in inputs), cache)
        outs.append(out)
    assert_near(torch.cat(outs, 2), attention(*inputs), "steps")


@every_mechanism
def test_cuda_packed_documents_equal_the_cpu(name, causal, backend):
    on_cuda = build_small(name, causal, backend).float().cuda()
    on_cpu = copy.deepcopy(on_cuda).cpu()
    on_cpu.backend = "torch"
    rows = [x[0].transpose(0, 1).float() for x in qkv(100, B=1)]
    bounds = torch.tensor([0, 40, 41, 100])
    found = run_or_skip(on_cuda.packed, *(x.cuda() for x in rows), bounds.cuda())
    assert_near(found.cpu(), on_cpu.packed(*rows, bounds), "packed", TOLERANCE[torch.float32])


@every_mechanism
def test_tensors_of_two_devices_are_refused_in_words(name, causal, backend):
    attention = build_small(name, causal, backend).float().cuda()
    inputs = qkv(20, dtype=torch.float32)
    with pytest.raises(InputError):
        attention(*inputs, torch.ones(3, 20, dtype=torch.bool).cuda())
    q, *others = inputs
    with pytest.raises(InputError):
        attention(q.cuda(), *others)
    with pytest.raises(InputError):
        attention(*(x.cuda() for x in inputs), torch.ones(3, 20, dtype=torch.bool))


COMPILED = """
import sys
import torch
from contract import assert_near, build_small, gradients, key_masks, qkv
name, device = sys.argv[1:]
attention = build_small(name).float().to(device)
inputs = [x.to(device).requires_grad_() for x in qkv(64, dtype=torch.float32)]
mask = key_masks(64)["ragged"].to(device)
results = []
for call in (attention, torch.compile(attention)):
    out = call(*inputs, mask).cpu()
    results.append((out, *gradients(out, inputs, attention)))
for a, b in zip(*results, strict=True):
    assert_near(a, b, "compiled", 4e-4)
"""


@pytest.mark.parametrize("name", MECHANISMS)
def test_compiled_mechanisms_equal_uncompiled_ones_on_cuda(name):
    run_in_new_process(COMPILED, name, "cuda")
