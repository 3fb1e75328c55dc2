"""Softmax of mechanisms piece by piece: derivatives, half precision, and what is saved."""

import functools

import pytest
import torch
from contract import (
    TOLERANCE,
    all_derivatives,
    assert_derivatives_near,
    assert_near,
    holed_mask,
    plain_gradients,
    qkv,
    reference_copy,
    run_and_count_saved,
)
from test_fused import names_of_graph

from longspan import build
from longspan.attention.ops import (
    block_lists,
    block_pairs,
    chunk_pieces,
    relative_positions,
    selected_blocks,
)
from longspan.attention.ops.block_pairs import pair_softmax

T = 230
SIZES = {"heads": 3, "head_dim": 8, "max_length": T}
SLOTS = {"compressed_memory": 6, "ratio": 3}
OPTIONS = {
    "reformer": {"chunk": 32},
    "bigbird": {"block": 32, "num_random_blocks": 2},
    "sinkhorn": {"block": 40},
    "moba": {"block": 32, "num_selected_blocks": 2},
    "transformer_xl": {"segment": 40, "memory": 30, "causal": True},
    "compressive": {"segment": 40, "memory": 20, "causal": True, **SLOTS},
}
CASES = {
    "rounds": ("reformer", {}),
    "one round": ("reformer", {"hashes": 1}),
    "causal rounds": ("reformer", {"causal": True}),
    "deduplicated": ("reformer", {"dedupe": True}),
    "same bucket": ("reformer", {"same_bucket": True, "buckets": 4}),
    "wrapped": ("reformer", {"wrap": True}),
    "grid": ("reformer", {"grid": 64}),
    "causal grid": ("reformer", {"grid": 64, "causal": True}),
    "lists": ("bigbird", {}),
    "etc": ("bigbird", {"form": "etc", "global_tokens": 5}),
    "causal lists": ("bigbird", {"causal": True}),
    "causal first": ("bigbird", {"causal": True, "global_blocks": "first"}),
    "pairs": ("sinkhorn", {}),
    "causal pairs": ("sinkhorn", {"causal": True}),
    "whole pairs": ("sinkhorn", {"block": 46}),
    "selected": ("moba", {}),
    "causal selected": ("moba", {"causal": True}),
    "all selected": ("moba", {"num_selected_blocks": 9}),
    "memory": ("transformer_xl", {}),
    "no memory": ("transformer_xl", {"memory": 0}),
    "same length": ("transformer_xl", {"same_length": True}),
    "through memory": ("transformer_xl", {"backprop_through_memory": True}),
    "bidirectional": ("transformer_xl", {"causal": False}),
    "slots": ("compressive", {}),
    "bidirectional slots": ("compressive", {"causal": False}),
}
RELATIVE = relative_positions, "_RelativePieces", [(1, 16), (2, 13), (4, 20)]
# The module, the function of the graph, and its sizes: one block, some, whole batches; or heads,
# also of two samples, and queries.
PIECES = {
    "reformer": (chunk_pieces, "_PieceSoftmax", [(1,), (500,), (1 << 14,)]),
    "bigbird": (block_lists, "_PieceSoftmax", [(1,), (200,), (1 << 14,)]),
    "sinkhorn": (block_pairs, "_PieceSoftmax", [(1,), (500,), (1 << 14,)]),
    "moba": (selected_blocks, "_PieceSoftmax", [(1,), (200,), (1 << 14,)]),
    "transformer_xl": RELATIVE,
    "compressive": RELATIVE,
}
GLOBAL = {"global": torch.zeros(2, T, dtype=torch.bool)}
GLOBAL["global"][0, [3, 150]] = GLOBAL["global"][1, 70] = True
SMALL, SOME, WHOLE = range(3)  # sizes of pieces
# Pieces of every size under a ragged mask and with global tokens, and of one under the other masks.
KINDS = [
    pytest.param(case, kind, size, id=f"{case}-{kind}-{size}")
    for case, (name, _) in CASES.items()
    for kind in ("none", "ragged", "only padding", "global")
    if kind != "global" or name in ("reformer", "bigbird")
    for size in ((SOME,) if kind in ("none", "only padding") else (SMALL, SOME, WHOLE))
]
every_size = pytest.mark.parametrize("size", range(3), ids=["small", "some", "whole"])


