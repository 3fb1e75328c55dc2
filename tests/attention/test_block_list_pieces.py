"""Softmax over lists of blocks, piece by piece: derivatives, and what is saved."""

import pytest
import torch
from contract import TOLERANCE, assert_near, both_derivatives, qkv, run_and_count_saved
from test_fused import names_of_graph

from longspan import build
from longspan.attention.ops import block_lists

T = 300
BIGBIRD = {"heads": 3, "max_length": T, "block": 32, "num_random_blocks": 2}
CASES = {
    "ends": BIGBIRD,
    "etc": {**BIGBIRD, "form": "etc", "global_tokens": 5},
    "causal": {**BIGBIRD, "causal": True},
    "causal first": {**BIGBIRD, "causal": True, "global_blocks": "first"},
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(params=[1, 200, 1 << 14], ids=["blocks", "some", "whole"])
def piece(request, monkeypatch):
    """Set the size of pieces: one block, blocks of more than one head, or the whole batch."""
    monkeypatch.setattr(block_lists, "PIECE", request.param)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def key_mask(kind):
    """Return a mask of two rows, or None."""
    if kind == "none":
        return None
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[0, 5:9], mask[0, 70:90], mask[1, 230:] = False, False, False
    mask[1] &= kind == "ragged"
    return mask


def derivatives(case, kind, backend, dtype=torch.float64):
    """Return rows, gradients and second derivatives."""
    inputs = [x.to(dtype).requires_grad_() for x in qkv(T, B=2)]
    out = build("bigbird", backend=backend, **CASES[case])(*inputs, key_mask=key_mask(kind))
    if backend == "torch":
        assert "_PieceSoftmax" in names_of_graph(out.grad_fn)
    if dtype != torch.float64:
        return out, *torch.autograd.grad(out.square().sum(), inputs)
    return out, *both_derivatives(out, inputs)


@every_case
@pytest.mark.parametrize("kind", ["none", "ragged", "empty row"])
def test_all_derivatives_equal_the_reference(piece, case, kind):
    found, expected = (derivatives(case, kind, backend) for backend in ("torch", "reference"))
    for x, y in zip(found, expected, strict=True):
        assert_near(x, y, "derivative", 1e-8)
    if kind == "empty row":
        assert (found[0][1] == 0).all()


@every_case
def test_half_precision_has_the_gradients_of_the_reference(piece, case):
    found = derivatives(case, "ragged", "torch", torch.bfloat16)
    for x, y in zip(found, derivatives(case, "ragged", "reference"), strict=False):
        assert x.dtype == torch.bfloat16
        assert_near(x.double(), y, "gradient", 3 * TOLERANCE[torch.bfloat16])


def test_gathered_blocks_are_not_saved():
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    _, saved = run_and_count_saved(build("bigbird", backend="torch", **CASES["etc"]), *inputs)
    # Queries, keys, values and rows, and those of the global tokens; five blocks are listed.
    assert saved < 12 * inputs[0].nbytes


def test_blocks_that_are_read_often_are_summed_in_float32(monkeypatch):
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
