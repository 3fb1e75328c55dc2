"""Kernels in Triton's interpreter against the reference; test_triton.py runs this file.

TRITON_INTERPRET=1 must be set before Triton is imported, so the tests have a process of their own.
The interpreter takes milliseconds for an operation: sizes are a few chunks of 16 tokens.
"""

import pytest
import torch
from contract import TOLERANCE, assert_near, gradients, qkv, reference_copy, second_derivatives
from interpreter import patch_language_once
from layouts import LAYOUTS, contiguous

from longspan.attention import build
from longspan.attention.kernels import linear as kernels
from longspan.attention.kernels.triton import launches

patch_language_once()

pytestmark = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
FLOAT64 = torch.float64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Divide 35 tokens of two rows into two segments, of two chunks and of one."""
    monkeypatch.setattr(launches, "CHUNK", 16)
    monkeypatch.setattr(launches, "PROGRAMS", 4)


def make(name="linear", causal=False, **options):
    return build(name, causal=causal, backend="triton", **options).double()


def inputs_of(T, S=None, D=8, E=None, H=1, dtype=FLOAT64, seed=0):
    """Draw inputs of two rows; queries are a view in the order (B, T, H, D)."""
    q, k, v = qkv(T, S, 2, H, D, E, seed, dtype)
    return [q.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()] + [
        x.requires_grad_() for x in (k, v)
    ]


def results(attention, inputs, **masks):
    out = attention(*inputs, **masks)
    assert attention.backend_used == attention.backend
    return out, *gradients(out, inputs, attention)


def assert_equals_reference(attention, inputs, atol=1e-10, **masks):
    """Assert that output and gradients equal those of the formula in float64, and return them."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = results(reference_copy(attention).double(), exact, **masks)
    found = results(attention, inputs, **masks)
    for name, x, y in zip(("output", "q", "k", "v"), found, expected, strict=True):
        assert_near(x.double(), y, name, atol)
    return found


def test_lengths_and_widths_that_fill_no_tile(causal):
    holes = torch.rand(2, 35, generator=torch.Generator().manual_seed(0)) < 0.6
    holes[0, :18] = False
    cases = [(1, 1, 5, 3, None), (35, 35, 24, 5, holes), (9, 35, 3, 20, holes)]
    for T, S, D, E, key_mask in cases:
        assert_equals_reference(make(causal=causal), inputs_of(T, S, D, E), key_mask=key_mask)


def test_widest_states_in_float32(causal):
    """Without `causal` a program has one chunk of them."""
    atol = 10 * TOLERANCE[torch.float32]
    assert_equals_reference(
        make(causal=causal).float(), inputs_of(35, D=128, dtype=torch.float32), atol
    )


def test_more_queries_than_keys(causal):
    if causal:
        pytest.skip("causal=True requires T <= S")
    assert_equals_reference(make(), inputs_of(35, 17, H=2))


def test_segments_of_one_chunk_and_one_segment(causal, monkeypatch):
    for programs in (1, 64):
        monkeypatch.setattr(launches, "PROGRAMS", programs)
        assert_equals_reference(make(causal=causal), inputs_of(33))


