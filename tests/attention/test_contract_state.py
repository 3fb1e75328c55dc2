"""State of a mechanism: saved in full, never global, identical in every process."""

import json

import numpy
import pytest
import torch
from contract import (
    CASES,
    TOLERANCE,
    build_small,
    every_mechanism,
    gradients,
    qkv,
    run_in_new_process,
    run_or_skip,
    run_with_gradients,
)
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint

from longspan.attention import MECHANISMS, backends


def case_key(name, causal, backend):
    return f"{name}-{causal}-{backend}"


RUN_CHECKPOINTS = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from contract import CASES, build_small
torch.manual_seed(99)
folder = Path(sys.argv[1])
inputs = load_file(folder / "inputs.safetensors")
for case in CASES:
    attention = build_small(*case.values).float()
    stem = "-".join(map(str, case.values))
    found = {f"buffer.{n}": x.clone() for n, x in attention.named_buffers()}
    attention.load_state_dict(load_file(folder / f"{stem}.safetensors"), strict=True)
    found["out"] = attention(*(inputs[x] for x in "qkv"), inputs["key_mask"]).detach().contiguous()
    save_file(found, folder / f"{stem}.found.safetensors")
"""


@pytest.fixture(scope="module")
def outputs_by_case(tmp_path_factory):
    """Return outputs and initial buffers of each case, here and in a process with other seeds."""
    folder = tmp_path_factory.mktemp("round-trip")
    inputs = dict(zip("qkv", qkv(33, dtype=torch.float32), strict=True))
    inputs["key_mask"] = torch.arange(33) < torch.tensor([33, 20, 7])[:, None]
    save_file(inputs, folder / "inputs.safetensors")
    torch.manual_seed(1)
    results_by_case = {}
    for case in CASES:
        attention, stem = build_small(*case.values).float(), case_key(*case.values)
        state = {n: x.contiguous() for n, x in attention.state_dict().items()}
        save_file(state, folder / f"{stem}.safetensors")
        found = {f"buffer.{n}": x.clone() for n, x in attention.named_buffers()}
        found["out"] = (
            attention(*(inputs[x] for x in "qkv"), inputs["key_mask"]).detach().contiguous()
        )
        results_by_case[stem] = found
    run_in_new_process(RUN_CHECKPOINTS, folder)
    return {
        stem: (x, load_file(folder / f"{stem}.found.safetensors"))
        for stem, x in results_by_case.items()
    }


@every_mechanism
def test_checkpoint_gives_the_same_bits_in_a_new_process(name, causal, backend, outputs_by_case):
    results, new_process_results = outputs_by_case[case_key(name, causal, backend)]
    assert sorted(results) == sorted(new_process_results)
    for label, x in results.items():
        assert torch.equal(x, new_process_results[label]), label


@every_mechanism
def test_all_state_is_saved_and_not_shared(name, causal, backend):
    first, second = build_small(name, causal, backend), build_small(name, causal, backend)
    assert {n for n, _ in first.named_buffers()} <= set(first.state_dict())
    first_pointers, second_pointers = (
        {x.data_ptr() for x in y.state_dict().values()} for y in (first, second)
    )
    assert not first_pointers & second_pointers


@every_mechanism
def test_two_calls_are_equal_and_change_no_state(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs = qkv(50)
    copies = [x.clone() for x in inputs]
    mask = torch.arange(50) < torch.tensor([50, 30, 9])[:, None]
    mask_before = mask.clone()
    for training in (True, False):
        attention.train(training)
        before = {n: x.clone() for n, x in attention.state_dict().items()}
        first = run_or_skip(attention, *inputs, mask)
        run_or_skip(attention, *qkv(20))
        assert torch.equal(run_or_skip(attention, *inputs, mask), first)
        for n, x in attention.state_dict().items():
            assert torch.equal(x, before[n]), n
    assert all(torch.equal(x, y) for x, y in zip(inputs, copies, strict=True))
    assert torch.equal(mask, mask_before)


@every_mechanism
def test_global_random_state_is_unchanged(name, causal, backend):
    torch_before, numpy_before = torch.get_rng_state(), numpy.random.get_state()[1].copy()
    attention = build_small(name, causal, backend)
    # As in any module, initial parameters follow torch.manual_seed; nothing else does.
    if not list(attention.parameters()):
        assert torch.equal(torch.get_rng_state(), torch_before)
    torch_before = torch.get_rng_state()
    inputs = [x.requires_grad_() for x in qkv(33)]
    gradients(run_or_skip(attention, *inputs), inputs, attention)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (numpy.random.get_state()[1] == numpy_before).all()


@every_mechanism
def test_gradient_checkpointing_preserves_results(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs = [x.requires_grad_() for x in qkv(50)]
    plain = run_or_skip(attention, *inputs)
    again = checkpoint(attention, *inputs, use_reentrant=False)
    assert torch.equal(plain, again)
    pairs = zip(
        gradients(plain, inputs, attention), gradients(again, inputs, attention), strict=True
    )
    assert all(torch.equal(x, y) for x, y in pairs)


@every_mechanism
def test_autocast_does_not_change_the_computation_dtype(name, causal, backend):
    attention = build_small(name, causal, backend).float()
    inputs = qkv(33, dtype=torch.float32)
    plain = run_or_skip(attention, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, *grads = run_with_gradients(attention, inputs)
    assert torch.equal(inside, plain)
    # torch's own derivatives are rounded if the backward pass is inside as well.
    assert all(x.isfinite().all() and x.dtype == torch.float32 for x in grads)


@every_mechanism
def test_used_backend_is_recorded(name, causal, backend):
    attention = build_small(name, causal, backend)
    assert attention.backend_used is None
    run_or_skip(attention, *qkv(9))
    assert attention.backend_used == backend
    attention.backend = "auto"
    attention(*qkv(9))
    assert attention.backend_used in backends(name)


COMPARE_COMPILED = """
import json, sys, torch
from contract import CASES, MECHANISMS, build_small, gradients, qkv
padding = torch.arange(70) < torch.tensor([70, 40, 0])[:, None]
is_global = torch.arange(70) % 40 < torch.tensor([2, 1, 0])[:, None]
dtype, found = torch.float32 if "float32" in sys.argv[1] else torch.float64, {}
for case in CASES:
    if "-".join(map(str, case.values)) not in sys.argv[2:]:
        continue
    supported = MECHANISMS[case.values[0]].traits.global_tokens
    attention = build_small(*case.values, max_global_tokens=4 if supported else None).to(dtype)
    worst, some = 0.0, is_global if supported else None
    # Tracing takes seconds: one mask for each form, the second form without its backward graph.
    masks, backend = ((padding, some),), "aot_eager"
    if case.values[1]:
        masks, backend = ((None, None), (None, some))[: 1 + supported], "eager"
    if sys.argv[1].startswith("inductor"):
        masks, backend = ((None, None), (padding, some)), "inductor"
    for mask, own in masks:
        inputs = [x.requires_grad_() for x in qkv(70, dtype=dtype)]
        torch.compiler.reset()
        compiled = torch.compile(attention, fullgraph=True, backend=backend)
        outs = [f(*inputs, mask, global_mask=own) for f in (attention, compiled)]
        plain, other = ((out, *gradients(out, inputs, attention)) for out in outs)
        worst = max(worst, *((x - y).abs().max().item() for x, y in zip(plain, other)))
    found["-".join(map(str, case.values))] = worst
