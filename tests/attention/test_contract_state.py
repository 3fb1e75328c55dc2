"""What a mechanism leaves behind: nothing hidden, nothing global, the same in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from contract import CASES, TOLERANCE, assert_near, built, every_mechanism, gradients, qkv, run
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint

import longspan
from longspan.attention import MECHANISMS, backends

HERE = Path(__file__).parent
SOURCE = Path(longspan.__file__).parents[1]


def key_of(name, causal, backend):
    return f"{name}-{causal}-{backend}"


def in_new_process(code, *arguments, seed="7"):
    """Run `code` where nothing of this process is left, and shapes are not checked."""
    paths = os.pathsep.join([str(SOURCE), str(HERE)])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FRESH = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from contract import CASES, built
torch.set_num_threads(1)
torch.manual_seed(99)
folder = Path(sys.argv[1])
inputs = load_file(folder / "inputs.safetensors")
for case in CASES:
    attention = built(*case.values).float()
    stem = "-".join(map(str, case.values))
    found = {f"buffer.{n}": x.clone() for n, x in attention.named_buffers()}
    attention.load_state_dict(load_file(folder / f"{stem}.safetensors"), strict=True)
    found["out"] = attention(*(inputs[x] for x in "qkv"), inputs["key_mask"]).detach().contiguous()
    save_file(found, folder / f"{stem}.found.safetensors")
"""


@pytest.fixture(scope="module")
def round_trip(tmp_path_factory):
    """Outputs and fresh buffers of each case here, and in a process with other seeds."""
    folder = tmp_path_factory.mktemp("round-trip")
    inputs = dict(zip("qkv", qkv(33, dtype=torch.float32), strict=True))
    inputs["key_mask"] = torch.arange(33) < torch.tensor([33, 20, 7])[:, None]
    save_file(inputs, folder / "inputs.safetensors")
    torch.manual_seed(1)
    here = {}
    for case in CASES:
        attention, stem = built(*case.values).float(), key_of(*case.values)
        state = {n: x.contiguous() for n, x in attention.state_dict().items()}
        save_file(state, folder / f"{stem}.safetensors")
        found = {f"buffer.{n}": x.clone() for n, x in attention.named_buffers()}
        found["out"] = (
            attention(*(inputs[x] for x in "qkv"), inputs["key_mask"]).detach().contiguous()
        )
        here[stem] = found
    in_new_process(FRESH, folder)
    return {stem: (x, load_file(folder / f"{stem}.found.safetensors")) for stem, x in here.items()}


@every_mechanism
def test_a_checkpoint_gives_the_same_bits_in_a_new_process(name, causal, backend, round_trip):
    here, there = round_trip[key_of(name, causal, backend)]
    assert sorted(here) == sorted(there)
    for what, x in here.items():
        assert torch.equal(x, there[what]), what


@every_mechanism
def test_all_state_is_saved_and_none_is_shared(name, causal, backend):
    first, second = built(name, causal, backend), built(name, causal, backend)
    assert {n for n, _ in first.named_buffers()} <= set(first.state_dict())
    ours, theirs = ({x.data_ptr() for x in y.state_dict().values()} for y in (first, second))
    assert not ours & theirs


@every_mechanism
def test_two_calls_are_equal_and_change_no_state(name, causal, backend):
    attention = built(name, causal, backend)
    inputs = qkv(50)
    copies = [x.clone() for x in inputs]
    mask = torch.arange(50) < torch.tensor([50, 30, 9])[:, None]
    kept = mask.clone()
    for training in (True, False):
        attention.train(training)
        before = {n: x.clone() for n, x in attention.state_dict().items()}
        first = run(attention, *inputs, mask)
        run(attention, *qkv(20))
        assert torch.equal(run(attention, *inputs, mask), first)
        for n, x in attention.state_dict().items():
            assert torch.equal(x, before[n]), n
    assert all(torch.equal(x, y) for x, y in zip(inputs, copies, strict=True))
    assert torch.equal(mask, kept)


