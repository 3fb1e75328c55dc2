"""Softmax over sets of keys, piece by piece: derivatives, pieces, and what is saved."""

import functools
import itertools

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
    run_and_count_saved,
)
from test_fused import names_of_graph
from torch.utils.checkpoint import checkpoint

from longspan import build
from longspan.attention import Inputs
from longspan.attention.ops import blocks, factorized_rows, key_sets
from longspan.attention.ops.blocks import fit_layout
from longspan.attention.ops.key_sets import ColumnSet, RunSet
from longspan.attention.patterns import Window

T = 230
SPARSE = {"heads": 3, "max_length": 1}
FIXED = SPARSE | {"kind": "fixed", "summary": 5}
CASES = {
    "local": ("local", {"window": 40}),
    "causal": ("local", {"window": 40, "causal": True}),
    "blockwise": ("blockwise", {"block": 46}),
    "whole blocks": ("local", {"window": 46}),
    "disjoint": ("disjoint", {"block": 46}),
    "dilated": ("dilated", {"heads": 3, "window": 33, "dilation": 3, "causal": True}),
    "global": ("longformer", {"heads": 3, "head_dim": 8, "window": 35, "first_global": 2}),
    "causal global": (
        "longformer",
        {"heads": 3, "head_dim": 8, "window": 35, "dilation": 2, "first_global": 2, "causal": True},
    ),
    "two_sets": ("sparse_transformer", SPARSE | {"stride": 36}),
    "causal two_sets": ("sparse_transformer", SPARSE | {"stride": 45, "causal": True}),
    "two_sets tokens": ("sparse_transformer", SPARSE | {"stride": 33}),
    "causal two_sets tokens": ("sparse_transformer", SPARSE | {"stride": 40, "causal": True}),
    "columns": ("sparse_transformer", FIXED | {"stride": 36}),
    "causal columns": ("sparse_transformer", FIXED | {"stride": 46, "causal": True}),
    "columns tokens": ("sparse_transformer", FIXED | {"stride": 33, "groups": 3}),
    "causal columns tokens": ("sparse_transformer", FIXED | {"stride": 33, "causal": True}),
    "columns alone tokens": (
        "sparse_transformer",
        FIXED | {"stride": 32, "head_patterns": "alternating", "layer": 1},
    ),
    "causal columns alone": (
        "sparse_transformer",
        FIXED | {"stride": 32, "head_patterns": "alternating", "layer": 1, "causal": True},
    ),
}
MASKS = ["none", "ragged", "only padding"]
every_case = pytest.mark.parametrize("case", CASES)
# Sizes of pieces: one block, two but at the ends, more, or the whole batch.
PIECES = {"blocks": 1, "edges": 300, "rows": 600, "whole": 1 << 14}
every_piece = pytest.mark.parametrize("piece", PIECES, indirect=True)


@pytest.fixture
def piece(request, monkeypatch):
    """Set the size of pieces."""
    monkeypatch.setattr(key_sets, "PIECE", PIECES[request.param])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def every_piece_and_mask(*others):
    """Parametrize by pieces of every size under a ragged mask, and by other pairs of both."""
    pairs = [*((piece, "ragged") for piece in PIECES), *others]
    return pytest.mark.parametrize(("piece", "kind"), pairs, indirect=["piece"])


def global_mask(case):
    """Return the caller's global tokens of two rows, or None."""
    if "tokens" not in case:
        return None
    mask = torch.zeros(2, T, dtype=torch.bool)
    mask[0, [3, 77]] = mask[1, 229] = True
    return mask


def rows_of(case, backend, mask, inputs):
    """Return the rows of a case, through a backend."""
    name, options = CASES[case]
    return build(name, backend=backend, **options)(*inputs, mask, global_mask=global_mask(case))


def derivatives(case, kind, backend):
    """Return rows, gradients and second derivatives."""
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    out = rows_of(case, backend, holed_mask(kind, T), inputs)
    if backend == "torch":
        assert "_PieceSoftmax" in names_of_graph(out.grad_fn)
    return out.detach(), *all_derivatives(out, inputs)


@pytest.fixture(scope="module")
def exact():
    """Derivatives of the reference by case and mask, computed once for all sizes of pieces."""
    return functools.cache(functools.partial(derivatives, backend="reference"))


