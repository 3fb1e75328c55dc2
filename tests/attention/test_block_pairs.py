"""Softmax of blocks over their blocks of two tensors, piece by piece."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    all_derivatives,
    assert_derivatives_near,
    assert_near,
    holed_mask,
    qkv,
    run_and_count_saved,
)
from test_fused import names_of_graph

from longspan import build
from longspan.attention.ops import block_pairs
from longspan.attention.ops.block_pairs import pair_softmax

T = 230
CASES = {"full": {}, "causal": {"causal": True}, "whole blocks": {"block": 46}}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(params=[1, 500, 1 << 14], ids=["blocks", "rows", "whole"])
def piece(request, monkeypatch):
    """Set the size of pieces: one block, some blocks, or the whole batch."""
    monkeypatch.setattr(block_pairs, "PIECE", request.param)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def sinkhorn(case, backend="torch"):
    """Return sinkhorn attention with blocks that the fused kernel computes."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": T}
    return build("sinkhorn", backend=backend, **sizes, **{"block": 40} | CASES[case])


def derivatives(case, mask, backend, dtype=torch.float64):
    """Return rows, gradients and second derivatives."""
    inputs = [x.to(dtype).requires_grad_() for x in qkv(T, B=2)]
    out = sinkhorn(case, backend)(*inputs, mask)
    if backend == "torch" and dtype == torch.float64:
        assert "_PieceSoftmax" in names_of_graph(out.grad_fn)
    return out, *all_derivatives(out, inputs)


@every_case
@pytest.mark.parametrize("kind", ["none", "ragged", "only padding"])
def test_all_derivatives_equal_the_reference(piece, case, kind):
    mask = holed_mask(kind, T)
    found, expected = (derivatives(case, mask, backend) for backend in ("torch", "reference"))
    assert_derivatives_near(found, expected)


@every_case
@pytest.mark.parametrize("kind", ["none", "ragged"])
def test_half_precision_is_that_of_the_reference(piece, case, kind):
    """Pieces are for passes without gradients, since half precision keeps the weights for them."""
    mask, inputs = holed_mask(kind, T), [x.bfloat16() for x in qkv(T, B=2)]
    expected, *others = derivatives(case, mask, "reference")
    assert_near(sinkhorn(case)(*inputs, mask).double(), expected, "rows", TOLERANCE[torch.bfloat16])
    found = derivatives(case, mask, "torch", torch.bfloat16)[1]
    for x, y in zip(found, others[0], strict=True):
        assert x.dtype == torch.bfloat16
        assert (x.double() - y).norm() <= 0.03 * y.norm()


def test_empty_rows_are_zero_and_have_no_gradient(piece):
    """Here masked values are not zero, as they are where a mechanism is called."""
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


def test_joined_blocks_are_not_saved():
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    _, saved = run_and_count_saved(sinkhorn("full"), *inputs)
    # q, k, v padded to blocks, sorted keys and values, rows; small matrices and masks.
    assert saved < 10 * inputs[0].nbytes


def test_transforms_join_all_blocks():
    attention, inputs = sinkhorn("full"), qkv(T, B=2)
    assert_near(torch.func.vmap(attention)(*(x[None] for x in inputs))[0], attention(*inputs), "")
    tangent = torch.func.jvp(attention, tuple(inputs), tuple(qkv(T, B=2, seed=3)))[1]
    assert tangent.isfinite().all()
