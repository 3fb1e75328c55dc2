"""Fused softmax of blocks on CPU, and the gathering of global tokens, against plain formulas."""

import pytest
import torch
from contract import assert_near, qkv
from test_contract_traits import Allocations
from torch.utils.checkpoint import checkpoint

from longspan.attention import build
from longspan.attention.ops import softmax
from longspan.attention.ops.fused import softmax_gradients
from longspan.attention.ops.global_tokens import GlobalTokens
from longspan.attention.ops.softmax import softmax_attention, softmax_reference

SHAPES = {"rows": (2, 3), "blocks": (2, 3, 4)}
MASKS = {"rows": [(1, 1), (2, 1), (2, 3)], "blocks": [(1, 1, 4), (2, 1, 4), (2, 3, 1)]}
CASES = [(form, lead) for form, leads in MASKS.items() for lead in leads]
every_mask = pytest.mark.parametrize(("form", "lead"), CASES)


def blocks(form, rows=40, keys=56, width=8, dtype=torch.float64):
    """Return random q, k and v with leading dimensions of a form."""
    generator = torch.Generator().manual_seed(0)
    sizes = (rows, keys, keys)
    return [
        torch.randn(*SHAPES[form], size, width, generator=generator, dtype=dtype).requires_grad_()
        for size in sizes
    ]


def some_keys(lead, rows=40, keys=56):
    """Return a random mask that hides all keys from one query."""
    mask = torch.rand(*lead, rows, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 3, :] = False
    return mask


@pytest.fixture
def fused(monkeypatch):
    """Return the list of calls of the fused kernel."""
    calls, run = [], softmax.fused_attention
    monkeypatch.setattr(
        softmax,
        "fused_attention",
        lambda *inputs, **more: calls.append(inputs) or run(*inputs, **more),
    )
    return calls


@every_mask
def test_fused_blocks_equal_the_formula(fused, form, lead):
    inputs, mask = blocks(form), some_keys(lead)
    actual, expected = softmax_attention(*inputs, mask), softmax_reference(*inputs, mask)
    assert fused
    assert_near(actual, expected, "rows")
    weight = torch.rand_like(expected)
    gradients = torch.autograd.grad((expected * weight).sum(), inputs)
    assert_near(torch.autograd.grad((actual * weight).sum(), inputs), gradients, "gradient")
    assert (actual[..., 3, :] == 0).all()


def test_fused_blocks_without_a_mask_equal_the_formula(fused):
    for form in SHAPES:
        inputs = blocks(form)
        everything = torch.ones(40, 56, dtype=torch.bool)
        assert_near(softmax_attention(*inputs, None), softmax_reference(*inputs, everything), form)
    assert len(fused) == len(SHAPES)


@every_mask
def test_second_derivatives_equal_the_formula(form, lead):
    mask = some_keys(lead)

    def second(attend):
        q, k, v = blocks(form)
        # Values depend on the queries, as those of Nystromformer's second product do.
        out = attend(q, k, v + q.mean(-2, keepdim=True).tanh(), mask)
        first = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), (q, k, v))

    assert_near(second(softmax_attention), second(softmax_reference), "second derivative", 1e-8)


def test_dropout_a_bias_and_few_rows_are_not_fused(fused):
    inputs, mask = blocks("rows"), some_keys((1, 1))
    dropped = softmax_attention(*inputs, mask, dropout=0.5)
    softmax_attention(*inputs, mask, torch.zeros(40, 56, dtype=torch.float64))
    softmax_attention(*blocks("rows", rows=8), some_keys((1, 1), rows=8))
    assert not fused
    assert not torch.allclose(dropped, softmax_attention(*inputs, mask))


def test_half_precision_is_fused_without_gradients_only(fused):
    inputs = [x.detach() for x in blocks("rows", dtype=torch.bfloat16)]
    softmax_attention(*inputs, some_keys((1, 1)))
    assert len(fused) == 1
    softmax_attention(*(x.requires_grad_() for x in inputs), some_keys((1, 1)))
    assert len(fused) == 1