def make(case, backend="torch", **changes):
    name, options = CASES[case]
    torch.manual_seed(0)
    return build(name, backend=backend, **SIZES, **OPTIONS[name] | options | changes).double()


def set_sizes(monkeypatch, name, size):
    """Set the sizes of the pieces of a mechanism."""
    module, _, sizes = PIECES[name]
    names = ("HEADS", "BLOCK") if module is relative_positions else ("PIECE",)
    for constant, value in zip(names, sizes[size], strict=True):
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def derivatives(case, kind, backend):
    """Return rows, gradients of inputs and parameters, and second derivatives."""
    attention, inputs = make(case, backend), [x.requires_grad_() for x in qkv(T, B=2)]
    masks = {"global_mask": GLOBAL[kind]} if kind in GLOBAL else {"mask": holed_mask(kind, T)}
    out = attention(*inputs, **masks)
    if backend == "torch":
        assert PIECES[CASES[case][0]][1] in names_of_graph(out.grad_fn)
    return out.detach(), *all_derivatives(out, [*inputs, *attention.parameters()])


@pytest.fixture(scope="module")
def exact():
    """Derivatives of the reference by case and mask, computed once for all sizes of pieces."""
    return functools.cache(functools.partial(derivatives, backend="reference"))


@pytest.mark.parametrize(("case", "kind", "size"), KINDS)
def test_all_derivatives_equal_the_reference(monkeypatch, exact, case, kind, size):
    set_sizes(monkeypatch, CASES[case][0], size)
    found = derivatives(case, kind, "torch")
    assert_derivatives_near(found, exact(case, kind))
    if kind == "only padding":
        assert (found[0][1] == 0).all()


@every_size
@pytest.mark.parametrize("case", ["lists", "etc", "causal lists", "causal first"])
def test_half_precision_has_the_gradients_of_the_reference(monkeypatch, exact, case, size):
    set_sizes(monkeypatch, "bigbird", size)
    inputs = [x.bfloat16().requires_grad_() for x in qkv(T, B=2)]
    out = make(case)(*inputs, holed_mask("ragged", T))
    assert "_PieceSoftmax" in names_of_graph(out.grad_fn)
    expected, gradients, *_ = exact(case, "ragged")
    pairs = zip((out, *plain_gradients(out, inputs)), (expected, *gradients), strict=True)
    for x, y in pairs:
        assert x.dtype == torch.bfloat16
        assert_near(x.double(), y, "gradient", 3 * TOLERANCE[torch.bfloat16])


@every_size
@pytest.mark.parametrize("case", ["pairs", "causal pairs", "whole pairs"])
@pytest.mark.parametrize("kind", ["none", "ragged"])
def test_half_precision_of_pairs_is_that_of_the_reference(monkeypatch, exact, case, kind, size):
    """Pieces are for passes without gradients, since half precision keeps the weights for them."""
    set_sizes(monkeypatch, "sinkhorn", size)
    attention, mask = make(case), holed_mask(kind, T)
    inputs = [x.bfloat16().requires_grad_() for x in qkv(T, B=2)]
    expected, gradients, *_ = exact(case, kind)
    with torch.no_grad():
        rows = attention(*inputs, mask).double()
    assert_near(rows, expected, "rows", TOLERANCE[torch.bfloat16])
    found = plain_gradients(attention(*inputs, mask), inputs)
    for x, y in zip(found, gradients, strict=True):
        assert x.dtype == torch.bfloat16
        assert (x.double() - y).norm() <= 0.03 * y.norm()


# Inputs, rows, small masks and: scales of keys and rows of two rounds, where keys and values twice
# in each would be ten more; five listed blocks; sorted keys and values.
@pytest.mark.parametrize(("case", "most"), [("rounds", 14), ("etc", 12), ("pairs", 10)])
def test_gathered_keys_are_not_saved(case, most):
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    _, saved = run_and_count_saved(make(case), *inputs)
    assert saved < most * inputs[0].nbytes


