"""Workloads: they compute what they say, and need the memory and operations that are counted."""

import dataclasses

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.bench.cases import IDENTITY, PASSES, SCOPES, Case, refusal
from longspan.bench.counting import count_executed
from longspan.bench.memory import estimate_memory
from longspan.bench.workloads import make_mask, make_workload
from longspan.results.efficiency import Limits, Sizes
from longspan.training.footprint import LiveTensorBytes

CPU = torch.device("cpu")
SIZES = Sizes(hidden_size=32, heads=2, intermediate_size=48, layers=2, vocab_size=20)
CASE = Case(
    mechanism="full",
    options={},
    scope="layer",
    work="training",
    length=48,
    batch_size=2,
    precision="float32",
    padding=0.0,
)


def case(**changes):
    return dataclasses.replace(CASE, **changes)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", [*MECHANISMS, IDENTITY])
def test_every_mechanism_has_every_workload(name, scope):
    """Every pass runs, its memory can be estimated or is known to depend on values."""
    for work in PASSES:
        one = case(mechanism=name, scope=scope, work=work)
        if refusal(one) is None:
            workload = make_workload(one, SIZES, CPU)
            workload.call()
            workload.call()
            assert workload.traffic > 0
            assert (workload.flops is None) == (work == "decoding")
        elif name != IDENTITY:
            assert not MECHANISMS[name].traits.causal


def test_decoding_attends_from_one_token_to_the_prefix_and_itself():
    workload = make_workload(case(scope="operator", work="decoding"), SIZES, CPU)
    q, k, v, cache = workload.call.__wrapped__.args
    assert cache.length == CASE.length
    keys, values = (torch.cat([cache.state[x], y], 2) for x, y in (("k", k), ("v", v)))
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
    torch.testing.assert_close(workload.call()[0], expected)


@pytest.mark.parametrize("name", ["full", "local", "linear", "transformer_xl", "sinkhorn"])
@pytest.mark.parametrize("scope", ["operator", "layer"])
def test_every_call_decodes_the_same_token(name, scope):
    workload = make_workload(case(mechanism=name, scope=scope, work="decoding"), SIZES, CPU)
    first, second = workload.call()[0], workload.call()[0]
    assert first.shape[-2] == 1
    assert first.equal(second)


def test_operations_of_full_attention_are_those_of_the_formula():
    B, H, T, D, W = 2, 2, 48, 16, 32
    operator = make_workload(case(scope="operator", work="inference"), SIZES, CPU)
    assert count_executed(operator.call) == operator.flops == 4 * B * H * T * T * D
    layer = make_workload(case(work="inference"), SIZES, CPU)
    assert count_executed(layer.call) == layer.flops == B * (8 * T * W * W + 4 * H * T * T * D)
    trained = make_workload(case(), SIZES, CPU)
    # The backward pass of fused attention computes the scores again.
    assert count_executed(trained.call) == trained.flops + 2 * B * H * T * T * D


@pytest.mark.parametrize("scope", ["layer", "model"])
def test_identity_costs_the_maps_alone(scope):
    work = make_workload(case(mechanism=IDENTITY, scope=scope, work="inference"), SIZES, CPU)
    assert count_executed(work.call) == work.flops
    dense = make_workload(case(scope=scope, work="inference"), SIZES, CPU)
    B, T, W, layers = 2, 48, 32, 1 if scope == "layer" else SIZES.layers
    maps_and_scores = B * (4 * T * W * W + 4 * T * T * W)
    assert dense.flops - work.flops == layers * maps_and_scores


def test_tied_weights_stay_tied_and_gradients_are_freed():
    model = make_workload(case(scope="model", work="decoding"), SIZES, CPU).call.__wrapped__
    cells = dict(
        zip(model.__code__.co_freevars, (c.cell_contents for c in model.__closure__), strict=True)
    )
    decoder = cells["model"]
    assert decoder.lm_head.weight is decoder.model.embeddings.words.weight
    layer = make_workload(case(), SIZES, CPU)
    layer.call()
    assert all(p.grad is None for p in layer.attention.parameters())


def leaves_of(out):
    """Return the tensors that receive gradients from an output."""
    nodes, found = [out.grad_fn], {}
    while nodes:
        node = nodes.pop()
        if node is not None and node not in found:
            found[node] = getattr(node, "variable", None)
            nodes += [x for x, _ in node.next_functions]
    return [x for x in found.values() if x is not None]


@pytest.mark.parametrize("scope", ["operator", "layer"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_training_keeps_no_gradient(monkeypatch, name, scope):
    """Those that stay are added up in every pass, and take the memory of other workloads."""
    leaves, backward = [], torch.Tensor.backward

    def record(out, grad):
        leaves.extend(leaves_of(out))
        backward(out, grad)

    monkeypatch.setattr(torch.Tensor, "backward", record)
    make_workload(case(mechanism=name, scope=scope, work="training"), SIZES, CPU).call()
    assert leaves
    assert [tuple(x.shape) for x in leaves if x.grad is not None] == []


def test_training_changes_a_model_and_inference_does_not():
    for work, changes in (("training", True), ("inference", False), ("forward", False)):
        workload = make_workload(case(scope="model", work=work), SIZES, CPU)
        function = workload.call if changes or work == "forward" else workload.call.__wrapped__
        cells = dict(
            zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__),
                strict=True)
        )  # fmt: skip
        before = [p.clone() for p in cells["model"].parameters()]
        workload.call()
        after = cells["model"].parameters()
        assert any(not a.equal(b) for a, b in zip(after, before, strict=True)) == changes


@pytest.mark.parametrize("batch_size", [1, 4, 5])
@pytest.mark.parametrize("padding", [0.25, 0.5, 0.75])
def test_masks_hide_the_given_share(batch_size, padding):
    mask = make_mask(case(length=100, batch_size=batch_size, padding=padding), CPU)
    assert mask.shape == (batch_size, 100)
    assert (~mask).float().mean() == pytest.approx(padding, abs=0.02)
    assert mask.any(1).all()
    assert make_mask(case(padding=0.0), CPU) is None


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_estimated_memory_is_that_of_the_tensors(scope, precision):
    one = case(scope=scope, precision=precision, mechanism="linear", length=256)
    estimate = estimate_memory(lambda: make_workload(one, SIZES, CPU))
    with LiveTensorBytes() as live:
        workload = make_workload(one, SIZES, CPU)
        workload.call()
        held = live.current
    assert estimate.peak == pytest.approx(live.peak, rel=0.1)
    assert estimate.held == pytest.approx(held, rel=0.1)


def test_held_memory_is_that_of_weights_inputs_and_moments():
    """A layer holds its input, the gradient of its output and its weights; a model AdamW's too."""
    layer = estimate_memory(lambda: make_workload(case(), SIZES, CPU))
    assert layer.held == 4 * (2 * 2 * 48 * 32 + 4 * (32 * 32 + 32))
    frozen, trained = (
        estimate_memory(lambda work=work: make_workload(case(scope="model", work=work), SIZES, CPU))
        for work in ("inference", "training")
    )
    assert trained.held > 2.5 * frozen.held


def test_estimates_of_huge_workloads_take_no_memory():
    one = case(length=2**20, batch_size=4, mechanism="linear")
    assert estimate_memory(lambda: make_workload(one, SIZES, CPU)).peak > 2**32


def test_limits_take_the_slower_of_both():
    limits = Limits(flops_per_second=100.0, bytes_per_second=10.0)
    assert limits.least_seconds(1_000, 10) == 10
    assert limits.least_seconds(10, 1_000) == 100
