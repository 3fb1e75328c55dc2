"""Nystromformer: exact in the known cases, convergent, with independent batch rows."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from contract import (
    assert_equals_reference,
    assert_near,
    check_contract,
    gradients,
    qkv,
    run_with_gradients,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fused import names_of_graph

from longspan import build
from longspan.attention import Inputs
from longspan.attention.mechanisms import nystrom as module
from longspan.attention.mechanisms.nystrom import pseudo_inverse
from longspan.attention.ops.pooling import segment_tokens


def nystrom(heads=3, landmarks=6, **options):
    return build("nystrom", heads=heads, landmarks=landmarks, **options).double()


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1},
        {"iterations": 12, "conv_kernel_size": 1},
        {"landmarks": 1},
        {"landmarks": 64},
        {"landmarks": None, "conv_kernel_size": 3},
    ],
    ids=str,
)
def test_other_options_obey_contract(options):
    torch.manual_seed(0)
    check_contract(nystrom(**options))


def test_exact_inverse_obeys_contract_for_regular_matrices():
    """Up to `landmarks` tokens A is not inverted; beyond, random A are regular.

    Rounding grows with the condition of A, and its gradient with the square.
    """
    check_contract(nystrom(iterations=None, landmarks=3), lengths=(1, 7, 9, 33), atol=1e-8)


def test_exact_inverse_is_the_moore_penrose_inverse():
    """Equal landmarks make A singular, so the pseudo-inverse is not an inverse."""
    x = torch.rand(2, 4, 7, dtype=torch.float64)
    A = torch.cat([x, x[:, 1:]], 1).softmax(-1)
    assert (torch.linalg.matrix_rank(A) == 4).all()
    Z = pseudo_inverse(A, None)
    assert_near(A @ Z @ A, A, "A Z A")
    assert_near(Z @ A @ Z, Z, "Z A Z")
    assert_near((A @ Z).mT, A @ Z, "A Z is symmetric")
    assert_near((Z @ A).mT, Z @ A, "Z A is symmetric")


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 9), st.integers(0, 99))
def test_segments_divide_real_tokens_evenly_and_in_order(count, landmarks, holes, seed):
    real = torch.cat([torch.ones(count), torch.zeros(holes)]).bool()
    real = real[torch.randperm(count + holes, generator=torch.Generator().manual_seed(seed))]
    index, used = segment_tokens(real[None], landmarks)
    found = index[0][real].tolist()
    sizes = [found.count(i) for i in range(landmarks)]
    L = min(landmarks, count)
    assert found == sorted(found)
    assert (index[0][~real] == landmarks).all()
    assert used[0].tolist() == [i < L for i in range(landmarks)]
    assert sum(sizes) == count
    assert sizes[:L] == sorted(sizes[:L])
    assert L == 0 or max(sizes[:L]) - min(sizes[:L]) <= 1


@pytest.mark.parametrize("T", [12, 18, 25, 40])
def test_exact_if_queries_and_keys_are_constant_in_each_segment(T):
    """F A^+ B equals softmax(QK^T) if its rows and columns repeat those of the landmarks."""
    q, k, v = qkv(T)
    index, _ = segment_tokens(torch.ones(1, T, dtype=torch.bool), 6)
    q, k = (x[:, :, index[0]] for x in (q, k))
    out = nystrom(iterations=None)(q, k, v)
    assert_near(out, build("full")(q, k, v), "output", 1e-8)


@pytest.mark.parametrize("T", [1, 5, 6])
def test_exact_with_as_many_landmarks_as_tokens(T):
    inputs = qkv(T)
    for iterations in (1, 6, None):
        out = nystrom(iterations=iterations)(*inputs)
        assert_near(out, build("full")(*inputs), f"iterations {iterations}")


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_exact_inverse_is_stable_in_float32(size):
    """Landmarks of random tokens make A nearly singular."""
    q, k, v = qkv(300, D=32, dtype=torch.float32)
    attention = build("nystrom", heads=3, landmarks=32, iterations=None)
    expected = run_with_gradients(attention, (size * q, size * k, v))
    near = size * q * (1 + 1e-6), size * k * (1 - 1e-6), v
    found = run_with_gradients(attention, near)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= 0.02 * y.norm()


def test_iteration_converges_to_the_inverse():
    # Six distant clusters of tokens give a well-conditioned A.
    x, noise, v = 1.5 * qkv(6)[0].repeat_interleave(10, 2), qkv(60)[1], qkv(60)[2]
    x = x + 0.05 * noise
    exact = nystrom(iterations=None)(x, x, v)
    errors = [(nystrom(iterations=n)(x, x, v) - exact).abs().max() for n in (1, 2, 3, 4, 12)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-2
    assert errors[-1] < 1e-10
    A = torch.rand(2, 3, 7, 7, dtype=torch.float64).softmax(-1) + 0.2 * torch.eye(7)
    assert_near(pseudo_inverse(A, 40) @ A, torch.eye(7).double().expand_as(A), "inverse", 1e-8)


@pytest.mark.parametrize("iterations", [1, 3])
def test_iteration_equals_equation_14(iterations):
    A = torch.rand(2, 3, 5, 5, dtype=torch.float64).softmax(-1)
    Z = torch.stack([a.T / (a.sum(0).max() * a.sum(1).max()) for a in A.flatten(0, 1)])
    for _ in range(iterations):
        AZ = A.flatten(0, 1) @ Z
        Z = Z @ (13 * torch.eye(5) - 15 * AZ + 7 * AZ @ AZ - AZ @ AZ @ AZ) / 4
    assert_near(pseudo_inverse(A, iterations), Z.view_as(A), "Z")


def test_derivatives_of_the_iteration_are_those_of_its_operations(monkeypatch):
    """torch.compile and transforms run it as separate operations."""
    A, found = torch.rand(2, 3, 5, 5, dtype=torch.float64).softmax(-1).requires_grad_(), []
    for separate in (False, True):
        monkeypatch.setattr(module, "has_transforms", [lambda: False, lambda: True][separate])
        Z = pseudo_inverse(A, 3)
        assert ("_IterateBackward" in names_of_graph(Z.grad_fn)) != separate
        (plain,) = torch.autograd.grad(Z.sin().sum(), A, retain_graph=True)
        (first,) = torch.autograd.grad(Z.sin().sum(), A, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), A)
        found.append((Z, plain, first, second))
    assert_near(*found, "inverse or derivative", 1e-9)


def test_error_to_softmax_falls_with_landmarks():
    time = torch.arange(96, dtype=torch.float64)[:, None] / 96
    waves = torch.cos(torch.pi * time * torch.arange(1, 5))
    q, k, v = (waves @ x for x in qkv(4))
    full = build("full")(q, k, v)
    errors = [
        (nystrom(landmarks=n, iterations=None)(q, k, v) - full).square().mean().sqrt()
        for n in (4, 8, 16, 32)
    ]
    assert all(following < error / 2 for error, following in pairwise(errors))
    assert errors[-1] < 0.01


@pytest.mark.parametrize("iterations", [1, 6, 30, None])
def test_unused_landmarks_have_no_influence(iterations):
    """Padded batches with fewer real tokens than landmarks, as many, and more."""
    attention = nystrom(landmarks=16, iterations=iterations)
    q, k, v = qkv(50)
    for real in (1, 8, 16, 17, 20):
        mask = (torch.arange(50) < real).expand(3, -1)
        alone = attention(*(x[:, :, :real] for x in (q, k, v)))
        assert_near(attention(q, k, v, mask)[:, :, :real], alone, f"{real} real", 1e-9)


@pytest.mark.parametrize("iterations", [6, 200, None])
def test_unused_landmarks_keep_gradients_finite(iterations):
    """The matrix of unused landmarks is singular."""
    attention = build("nystrom", heads=3, landmarks=16, iterations=iterations)
    inputs = [x.requires_grad_() for x in qkv(40, dtype=torch.float32)]
    mask = torch.arange(40) < torch.tensor([5, 1, 0])[:, None]
    found = gradients(attention(*inputs, mask), inputs, attention)
    assert all(x.isfinite().all() for x in found)


def test_half_precision_is_inverted_in_float32():
    inputs = qkv(60, dtype=torch.bfloat16)
    out = build("nystrom", heads=3, landmarks=16, iterations=20)(*inputs)
    exact = build("nystrom", heads=3, landmarks=16, iterations=20)(*(x.double() for x in inputs))
    assert_near(out.double(), exact, "output", 1e-2)


def transformers_attention(heads, landmarks, length):
    """Return transformers' attention and its projections, in float64."""
    module = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    config = module.NystromformerConfig(
        hidden_size=8 * heads,
        num_attention_heads=heads,
        num_landmarks=landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=5,
    )
    return module.NystromformerSelfAttention(config).double().eval()