def test_hidden_keys_have_no_influence_and_rows_without_keys_are_zero(causal):
    attention, inputs = make(causal=causal), inputs_of(20)
    key_mask = torch.ones(2, 20, dtype=torch.bool)
    key_mask[0, 3:18] = False
    key_mask[1] = False
    found = results(attention, inputs, key_mask=key_mask)
    assert all(not x[1].any() for x in found)
    assert all(not x[0, :, 3:18].any() for x in found[2:])
    assert all(x[0].any() for x in found)
    hidden = ~key_mask[:, None, :, None]
    changed = [x.detach().masked_fill(hidden, torch.nan) for x in inputs[1:]]
    assert torch.equal(attention(inputs[0], *changed, key_mask=key_mask), found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_is_near_the_float64_reference(causal, dtype):
    inputs = inputs_of(19, dtype=dtype)
    found = assert_equals_reference(make(causal=causal), inputs, TOLERANCE[dtype])
    assert {x.dtype for x in found} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_weights_near_zero_give_zero_rows_and_finite_gradients(causal, dtype):
    """phi(-80) sums to less than the smallest safe divisor; phi(-60) does not."""
    q, k, v = (x.detach() for x in inputs_of(20, dtype=dtype))
    q[:, :, 4], q[:, :, 5], q[:, :, 6] = -80, -60, -1000
    inputs = [x.requires_grad_() for x in (q, k, v)]
    found = results(make(causal=causal), inputs)
    expected = results(build("linear", causal=causal, backend="torch"), inputs)
    assert all(x.isfinite().all() for x in found)
    assert [t for t in range(20) if not found[0][:, :, t].any()] == [4, 6]
    assert not found[1][:, :, [4, 6]].any()
    for x, y in zip(found, expected, strict=True):
        assert_near(x, y, "torch body", TOLERANCE[dtype])


def test_values_that_are_not_finite_stay_visible(causal):
    for index in range(1, 3):
        inputs = [x.detach() for x in inputs_of(20)]
        inputs[index][0, :, 19] = torch.nan
        out, expected = (make(causal=causal)(*inputs), build("linear", causal=causal)(*inputs))
        assert torch.equal(out[:, :, 16:].isnan(), expected[:, :, 16:].isnan())
        assert torch.equal(out[0, :, 19] == 0, expected[0, :, 19] == 0)


def test_second_derivatives_equal_the_reference(causal):
    attention, inputs = make(causal=causal), inputs_of(5, D=3)
    key_mask = torch.tensor([[True, False, True, True, True]]).expand(2, -1)
    expected = second_derivatives(reference_copy(attention), inputs, key_mask=key_mask)
    actual = second_derivatives(attention, inputs, key_mask=key_mask)
    for x, y in zip(actual, expected, strict=True):
        assert_near(x, y, "second derivative", 1e-8)


@pytest.mark.parametrize("feature_map", ["softmax", "hyperbolic", "trigonometric", "relu"])
def test_performer_equals_the_reference(causal, feature_map):
    if causal and feature_map != "relu":
        pytest.skip("relative to levels")
    options = {"heads": 1, "head_dim": 8, "features": 20, "feature_map": feature_map}
    key_mask = torch.arange(18) < torch.tensor([[18], [11]])
    attention = make("performer", causal, **options)
    assert_equals_reference(attention, inputs_of(18), 1e-9, key_mask=key_mask)


def test_performer_rows_are_zero_below_its_threshold(causal):
    """Trigonometric weights that cancel; without the threshold, rows would be any number."""
    options = {"heads": 1, "head_dim": 8, "features": 2, "feature_map": "trigonometric"}
    rows = []
    for backend in ("torch", "triton"):
        attention = build("performer", causal=False, backend=backend, **options).double()
        attention.projection[:] = torch.eye(8, dtype=FLOAT64)[:1]
        q, k, v = (torch.zeros(1, 1, 2, 8, dtype=FLOAT64) for _ in range(3))
        k[..., 0, 0] = torch.pi / 2 * 8**0.25 * (1 - 1e-5)
        k[:, :, 1], v[:] = k[:, :, 0], 1
        rows.append(attention(q, k, v))
    assert not rows[0].any()
    assert not rows[1].any()


def test_operators_have_right_schemas_and_fake_outputs(causal):
    q, k, v = (x.detach().float() for x in inputs_of(5, E=3, H=2))
    mask = torch.ones(2, 5, dtype=torch.bool)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        kernels.mix_values, (q, k, v, mask, True, causal, 1e-30), test_utils=checks
    )
    inverse = torch.ones(2, 2, 5)
    grad_inputs = (v, q, k, v, None, inverse, True, causal)
    torch.library.opcheck(kernels.mix_gradients, grad_inputs, test_utils=checks)


@pytest.mark.filterwarnings("ignore")
def test_compiled_calls_have_one_graph(causal):
    attention, inputs = make(causal=causal), inputs_of(9)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    expected, out = attention(*inputs), compiled(*inputs)
    assert_near(out, expected, "compiled")
    pairs = zip(
        gradients(out, inputs, attention), gradients(expected, inputs, attention), strict=True
    )
    for x, y in pairs:
        assert_near(x, y, "compiled gradient")


def test_auto_stays_with_torch_in_the_interpreter(causal):
    attention = build("linear", causal=causal)
    attention(*inputs_of(3))
    assert attention.backend_used == "torch"


@pytest.mark.parametrize("first", [0, 4, 8])
def test_layouts_of_inputs_and_gradients(causal, first):
    attention, names = make(causal=causal), list(LAYOUTS)
    tensors = [*qkv(20, B=2, H=1, seed=2), qkv(20, B=2, H=1, seed=3)[0]]
    views = [LAYOUTS[names[(first + n) % len(names)]](x) for n, x in enumerate(tensors)]
    found = []
    for *inputs, cotangent in (views, [contiguous(x) for x in views]):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = attention(*leaves, key_mask=torch.arange(2 * 20).view(20, 2).T % 7 > 0)
        found.append((out, *torch.autograd.grad(out, leaves, cotangent)))
    for x, y in zip(*found, strict=True):
        assert_near(x, y, str(names[first]))