@every_case
@every_piece_and_mask(*itertools.product(("edges", "whole"), ("none", "only padding")))
def test_all_derivatives_equal_the_reference(piece, exact, case, kind):
    found = derivatives(case, kind, "torch")
    assert_derivatives_near(found, exact(case, kind))
    if kind == "only padding":
        assert (found[0][1] == 0).all()


@every_case
@pytest.mark.parametrize("kind", MASKS)
def test_gradients_from_all_runs_at_once_equal_the_reference(monkeypatch, case, kind):
    """Other devices, torch.compile and transforms gather all runs."""
    for module in (blocks, factorized_rows):
        monkeypatch.setattr(module, "is_piecewise", lambda *_: False)
    mask, inputs = holed_mask(kind, T), [x.requires_grad_() for x in qkv(T, B=2)]
    found = []
    for backend in ("torch", "reference"):
        out = rows_of(case, backend, mask, inputs)
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    assert_near(*found, "rows or gradient", 1e-9)


@every_case
@every_piece_and_mask(("edges", "none"))
def test_half_precision_has_the_gradients_of_the_reference(piece, exact, case, kind):
    inputs = [x.bfloat16().requires_grad_() for x in qkv(T, B=2)]
    out = rows_of(case, "torch", holed_mask(kind, T), inputs)
    assert "_PieceSoftmax" in names_of_graph(out.grad_fn)
    for x, y in zip(plain_gradients(out, inputs), exact(case, kind)[1], strict=True):
        assert x.dtype == torch.bfloat16
        assert_near(x.double(), y, "gradient", 2 * TOLERANCE[torch.bfloat16])


@every_piece
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_empty_rows_are_zero_and_have_no_gradient(piece, dtype):
    """Here masked values are not zero, as they are where a mechanism is called."""
    mask = holed_mask("only padding", T)
    inputs = [x.to(dtype).requires_grad_() for x in qkv(T, B=2)]
    out = blocks.pattern_attention(Inputs(*inputs, mask), Window(20))
    empty = torch.zeros(2, T, dtype=torch.bool)
    empty[0, 120:170] = empty[1] = True
    assert (out.transpose(1, 2)[empty] == 0).all()
    gradients = torch.autograd.grad(out.sum(), inputs)
    for x in gradients:
        assert x.isfinite().all()
        assert (x.transpose(1, 2)[empty] == 0).all()
    for x in gradients[1:]:
        assert (x.transpose(1, 2)[~mask] == 0).all()


@every_piece
@pytest.mark.parametrize("kind", ["runs", "columns", "causal columns"])
def test_pieces_hold_every_block_once(piece, kind):
    sizes = fit_layout(Window(40, dilation=3).layout, T)
    if kind == "runs":
        keys = RunSet(torch.ones(1, 1, dtype=torch.bool), sizes)
    else:
        keys = ColumnSet(240, 40, slice(30, 35), kind != "columns")
    x = torch.zeros(2, 3, keys.length, 1)
    for own in keys.pieces(x):
        own.view(x).add_(1)
    assert (x == 1).all()


@pytest.mark.parametrize("case", ["local", "dilated", "global", "two_sets", "columns"])
def test_gathered_keys_are_not_saved(case):
    name, options = CASES[case]
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    _, saved = run_and_count_saved(build(name, backend="torch", **options), *inputs)
    # q, k, v, rows, padded to blocks, and small masks; a run is three blocks long.
    assert saved < 7 * inputs[0].nbytes


def test_recomputed_activations_have_the_same_gradients():
    attention = build("local", window=40, backend="torch")
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    expected = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
    out = checkpoint(attention, *inputs, use_reentrant=False)
    assert_near(torch.autograd.grad(out.square().sum(), inputs), expected, "gradient")


def test_dropout_bias_transforms_and_few_rows_gather_all_runs():
    q, k, v = (x.requires_grad_() for x in qkv(T, B=2))
    few, dropped = (build("local", window=40, backend="torch") for _ in range(2))
    dropped.weight_dropout = 0.5
    bias = torch.zeros(1, 1, T, T, dtype=torch.float64)
    short = [x[:, :, :20] for x in (q, k, v)]
    for out in (few(*short), dropped(q, k, v), few(q, k, v, bias=bias)):
        assert "_PieceSoftmax" not in names_of_graph(out.grad_fn)
    assert_near(torch.func.vmap(few)(*(x[None] for x in (q, k, v)))[0], few(q, k, v), "vmap")
    tangent = torch.func.jvp(lambda q: few(q, k, v), (q.detach(),), (torch.ones_like(q),))[1]
    assert tangent.isfinite().all()