@pytest.mark.parametrize("landmarks", [6, None], ids=["landmarks", "exact"])
def test_options_of_transformers_reproduce_its_batches_with_padding(landmarks):
    T, heads = 24, 3
    torch.manual_seed(0)
    theirs = transformers_attention(heads, landmarks or T, T)
    ours = nystrom(
        landmarks=landmarks, conv_kernel_size=5, reads_padding=True, inverse_scale="batch"
    )
    x = 3 * torch.randn(2, T, 8 * heads, dtype=torch.float64)
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[1, T // 2 :] = False
    bias = torch.zeros(2, 1, 1, T, dtype=torch.float64).masked_fill(~mask[:, None, None], -1e300)
    with torch.no_grad():
        ours.conv.weight.copy_(theirs.conv.weight[..., 0])
        projections = (theirs.query, theirs.key, theirs.value)
        q, k, v = (to(x).unflatten(-1, (heads, 8)).transpose(1, 2) for to in projections)
        out, expected = ours(q, k, v, mask), theirs(x, bias)[0]
    assert_near(out.transpose(1, 2).flatten(2), expected, "output", 1e-9)
    assert_near(ours.reference(Inputs(q, k, v, mask)), out, "reference", 1e-9)


@pytest.mark.parametrize("reads_padding", [False, True])
def test_scale_of_the_batch_is_that_of_its_ragged_rows(reads_padding):
    attention = nystrom(inverse_scale="batch", reads_padding=reads_padding, iterations=2)
    q, k, v = qkv(33, B=4)
    q[1] = q[1, 0]  # equal queries of a short row would have the largest norm
    mask = torch.arange(33) < torch.tensor([33, 5, 0, 20])[:, None]
    out = attention(q, k, v, mask)
    if not reads_padding:
        q, k, v = (x * mask[:, None, :, None] for x in (q, k, v))
    assert_near(out, attention.reference(Inputs(q, k, v, mask)), "output")
    alone = [attention(*(x[b:][:1] for x in (q, k, v, mask))) for b in (0, 3)]
    equal = [torch.allclose(x[0], out[b], atol=1e-6) for x, b in zip(alone, (0, 3), strict=True)]
    assert not all(equal)


def test_gradients_of_short_rows_do_not_depend_on_the_scale_of_the_batch():
    """A key that all queries prefer gives a norm above that of rows with equal weights."""
    q, k, v = qkv(33, B=2)
    q[0], q[1], k[1, :, 2] = 0.01 * q[0], q[1].abs(), 20
    mask = torch.arange(33) < torch.tensor([33, 5])[:, None]
    attention = nystrom(inverse_scale="batch")
    assert_equals_reference(attention, [q, k, v], "a preferred key", mask=mask)


def test_exact_option_is_softmax_attention_at_every_length():
    q, k, v = qkv(33)
    exact = F.scaled_dot_product_attention(q, k, v)
    assert_near(nystrom(landmarks=None)(q, k, v), exact, "output")