@every_mechanism
def test_global_random_state_is_left_alone(name, causal, backend):
    torch_before, numpy_before = torch.get_rng_state(), numpy.random.get_state()[1].copy()
    attention = built(name, causal, backend)
    # Initial parameters follow torch.manual_seed, like those of any module; nothing else does.
    if not list(attention.parameters()):
        assert torch.equal(torch.get_rng_state(), torch_before)
    torch_before = torch.get_rng_state()
    inputs = [x.requires_grad_() for x in qkv(33)]
    gradients(run(attention, *inputs), inputs, attention)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (numpy.random.get_state()[1] == numpy_before).all()


@every_mechanism
def test_gradient_checkpointing_changes_nothing(name, causal, backend):
    attention = built(name, causal, backend)
    inputs = [x.requires_grad_() for x in qkv(50)]
    plain = run(attention, *inputs)
    again = checkpoint(attention, *inputs, use_reentrant=False)
    assert torch.equal(plain, again)
    pairs = zip(
        gradients(plain, inputs, attention), gradients(again, inputs, attention), strict=True
    )
    assert all(torch.equal(x, y) for x, y in pairs)


@every_mechanism
def test_autocast_does_not_change_the_dtype_of_the_computation(name, causal, backend):
    attention = built(name, causal, backend).float()
    inputs = qkv(33, dtype=torch.float32)
    plain = run(attention, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(attention, *inputs)
    assert torch.equal(inside, plain)


@every_mechanism
def test_the_body_that_ran_is_recorded(name, causal, backend):
    attention = built(name, causal, backend)
    assert attention.backend_used is None
    run(attention, *qkv(9))
    assert attention.backend_used == backend
    attention.backend = "auto"
    attention(*qkv(9))
    assert attention.backend_used in backends(name)


COMPILED = """
import json, sys, torch
from contract import CASES, built, gradients, qkv
torch.set_num_threads(1)
found = {}
for case in CASES:
    if "-".join(map(str, case.values)) not in sys.argv[2:]:
        continue
    attention, worst = built(*case.values), 0.0
    for mask in (None, torch.arange(70) < torch.tensor([70, 40, 0])[:, None]):
        inputs = [x.requires_grad_() for x in qkv(70)]
        torch.compiler.reset()
        compiled = torch.compile(attention, fullgraph=True, backend=sys.argv[1])
        outs = [f(*inputs, mask) for f in (attention, compiled)]
        plain, other = ((out, *gradients(out, inputs, attention)) for out in outs)
        worst = max(worst, *((x - y).abs().max().item() for x, y in zip(plain, other)))
    found["-".join(map(str, case.values))] = worst
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(request):
    """The largest difference of each case that is to be tested."""
    name = "test_compiling_the_whole_graph_changes_nothing"
    chosen = [x.callspec.params for x in request.session.items if x.originalname == name]
    keys = [key_of(x["name"], x["causal"], x["backend"]) for x in chosen]
    return json.loads(in_new_process(COMPILED, "eager", *keys))


@every_mechanism
@pytest.mark.timeout(600)
def test_compiling_the_whole_graph_changes_nothing(name, causal, backend, compiled):
    assert compiled[key_of(name, causal, backend)] <= TOLERANCE[torch.float64]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_compiling_to_machine_code_changes_nothing():
    keys = [key_of(*case.values) for case in CASES]
    for case, worst in json.loads(in_new_process(COMPILED, "inductor", *keys)).items():
        assert worst <= TOLERANCE[torch.float64], case


@pytest.mark.parametrize(
    "name", sorted(n for n, c in MECHANISMS.items() if "layer" in c.traits.sizes)
)
def test_layers_draw_different_buffers(name):
    first, second = (dict(built(name, layer=layer).named_buffers()) for layer in (0, 1))
    if not first:
        pytest.skip("no buffers: the layer chooses among its options")
    assert any(not torch.equal(x, second[n]) for n, x in first.items())
    again = dict(built(name, layer=1).named_buffers())
    for n, x in second.items():
        assert_near(x, again[n], n, 0.0)
