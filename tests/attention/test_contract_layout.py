"""The memory layout of an input never changes a result."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_equals_reference,
    assert_near,
    every_mechanism,
    every_stepping_mechanism,
    gradients,
    qkv,
    run_or_skip,
    run_steps,
)
from layouts import LAYOUTS, ROTATIONS, SAME, contiguous

from longspan.attention import MECHANISMS, LayerInput, build
from longspan.attention.ops.fused import FEWEST_ROWS, _fit_gradient, has_aligned_rows

BFLOAT16 = torch.bfloat16
LENGTHS = {1: 6, 100: 1}  # and steps between the rotations that are tried
WIDTH = HEADS * HEAD_DIM


def build_wide(name, causal, backend, dtype=torch.float64):
    """Build a mechanism whose blocks are large enough for fused kernels."""
    cls = MECHANISMS[name]
    options = {} if cls.size_option is None else {cls.size_option: FEWEST_ROWS}
    if cls.traits.family == "recurrence":
        options["segment"] = 2 * FEWEST_ROWS
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": max(LENGTHS)}
    return build(name, causal=causal, backend=backend, **sizes, **options).to(dtype)


def results(attention, inputs, cotangent, call, **masks):
    """Return output and gradients."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = run_or_skip(call, *leaves, **masks)
    targets = [*leaves, *attention.parameters()]
    found = torch.autograd.grad(out, targets, cotangent, allow_unused=True, materialize_grads=True)
    return out.detach(), *found


def compare_results(attention, views, copies, call, view_masks, copy_masks):
    """Yield pairs: output, gradients, and the output without gradients and with them."""
    found = results(attention, views[:3], views[3], call, **view_masks)
    expected = results(attention, copies[:3], copies[3], call, **copy_masks)
    yield from zip(found, expected, strict=True)
    with torch.no_grad():
        yield call(*views[:3], **view_masks), expected[0]


def assert_layout_is_irrelevant(attention, inputs, layouts, label, call=None, atol=1e-10, **masks):
    """Compare inputs, and the gradient of the output, in layouts with contiguous copies of them."""
    call = attention if call is None else call
    views = [LAYOUTS[name](x) for x, name in zip(inputs, layouts, strict=True)]
    copies = [contiguous(x) for x in views]
    own_masks = {name: contiguous(x) for name, x in masks.items()}
    for a, b in compare_results(attention, views, copies, call, masks, own_masks):
        assert_near(a, b, f"{label}, layouts of q, k, v and the gradient {layouts}", atol)


@every_mechanism
def test_layouts_of_inputs_and_gradients(name, causal, backend):
    attention = build_wide(name, causal, backend)
    for T, step in LENGTHS.items():
        inputs = [*qkv(T, B=2), qkv(T, B=2, seed=1)[0]]
        for layouts in ROTATIONS[::step]:
            assert_layout_is_irrelevant(attention, inputs, layouts, f"T={T}")


@every_mechanism
def test_values_of_another_width_than_keys(name, causal, backend):
    """Weights are read off values as wide as the keys are many."""
    attention = build_wide(name, causal, backend)
    if "value_dim" in attention.built_for:
        pytest.skip("values as wide as keys, as built")
    assert_equals_reference(attention, qkv(100, B=2, E=5), "values of width 5", 1e-8)


@every_mechanism
def test_layouts_in_half_precision(name, causal, backend):
    attention = build_wide(name, causal, backend, BFLOAT16)
    inputs = [*qkv(40, B=2, dtype=BFLOAT16), qkv(40, B=2, seed=1, dtype=BFLOAT16)[0]]
    for layouts in ROTATIONS[::2]:
        atol = 8 * TOLERANCE[BFLOAT16]
        assert_layout_is_irrelevant(attention, inputs, layouts, "bfloat16", atol=atol)


@every_mechanism
def test_layouts_of_a_single_row_of_the_batch_and_of_masks(name, causal, backend):
    attention, T = build_wide(name, causal, backend), 100
    g = torch.Generator().manual_seed(0)
    inputs = [*qkv(T, B=1), qkv(T, B=1, seed=1)[0]]
    # A mask whose neighbors in memory are the other rows of a batch.
    masks = {"mask": (torch.rand(T, 1, generator=g) < 0.7).T}
    if MECHANISMS[name].traits.global_tokens:
        masks["global_mask"] = (torch.rand(2 * T, 1, generator=g) < 0.1).T[:, ::2]
    for layouts in ROTATIONS[::3]:
        assert_layout_is_irrelevant(attention, inputs, layouts, "batch 1", **masks)


