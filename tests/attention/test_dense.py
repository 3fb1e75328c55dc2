"""Dense body of short inputs: the same function, used exactly where blocks gather more."""

import copy

import pytest
import torch
from contract import (
    assert_near,
    build_small,
    check_contract,
    full_and_causal,
    global_masks,
    key_masks,
    qkv,
    reference_copy,
    run_with_gradients,
    second_derivatives,
)

from longspan.attention import MECHANISMS, backends, build
from longspan.attention.kernels.dense import LONGEST
from longspan.errors import InputError

DENSE = [name for name in MECHANISMS if "dense" in backends(name)]
every_dense = pytest.mark.parametrize("name", DENSE)


def build_wide(name, causal=False, backend="auto", **more):
    """Build a mechanism whose pattern covers most of three dozen tokens."""
    own = {
        "blockwise": {"block": 22},
        "disjoint": {"block": 32},
        "dilated": {"window": 20, "dilation": [1, 1, 2]},
    }
    return build_small(name, causal, backend, **own.get(name, {"window": 20}), **more)


def is_short(attention, T):
    """Whether a dense body does no more work than blocks do."""
    return attention.run_flops(T, 8) >= 4 * T * T * 8


def test_patterns_have_the_dense_body():
    assert {"blockwise", "dilated", "disjoint", "local", "longformer"} == set(DENSE)


@every_dense
@full_and_causal
def test_dense_body_equals_blocks_and_reference(name, causal):
    blocks, dense = (build_wide(name, causal, x) for x in ("torch", "dense"))
    auto = build_wide(name, causal)
    assert all(is_short(auto, T) for T in (1, 33))
    for T in (T for T in (1, 7, 33) if is_short(auto, T)):
        for kind, mask in key_masks(T).items():
            for global_mask in global_masks(name, T):
                label = f"T={T}, {kind}, {global_mask is not None}"
                masks = {"mask": mask, "global_mask": global_mask}
                modules = auto, dense, blocks, reference_copy(blocks)
                own, *others = (run_with_gradients(x, qkv(T), **masks) for x in modules)
                assert auto.backend_used == "dense"
                for other in others:
                    assert_near(own, other, label)


@every_dense
@full_and_causal
def test_contract_holds_across_both_bodies(name, causal):
    """Long rows run in blocks and short ones densely; documents alone are the short ones."""
    check_contract(build_wide(name, causal), lengths=(8, 33, 64))


@every_dense
def test_second_derivatives_equal_the_reference(name):
    attention = build_wide(name)
    inputs = [x.requires_grad_() for x in qkv(33)]
    for mask in (None, key_masks(33)["ragged"]):
        actual = second_derivatives(attention, inputs, mask=mask)
        assert attention.backend_used == "dense"
        expected = second_derivatives(reference_copy(attention), inputs, mask=mask)
        assert_near(actual, expected, "second derivative", 1e-8)


@every_dense
def test_gradient_of_one_input_alone(name):
    attention = build_wide(name)
    for needed in range(3):
        inputs = qkv(33)
        inputs[needed].requires_grad_()
        for create in (False, True):
            pair = []
            for module in (attention, reference_copy(attention)):
                out = module(*inputs).pow(2).sum()
                pair.append(torch.autograd.grad(out, inputs[needed], create_graph=create)[0])
            assert_near(*pair, f"input {needed}")


@every_dense
def test_transforms_and_forward_mode_run_blocks(name):
    attention, inputs = build_wide(name), tuple(qkv(33))
    tangents = tuple(qkv(33, seed=3))
    results = [
        torch.func.jvp(module, inputs, tangents)[1]
        for module in (attention, reference_copy(attention))
    ]
    assert attention.backend_used == "torch"
    assert_near(*results, "forward mode")
    grads = torch.func.grad(lambda *x: attention(*x).sum())(*inputs)
    assert attention.backend_used == "torch"
    assert grads.isfinite().all()


@every_dense
def test_short_inputs_run_densely_and_long_ones_in_blocks(name):
    """Work never exceeds that of blocks, whatever the size of the pattern."""
    attention = build_small(name)
    attention.backend = "auto"
    seen = set()
    for T in (1, 4, 32, 64, 128, 512):
        attention(*qkv(T, B=1))
        assert (attention.backend_used == "dense") == is_short(attention, T), T
        seen.add(attention.backend_used)
    assert seen == {"dense", "torch"}
    attention = build_wide(name)
    assert attention(*qkv(33), global_mask=torch.ones(3, 33, dtype=torch.bool)).isfinite().all()
    assert attention.backend_used == "dense"


def test_measured_lengths_are_the_limit():
    attention = build("local", window=2 * LONGEST)
    for T, expected in ((LONGEST, "dense"), (LONGEST + 1, "torch")):
        attention(*(torch.zeros(1, 1, T, 1) for _ in range(3)))
        assert attention.backend_used == expected


def test_what_needs_blocks_runs_in_blocks():
    attention = build("local", window=64, weight_dropout=0.5)
    x = qkv(33)
    attention(*x)
    assert attention.backend_used == "torch"
    attention.eval()(*x)
    assert attention.backend_used == "dense"
    attention(*x, bias=torch.zeros(1, 1, 33, 33, dtype=torch.float64))
    assert attention.backend_used == "torch"
    attention.backend = "dense"
    with pytest.raises(InputError, match=r"kernel 'dense' does not .*: a bias"):
        attention(*x, bias=torch.zeros(1, 1, 33, 33, dtype=torch.float64))
    with pytest.raises(InputError, match="T=400 is not short"):
        attention(*qkv(400))
    projected = build_small("longformer", backend="auto", global_projections=True)
    assert copy.deepcopy(projected).backend == "auto"


def test_second_backward_of_one_graph():
    attention, inputs = build_wide("local"), [x.requires_grad_() for x in qkv(33)]
    out = attention(*inputs).pow(2).sum()
    first = torch.autograd.grad(out, inputs, retain_graph=True)
    for x, y in zip(first, torch.autograd.grad(out, inputs), strict=True):
        assert torch.equal(x, y)