def test_weights_are_never_stored():
    attention, inputs = build("local", window=64, backend="torch"), qkv(1024, B=1, D=16)
    with Allocations() as forward:
        out = attention(*(x.requires_grad_() for x in inputs))
    with Allocations() as backward:
        out.sum().backward()
    weights = 3 * 1024 * (2 * 64 + 64) * inputs[0].itemsize
    assert max(forward.largest, backward.largest) < weights / 2


def test_recomputed_activations_keep_no_inner_graph():
    q, k, v = blocks("rows")
    mask = some_keys((1, 1))
    out = checkpoint(softmax_attention, q, k, v, mask, use_reentrant=False)
    expected = torch.autograd.grad(softmax_attention(q, k, v, mask).sum(), (q, k, v))
    node = out.grad_fn
    assert node.name() == "_FusedBackward"
    assert node.graph is None
    assert_near(torch.autograd.grad(out.sum(), (q, k, v)), expected, "gradient")


def names_of_graph(node):
    """Return the names of all functions of a graph, joined."""
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [other for other, _ in node.next_functions]
    return " ".join(node.name() for node in seen)


def tokens():
    """Return two rows with two and one global tokens."""
    is_global = torch.zeros(2, 7, dtype=torch.bool)
    is_global[0, [1, 4]] = is_global[1, 5] = True
    generator = torch.Generator().manual_seed(2)
    x, rows = (
        torch.randn(2, 3, size, 4, generator=generator, dtype=torch.float64) for size in (7, 2)
    )
    # Heads of a projection lie in one row of memory.
    x = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    return GlobalTokens(is_global, 2, x, x, None), x, rows.requires_grad_()


def test_gathered_tokens_have_all_derivatives():
    chosen, x, _ = tokens()
    expected = x[[[0], [1]], :, chosen.index].transpose(1, 2)
    assert_near(chosen.gather(x), expected, "rows")
    assert torch.autograd.gradcheck(chosen.gather, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(chosen.gather, x)
    assert_near(torch.func.vmap(chosen.gather)(x[None].expand(3, *x.shape))[2], expected, "vmap")


def test_replaced_rows_have_all_derivatives():
    chosen, x, rows = tokens()
    out, expected = chosen.scatter_rows(rows, x), x.detach().clone()
    expected[0, :, 1], expected[0, :, 4], expected[1, :, 5] = (
        rows[0, :, 0],
        rows[0, :, 1],
        rows[1, :, 0],
    )
    assert_near(out, expected, "rows")

    def put(rows, x):
        return chosen.scatter_rows(rows, x)

    assert torch.autograd.gradcheck(put, (rows, x), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(put, (rows, x))
    many = rows[None] * torch.arange(1, 4).view(3, 1, 1, 1, 1)
    assert_near(torch.func.vmap(put, (0, None))(many, x)[0], out, "vmap")


def test_gradients_of_partial_keys_have_the_precision_of_their_dtype():
    """Weights are a part of a row, whose log weight bfloat16 would round by 0.03."""
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(1, 1, n, 8, dtype=torch.float64) for n in (32, 4204, 4204, 32))
    q, k = 0.1 * q, 0.1 * k
    scores = q @ k.mT
    weights, log = scores.softmax(-1), scores.logsumexp(-1)
    out = weights @ v
    by_score = weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))
    expected = by_score @ k, by_score.mT @ q, weights.mT @ grad
    narrow = [x.bfloat16() for x in (grad, q, k, v, out)]
    own_logs = [x.logsumexp(-1).float() for x in scores.split(2102, 3)]
    parts = [
        softmax_gradients(*narrow[:2], *own, None, narrow[4], log.float(), 1.0, own_log)
        for *own, own_log in zip(*(x.split(2102, 2) for x in narrow[2:4]), own_logs, strict=True)
    ]
    queries, keys, values = zip(*parts, strict=True)
    found = sum(queries), torch.cat(keys, 2), torch.cat(values, 2)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= 0.01 * y.norm()