@every_mechanism
def test_layouts_of_packed_documents(name, causal, backend):
    attention, bounds = build_wide(name, causal, backend), torch.tensor([0, 40, 41, 100])

    def packed(*inputs):
        return attention.packed(*(x[0].transpose(0, 1) for x in inputs), bounds).transpose(0, 1)

    inputs = [*qkv(100, B=1), qkv(100, B=1, seed=1)[0]]
    packed.__self__ = attention
    for layouts in ROTATIONS[1::4]:
        views = [LAYOUTS[x](y) for x, y in zip(layouts, inputs, strict=True)]
        views[3] = views[3][0]
        copies = [contiguous(x) for x in views]
        for a, b in compare_results(attention, views, copies, packed, {}, {}):
            assert_near(a, b, f"packed, {layouts}")


@every_stepping_mechanism
def test_layouts_of_steps_and_caches(name, causal, backend):
    attention, inputs = build_wide(name, causal, backend), qkv(100, B=2)
    expected = attention(*inputs)
    for layout in SAME:
        out, _ = run_steps(attention, [SAME[layout](x) for x in inputs], (50, 1, 49))
        assert_near(out, expected, f"steps, {layout}")


@every_mechanism
def test_layouts_of_biases(name, causal, backend):
    attention = build_wide(name, causal, backend)
    if not attention.traits.bias:
        pytest.skip("no bias (trait)")
    inputs, T = qkv(100, B=2), 100
    bias = qkv(T, B=2, D=T, seed=2)[0]
    for layout in LAYOUTS:
        view = LAYOUTS[layout](bias).detach().requires_grad_()
        copy = contiguous(view).requires_grad_()
        outs = [run_or_skip(attention, *inputs, bias=x) for x in (view, copy)]
        assert_near(*outs, f"bias, {layout}")
        grads = [gradients(x, [y], attention)[0] for x, y in zip(outs, (view, copy), strict=True)]
        assert_near(*grads, f"gradient of the bias, {layout}")


@every_mechanism
def test_layouts_of_the_layer_input(name, causal, backend):
    if not MECHANISMS[name].traits.needs_layer_input:
        pytest.skip("no layer input (trait)")
    options = {"global_projections": True} if name == "longformer" else {}
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 64}
    attention = build(name, causal=causal, backend=backend, **sizes, **options).double()
    inputs = qkv(64, B=2)
    maps = torch.randn(2, WIDTH, WIDTH, dtype=torch.float64)
    masks = {}
    if attention.traits.global_tokens:
        masks["global_mask"] = torch.arange(64).expand(2, -1) % 9 == 4

    def project(weight):
        return lambda x: (x.double() @ weight).unflatten(-1, (HEADS, -1)).transpose(-3, -2)

    def run(states):
        source = LayerInput(states, project(maps[0]), project(maps[1]))
        return run_or_skip(attention, *inputs, layer_input=source, **masks)

    states = qkv(64, B=1, H=2, D=WIDTH, seed=3)[0]
    for layout in SAME:
        assert_near(run(SAME[layout](states)[0]), run(states[0]), f"layer input, {layout}")


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16], ids=str)
def test_what_kernels_on_cuda_would_read_wrongly_is_copied(dtype):
    """Copies are always aligned; of the layouts, those without gaps or whole rows between rows."""
    x = qkv(40, B=2, dtype=dtype)[0]
    assert all(has_aligned_rows(contiguous(LAYOUTS[name](x))) for name in LAYOUTS)
    kept = {name for name in LAYOUTS if has_aligned_rows(LAYOUTS[name](x))}
    assert {"every second row", "(T, B, H, D)"} <= kept
    assert not kept & {"storage offset", "overlapping rows"}
    views = {name: LAYOUTS[name](x) for name in LAYOUTS}
    as_they_are = {name for name, view in views.items() if _fit_gradient(view) is view}
    assert as_they_are == {"every second row", "(T, B, H, D)", "storage offset"}
    odd = qkv(40, B=2, D=5, dtype=dtype)[0]
    assert has_aligned_rows(odd), "a copy of rows of 5 numbers is no better"
