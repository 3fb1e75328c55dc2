"""Calls with fixed shapes: tensors without values, traced calls, a maximum of global tokens."""

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
    global_masks,
    key_masks,
    qkv,
    run_or_skip,
    run_steps,
    run_with_gradients,
    steps_of,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan.attention import MECHANISMS, build
from longspan.errors import InputError, OptionError

T, MOST = 33, 10
with_global_tokens = pytest.mark.parametrize(
    "name", sorted(n for n, cls in MECHANISMS.items() if cls.traits.global_tokens)
)


def build_static(name, causal, backend="torch"):
    most = MOST if MECHANISMS[name].traits.global_tokens else None
    return build_small(name, causal, backend, max_global_tokens=most)


def every_mask(name):
    """Return a padding mask, and a global mask if the mechanism has global tokens."""
    global_mask = global_masks(name, T)[-1]
    assert global_mask is None or global_mask.sum(1).max() == MOST
    return key_masks(T)["holes"], global_mask


def cases(name):
    """Iterate over all combinations of a padding mask and a global mask."""
    for mask in (None, every_mask(name)[0]):
        for global_mask in global_masks(name, T):
            yield mask, global_mask


@every_mechanism
def test_meta_tensors_give_the_shape(name, causal, backend):
    attention = build_static(name, causal, backend).to("meta")
    inputs = [x.to("meta") for x in qkv(T, E=5)]
    for mask, global_mask in ((None, None), every_mask(name)):
        mask, global_mask = (None if x is None else x.to("meta") for x in (mask, global_mask))
        out = run_or_skip(attention, *inputs, mask, global_mask=global_mask)
        assert out.is_meta
        assert out.shape == (3, HEADS, T, 5)
        if causal:
            out, _ = run_steps(attention, inputs, steps_of(T, 20), mask)
            assert out.shape == (3, HEADS, T, 5)


@every_mechanism
def test_fake_tensors_give_the_shape(name, causal, backend):
    """No value is read: a fake tensor has none, and refuses."""
    attention, mode = build_static(name, causal, backend), FakeTensorMode()

    def fake(x):
        return None if x is None else mode.from_tensor(x)

    state = {n: fake(x) for n, x in (*attention.named_parameters(), *attention.named_buffers())}
    mask, global_mask = every_mask(name)
    inputs = [fake(x).requires_grad_() for x in qkv(T)]
    masks = {"mask": fake(mask), "global_mask": fake(global_mask)}
    with mode:
        out = torch.func.functional_call(attention, state, tuple(inputs), masks)
        out.sum().backward()
    assert out.shape == (3, HEADS, T, HEAD_DIM)
    assert out.dtype == torch.float64


@every_mechanism
def test_maximum_of_global_tokens_changes_no_result(name, causal, backend):
    if not MECHANISMS[name].traits.global_tokens:
        pytest.skip("no global tokens (trait)")
    static = build_static(name, causal, backend)
    counted = copy.deepcopy(static)
    counted.max_global_tokens = None
    for mask, global_mask in cases(name):
        masks = {"mask": mask, "global_mask": global_mask}
        found = (run_with_gradients(x, qkv(T), **masks) for x in (counted, static))
        assert_near(*found, "output or gradient")


@with_global_tokens
def test_more_global_tokens_than_the_maximum_are_rejected(name):
    attention = build_static(name, causal=False)
    is_global = (torch.arange(T) < MOST + 1).expand(3, -1)
    message = f"most max_global_tokens={MOST} real tokens per row, got {MOST + 1}"
    with pytest.raises(InputError, match=message):
        attention(*qkv(T), global_mask=is_global)
    # Padding is not global.
    attention(*qkv(T), torch.arange(T).expand(3, -1) > 0, global_mask=is_global)


@with_global_tokens
def test_global_tokens_without_values_require_the_maximum(name):
    if name == "full":
        return  # its global tokens change nothing
    attention = build_small(name).to("meta")
    inputs = [x.to("meta") for x in (*qkv(T), torch.ones(3, T, dtype=torch.bool))]
    with pytest.raises(InputError, match="no values to count: build with max_global_tokens="):
        attention(*inputs, global_mask=inputs[3])


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [
        ("local", -1, "max_global_tokens must be an integer >= 0 or None, got -1"),
        ("local", True, "max_global_tokens must be an integer >= 0 or None, got True"),
        ("linear", 3, r"max_global_tokens is not supported \(traits.global_tokens\)"),
    ],
)
def test_invalid_maximum_is_rejected(name, most, message):
    with pytest.raises(OptionError, match=message):
        build(name, max_global_tokens=most)


@every_mechanism
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, on the deprecation of its own functions
def test_exported_program_gives_the_same_results(name, causal, backend):
    attention = build_static(name, causal, backend).eval()
    for mask, global_mask in cases(name):
        program = torch.export.export(attention, (*qkv(T), mask), {"global_mask": global_mask})
        inputs = qkv(T, seed=1)
        out = program.module()(*inputs, mask, global_mask=global_mask)
        expected = attention(*inputs, mask, global_mask=global_mask)
        assert_near(out, expected, "output", TOLERANCE[torch.float64])