if sys.argv[1] == "fast":
    few, many = ((torch.arange(33) < n).expand(3, -1) for n in (10, 11))
    attention, inputs = build_small("local", max_global_tokens=10), qkv(33)
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    outs = [f(*inputs, global_mask=few) for f in (attention, compiled)]
    try:
        compiled(*inputs, global_mask=many)
    except RuntimeError as refusal:
        found["maximum"] = (outs[0] - outs[1]).abs().max().item(), str(refusal)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(request):
    """Return the largest difference of each selected case, and that at the most global tokens."""
    selected = [
        x.callspec.params
        for x in request.session.items
        if x.originalname == "test_compiling_full_graph_preserves_results"
    ]
    keys = [case_key(x["name"], x["causal"], x["backend"]) for x in selected]
    return json.loads(run_in_new_process(COMPARE_COMPILED, "fast", *keys))


# Tracing takes seconds per mechanism. That a call reads no value, as a full graph requires, is
# tested for every mechanism with fake tensors (test_contract_static.py).
TRACED_BY_DEFAULT, SLOW = ("longformer", "performer"), [pytest.mark.slow]
traced_cases = pytest.mark.parametrize(
    ("name", "causal", "backend"),
    [
        pytest.param(
            *case.values,
            id=case.id,
            marks=[] if case.values[0] in TRACED_BY_DEFAULT and not case.values[1] else SLOW,
        )
        for case in CASES
    ],
)


@traced_cases
@pytest.mark.timeout(600)
def test_compiling_full_graph_preserves_results(name, causal, backend, compiled):
    assert compiled[case_key(name, causal, backend)] <= TOLERANCE[torch.float64]


def test_traced_calls_assert_the_maximum_of_global_tokens(compiled):
    error, refusal = compiled["maximum"]
    assert error < TOLERANCE[torch.float64]
    assert "at most max_global_tokens=10 real tokens per row" in refusal


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_compiling_with_inductor_preserves_results(dtype):
    keys = [case_key(*case.values) for case in CASES]
    found = json.loads(run_in_new_process(COMPARE_COMPILED, f"inductor {dtype}", *keys))
    assert {case: worst for case, worst in found.items() if worst > 20 * TOLERANCE[dtype]} == {}


@pytest.mark.parametrize(
    "name", sorted(n for n, c in MECHANISMS.items() if "layer" in c.traits.sizes)
)
def test_layers_draw_different_buffers(name):
    first, second = (dict(build_small(name, layer=layer).named_buffers()) for layer in (0, 1))
    if not first:
        pytest.skip("no buffers: `layer` only selects options")
    assert any(not torch.equal(x, second[n]) for n, x in first.items())
    again = dict(build_small(name, layer=1).named_buffers())
    for n, x in second.items():
        assert torch.equal(x, again[n]), n