def test_listed_blocks_that_are_read_often_are_summed_in_float32(monkeypatch):
    """A sum of 1,024 ones would stop at 256 in bfloat16."""
    monkeypatch.setattr(block_lists, "PIECE", 1)
    rows, block, D = 1024, 32, 4
    q = torch.zeros(rows, block, D, dtype=torch.bfloat16)
    k = torch.zeros(1, block * D, dtype=torch.bfloat16)
    v = torch.zeros_like(k).requires_grad_()
    index, bias = torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, 1, block)
    lists = block_lists.Lists(index, bias.bfloat16(), None, rows, 1)
    pieces = block_lists._ListPieces(lists, 1.0, lambda *_: None)
    out = block_lists.softmax_in_pieces(pieces, q, k, v)
    out.backward(torch.ones_like(out))
    assert_near(v.grad, torch.full_like(v, rows), "sum")


@every_size
def test_empty_rows_of_pairs_are_zero_and_have_no_gradient(monkeypatch, size):
    """Here masked values are not zero, as they are where a mechanism is called."""
    set_sizes(monkeypatch, "sinkhorn", size)
    q, *others = (
        x.unflatten(2, (5, 46)).requires_grad_() for x in (*qkv(T, B=2), *qkv(T, B=2, seed=1)[:2])
    )
    mask = torch.rand(2, 1, 5, 46, 92) < 0.5
    mask[0, :, 2, 7], mask[1, :, 4] = False, False
    out = pair_softmax(q, tuple(others[:2]), tuple(others[2:]), mask)
    empty = ~mask.any(-1).expand(out.shape[:-1])
    assert empty.any()
    assert (out[empty] == 0).all()
    gradients = torch.autograd.grad(out.sin().sum(), (q, *others))
    assert all(x.isfinite().all() for x in gradients)
    assert (gradients[0][empty] == 0).all()
    assert all((x[1, :, 4] == 0).all() for x in gradients)


def test_transforms_join_all_pairs():
    attention, inputs = make("pairs"), qkv(T, B=2)
    assert_near(torch.func.vmap(attention)(*(x[None] for x in inputs))[0], attention(*inputs), "")
    tangent = torch.func.jvp(attention, tuple(inputs), tuple(qkv(T, B=2, seed=3)))[1]
    assert tangent.isfinite().all()


def test_relative_weights_are_not_saved():
    inputs = [x.requires_grad_() for x in qkv(1024, B=1)]
    _, saved = run_and_count_saved(make("memory", segment=512, memory=512), *inputs)
    weights = 3 * (512 * 512 + 512 * 1024) * 8
    assert saved < weights / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_relative_positions_in_half_precision_keep_the_weights(dtype):
    attention = make("memory", segment=512, memory=512).to(dtype)
    inputs = [x.to(dtype).requires_grad_() for x in qkv(600, B=1)]
    names = names_of_graph(attention(*inputs).grad_fn)
    assert ("_RelativePieces" in names) == (dtype == torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_of_relative_positions_in_half_precision_is_piecewise(dtype, monkeypatch):
    """Keeping all scores took 27 times the memory."""
    calls = []
    run = relative_positions.relative_softmax
    monkeypatch.setattr(
        relative_positions, "relative_softmax", lambda *x: calls.append(x[2].dtype) or run(*x)
    )
    attention = make("bidirectional", segment=1024, memory=512).to(dtype)
    inputs = [x.to(dtype) for x in qkv(600, B=1)]
    with torch.no_grad():
        out = attention(*inputs)
    assert calls == [torch.float32]
    expected = reference_copy(attention).double()(*(x.double() for x in inputs))
    assert_near(out.double(), expected, "inference", 2 * TOLERANCE[dtype])


def test_few_queries_keep_the_relative_weights():
    inputs = [x.requires_grad_() for x in qkv(600, B=1)]
    out = make("memory", segment=128, memory=512)(*inputs)
    assert "_RelativePieces" not in names_of_graph(out.grad_fn)
