"""Parts of a softmax: each has a log weight, and their merge is the full softmax."""

import pytest
import torch
from contract import TOLERANCE, assert_near, qkv

from longspan.attention.ops.softmax import merge_parts, softmax_part, softmax_reference


def reference_part(q, k, v, mask):
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    return softmax_reference(q, k, v, mask), scores.logsumexp(-1, keepdim=True)


def masks(T, S):
    g = torch.Generator().manual_seed(T)
    some = torch.rand(3, 1, T, S, generator=g) < 0.5
    some[..., 0] = True
    return {"all": None, "some": some, "keys": some[:, :, :1]}


@pytest.mark.parametrize("kind", ["all", "some", "keys"])
def test_output_and_log_weight_equal_formula_with_gradients(kind):
    q, k, v = (x.requires_grad_() for x in qkv(9, 13, E=5))
    mask = masks(9, 13)[kind]
    all_pairs = torch.ones(9, 13, dtype=torch.bool)
    found, expected = (
        softmax_part(q, k, v, mask),
        reference_part(q, k, v, all_pairs if mask is None else mask),
    )
    weights = [torch.randn_like(x) for x in expected]
    assert_near(found, expected, kind)
    gradients = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(y, weights, strict=True)), (q, k, v))
        for y in (found, expected)
    ]
    assert_near(*gradients, f"{kind}, gradient")


def test_shared_keys_accumulate_gradients():
    q, k, v = qkv(9, 13)
    k, v = (x[:1, :1].requires_grad_() for x in (k, v))
    all_pairs = torch.ones(9, 13, dtype=torch.bool)
    for a, b in zip(
        torch.autograd.grad(sum(x.sum() for x in softmax_part(q, k, v, None)), (k, v)),
        torch.autograd.grad(sum(x.sum() for x in reference_part(q, k, v, all_pairs)), (k, v)),
        strict=True,
    ):
        assert_near(a, b, "gradient")


def test_row_without_keys_is_zero_with_zero_weight():
    q, k, v = (x.requires_grad_() for x in qkv(9, 13))
    mask = torch.ones(9, 13, dtype=torch.bool)
    mask[4] = False
    for keys, allowed in ((13, mask), (0, None)):
        out, log = softmax_part(q, k[:, :, :keys], v[:, :, :keys], allowed)
        assert not out[:, :, 4].any()
        assert (log[:, :, 4] == -torch.inf).all()
        (found,) = torch.autograd.grad(
            merge_parts([(out, log)])[:, :, 4].sum(), q, allow_unused=True
        )
        assert found is None or not found.any()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("size", [1, 30])
def test_disjoint_parts_merge_to_full_softmax(dtype, size):
    q, k, v = qkv(20, 30, dtype=dtype)
    q = size * q
    mask = torch.rand(20, 30, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[:, :12] &= torch.arange(20)[:, None] > 3
    cuts = (slice(0, 12), slice(12, 13), slice(13, 30))
    out = merge_parts([softmax_part(q, k[:, :, c], v[:, :, c], mask[:, c]) for c in cuts])
    assert out.dtype == dtype
    expected = softmax_reference(q.double(), k.double(), v.double(), mask)
    assert_near(out.double(), expected, "merged", TOLERANCE[dtype] * (1 if size == 1 else 4))


def test_second_derivatives_of_merged_parts_equal_full_softmax():
    inputs = [x.requires_grad_() for x in qkv(20, 30)]
    mask = torch.rand(20, 30, generator=torch.Generator().manual_seed(0)) < 0.6

    def merged(q, k, v):
        cuts = (slice(0, 12), slice(12, 30))
        return merge_parts([softmax_part(q, k[:, :, c], v[:, :, c], mask[:, c]) for c in cuts])

    def second_derivatives(function):
        out = function(*inputs).pow(3).sum()
        first = torch.autograd.grad(out, inputs, create_graph=True)
        return torch.autograd.grad(sum(x.sin().sum() for x in first), inputs)

    expected = second_derivatives(lambda *x: softmax_reference(*x, mask))
    assert_near(second_derivatives(merged), expected, "second derivative")
