"""Kernels of the recurrences in Triton's interpreter; test_triton_recurrence.py runs this file.

As triton_interpreted.py: a process of its own, and chunks of 16 tokens.
"""

import numpy as np
import pytest
import torch
from contract import (
    TOLERANCE,
    assert_near,
    gradients,
    qkv,
    reference_copy,
    run_with_gradients,
    second_derivatives,
)
from interpreter import patch_language_once
from layouts import LAYOUTS, contiguous
from torch.nn.functional import normalize

from longspan.attention import build
from longspan.attention.kernels import recurrence as kernels
from longspan.attention.kernels.triton import launches, recurrence_launches
from longspan.attention.ops.recurrence import mix

patch_language_once()

D = 8
NAMES = ("retention", "ssd", "gated_linear", "delta", "gated_delta", "kimi_delta")
both_rules = pytest.mark.parametrize("delta", [False, True], ids=["sum", "delta"])
both_decays = pytest.mark.parametrize("width", [1, D], ids=["head", "channel"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(launches, "CHUNK", 16)


def make(name, causal=True):
    torch.manual_seed(0)
    sizes = {"heads": 1, "head_dim": D, "width": D}
    if name == "retention":
        sizes = {"heads": 1}
    return build(name, causal=causal, backend="triton", **sizes).double()


def draw(T, width, rate=1.0, values=8):
    """Return q and k of length one, v, log decays from 0 to -rate, step sizes; all in float64."""
    q, k, v = qkv(T, B=1, H=2, D=D, E=values)
    decays, beta, _ = qkv(T, B=1, H=2, D=width, seed=1)
    rows = normalize(q, dim=-1), normalize(k, dim=-1), v
    gates = -rate * decays.sigmoid(), beta[..., 0].sigmoid()
    return [x.requires_grad_() for x in (*rows, *gates)]


def results(function, inputs, delta):
    """Return outputs and gradients, of the dtypes of the inputs."""
    out = function(*inputs, delta=delta)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad(out, inputs, weight)


def mix_exactly(*inputs, delta):
    return mix(*inputs, delta=delta)[0]


def assert_equals_engine(inputs, delta, atol=1e-10):
    """Assert that rows and gradients equal those of float64, as a share of the largest number."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = results(mix_exactly, exact, delta)
    found = results(kernels.mix_in_kernels, inputs, delta)
    names = ("output", "q", "k", "v", "log decay", "beta")
    for name, x, y in zip(names, found, expected, strict=True):
        size = y.detach().abs().max().clamp(min=1e-30)
        assert x.isfinite().all()
        assert_near(x.double() / size, y / size, name, atol)


@both_rules
@both_decays
@pytest.mark.parametrize("T", [1, 16, 35])
def test_lengths_around_a_chunk(T, width, delta):
    """Values in two tiles of columns."""
    assert_equals_engine(draw(T, width, values=40), delta)


@both_decays
def test_chunks_of_other_sizes(width, monkeypatch):
    """Also of 64 tokens, of a call whose tokens fill half of one."""
    for chunk in (32, 64):
        monkeypatch.setattr(launches, "CHUNK", chunk)
        assert_equals_engine(draw(35, width), True)


@both_rules
@both_decays
@pytest.mark.parametrize("rate", [1e-6, 60, 1e4])
def test_extreme_decays_keep_their_precision(rate, width, delta):
    """A decay of e^-0.3 after one of e^-10000: a difference of sums would lose the former."""
    inputs = [x.detach().float() for x in draw(20, width, rate)]
    inputs[3][:, :, ::2] *= 0.3 / rate
    assert_equals_engine([x.requires_grad_() for x in inputs], delta, TOLERANCE[torch.float32])


def test_calls_without_gates():
    q, k, v, *_ = draw(20, 1)
    for delta in (False, True):
        expected = results(mix_exactly, [q, k, v], delta)
        found = results(kernels.mix_in_kernels, [q, k, v], delta)
        for x, y in zip(found, expected, strict=True):
            assert_near(x, y, "no gates")


# Both directions are the same code for all mechanisms.
CALLS = [*((name, True) for name in NAMES), ("retention", False), ("kimi_delta", False)]


@pytest.mark.parametrize(("name", "causal"), CALLS)
def test_mechanisms_equal_their_reference(name, causal):
    """Rows, gradients of inputs and of the maps to the gates; a row of padding is zero."""
    T = 20 if causal else 12
    attention, inputs = make(name, causal), qkv(T, B=2, H=1, D=D)
    key_mask = torch.rand(2, T, generator=torch.Generator().manual_seed(0)) < 0.6
    key_mask[1] = False
    found = run_with_gradients(attention, inputs, key_mask=key_mask)
    expected = run_with_gradients(reference_copy(attention), inputs, key_mask=key_mask)
    assert attention.backend_used == "triton"
    for number, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert_near(x, y, f"{name} {number}")
    assert all(not x[1].any() for x in found[:4])
    assert all(x[0].any() for x in found[:4])
    hidden = ~key_mask[:, None, :, None]
    changed = [x.masked_fill(hidden, torch.nan) for x in inputs]
    real = key_mask[:, None, :, None]
    same = attention(*changed, key_mask=key_mask).where(real, 0)
    assert torch.equal(same, found[0].where(real, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_is_near_the_float64_reference(dtype):
    for name, causal in (("kimi_delta", True), ("ssd", False)):
        attention, inputs = make(name, causal), qkv(20, B=1, H=1, D=D, dtype=dtype)
        exact = run_with_gradients(reference_copy(attention), [x.double() for x in inputs])
        found = run_with_gradients(attention.float(), inputs)
        assert {x.dtype for x in found[:4]} == {dtype}
        for x, y in zip(found[:4], exact, strict=False):
            size = y.abs().max()
            assert_near(x.double() / size, y / size, name, TOLERANCE[dtype])


def round_to_tf32(x):
    """Round to ten bits of the mantissa."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(np.float32)


@both_decays
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_of_tf32_are_precise_enough(dtype, width, monkeypatch):
    """The interpreter multiplies in float32; a GPU rounds the factors. Keys are much alike."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")

    def create_dot(self, x, y, total, precision, _):
        (a, b), handle = (x.data, y.data), interpreter.TensorHandle
        high_a, high_b = round_to_tf32(a), round_to_tf32(b)
        out = high_a @ high_b
        if dtype == torch.float32:
            out += round_to_tf32(a - high_a) @ high_b + high_a @ round_to_tf32(b - high_b)
        return handle(out + total.data, total.dtype.scalar)

    monkeypatch.setattr(launches, "CHUNK", 64)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    inputs = draw(70, width, 0.1)
    rows = [inputs[0], normalize(inputs[1] + 1, dim=-1), inputs[2]]
    rows = [x.detach().to(dtype).requires_grad_() for x in rows]
    gates = [x.detach().float().requires_grad_() for x in inputs[3:]]
    assert_equals_engine(rows + gates, True, 5e-6 if dtype == torch.float32 else 1e-2)


def test_second_derivatives_equal_the_reference():
    attention = make("gated_delta")
    inputs = [x.requires_grad_() for x in qkv(5, B=2, H=1, D=D)]
    key_mask = torch.tensor([[True, False, True, True, True]]).expand(2, -1)
    expected = second_derivatives(reference_copy(attention), inputs, key_mask=key_mask)
    actual = second_derivatives(attention, inputs, key_mask=key_mask)
    for x, y in zip(actual, expected, strict=True):
        assert_near(x, y, "second derivative", 1e-8)


def test_operators_have_right_schemas_and_fake_outputs():
    q, k, v, decay, beta = (x.detach().float() for x in draw(5, D))
    checks = ("test_schema", "test_faketensor")
    inputs = q, k, v, decay, beta[..., None], True
    torch.library.opcheck(kernels.mix_rows, inputs, test_utils=checks)
    torch.library.opcheck(kernels.mix_rows_gradients, (v, *inputs), test_utils=checks)


@pytest.mark.filterwarnings("ignore")
def test_compiled_calls_have_one_graph():
    attention = make("gated_delta")
    inputs = [x.requires_grad_() for x in qkv(9, B=1, H=1, D=D)]
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    expected, out = attention(*inputs), compiled(*inputs)
    assert_near(out, expected, "compiled")
    pairs = zip(
        gradients(out, inputs, attention), gradients(expected, inputs, attention), strict=True
    )
    for x, y in pairs:
        assert_near(x, y, "compiled gradient")


def test_auto_stays_with_torch_in_the_interpreter():
    for name in NAMES:
        attention = make(name)
        attention.backend = "auto"
        attention(*qkv(3, B=1, H=1, D=D))
        assert attention.backend_used == "torch"


@pytest.mark.parametrize(("first", "T"), [(0, 20), (4, 9), (8, 9)])
def test_layouts_of_inputs_and_gradients(first, T):
    names = list(LAYOUTS)
    tensors = [x.detach() for x in draw(T, D)[:4]] + [qkv(T, B=1, H=2, D=D)[0]]
    tensors[3] = tensors[3].clamp(max=0)
    views = [LAYOUTS[names[(first + n) % len(names)]](x) for n, x in enumerate(tensors)]
    pair = []
    for *inputs, cotangent in (views, [contiguous(x) for x in views]):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = kernels.mix_in_kernels(*leaves, delta=True)
        pair.append((out, *torch.autograd.grad(out, leaves, cotangent)))
    for x, y in zip(*pair, strict=True):
        assert_near(x, y, names[first])


def test_calls_without_gradients_have_no_buffers_of_theirs():
    q, _, v, decay, _ = (x.detach() for x in draw(20, 1))
    buffers = recurrence_launches._plan(q, v, decay, delta=False).buffers
    assert [x.data.numel() for x in buffers] == [0, 2 * 20 * D, 2 * 2 * D * D, 0, 0, 0, 0]
