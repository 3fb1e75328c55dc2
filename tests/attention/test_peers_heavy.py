"""Parity with libraries that have many dependencies: `pip install longspan[peers]`, `-m peers`."""

import pytest
import torch
from contract import assert_near, full_and_causal, qkv

from longspan import build

pytestmark = pytest.mark.peers
FLOAT32_TOLERANCE = 2e-5


def import_library(name):
    reason = f"{name} is not installed; install longspan[peers]"
    return pytest.importorskip(name, reason=reason)


@full_and_causal
@pytest.mark.parametrize("flash", [False, True])
def test_full_equals_x_transformers(causal, flash):
    theirs = import_library("x_transformers.attend").Attend(causal=causal, flash=flash)
    inputs = qkv(50, dtype=torch.float32)
    expected = theirs(*inputs)[0]
    assert_near(build("full", causal=causal)(*inputs), expected, "output", FLOAT32_TOLERANCE)


@full_and_causal
def test_linear_equals_fast_transformers(causal):
    attention = import_library("fast_transformers.attention")
    masking = import_library("fast_transformers.masking")
    T, lengths = 70, torch.tensor([70, 41, 3])
    real = torch.arange(T) < lengths[:, None]
    inputs = qkv(T, dtype=torch.float32)
    kind = attention.CausalLinearAttention if causal else attention.LinearAttention
    mask = masking.TriangularCausalMask(T) if causal else masking.FullMask(T)
    lengths = masking.LengthMask(lengths, max_len=T)
    theirs = kind(8)(*(x.transpose(1, 2) for x in inputs), mask, lengths, lengths)
    ours = build("linear", causal=causal)(*inputs, real)
    # The library adds 1e-6 to the denominator.
    assert_near(ours.movedim(1, 2)[real], theirs[real], "output", FLOAT32_TOLERANCE)


def performer_pair(H=3, D=16, features=256, causal=False, feature_map="softmax"):
    theirs = import_library("performer_pytorch").FastAttention(
        dim_heads=D,
        nb_features=features,
        causal=causal,
        generalized_attention=feature_map == "relu",
    )
    ours = build(
        "performer", heads=H, head_dim=D, features=features, causal=causal, feature_map=feature_map
    )
    ours.projection.copy_(theirs.projection_matrix.expand(H, -1, -1))
    return theirs, ours


@full_and_causal
def test_generalized_attention_equals_performer_pytorch(causal):
    theirs, ours = performer_pair(causal=causal, feature_map="relu")
    inputs = qkv(60, D=16, dtype=torch.float32)
    assert_near(ours(*inputs), theirs(*inputs), "output", FLOAT32_TOLERANCE)


def test_softmax_features_equal_performer_pytorch_up_to_epsilon():
    """The library adds 1e-4 to each feature, which bounds the agreement."""
    theirs, ours = performer_pair()
    q, k, v = qkv(60, D=16, dtype=torch.float32)
    q, k = 0.3 * q, 0.3 * k
    distance = (ours(q, k, v) - theirs(q, k, v)).abs().max()
    exact = (ours(q, k, v) - build("full")(q, k, v)).abs().max()
    assert distance < 1e-3
    assert distance < exact / 20


def test_softmax_error_is_similar_to_performer_pytorch():
    q, k, v = qkv(60, D=16, dtype=torch.float32)
    q, k = 0.3 * q, 0.3 * k
    exact, errors = build("full")(q, k, v), []
    for seed in range(20):
        torch.manual_seed(seed)
        theirs, ours = performer_pair()
        ours.redraw(seed)
        errors.append([(f(q, k, v) - exact).square().mean().sqrt() for f in (theirs, ours)])
    theirs, ours = torch.tensor(errors).mean(0)
    assert 0.7 < ours / theirs < 1.2


def test_performer_pytorch_leaks_the_future():
    theirs, ours = performer_pair(causal=True)
    q, k, v = qkv(60, D=16, dtype=torch.float32)
    large = k.clone()
    large[:, :, -1] *= 12
    leaks = [(f(q, large, v) - f(q, k, v))[:, :, :-1].abs().max() for f in (theirs, ours)]
    assert leaks[0] > 0.1, "the library is fixed: delete this test and its line in the docs"
    assert leaks[1] < 1e-6


@pytest.mark.parametrize("hashes", [1, 2, 4])
def test_reformer_equals_reformer_pytorch(hashes):
    """With wrap=True and the directions of the library, which all heads share."""
    T, bucket, (u, _, v) = 64, 8, qkv(64)
    theirs = import_library("reformer_pytorch").LSHAttention(bucket_size=bucket, n_hashes=hashes)
    sizes = {"heads": 3, "head_dim": 8, "max_length": T}
    options = {"chunk": bucket, "hashes": hashes, "buckets": T // bucket, "wrap": True}
    ours = build("reformer", **sizes, **options).double()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        directions = torch.randn(1, 8, hashes, T // bucket // 2, dtype=torch.float64)
        torch.manual_seed(5)
        expected = theirs(u.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)
    ours.hash.rotations.copy_(directions.expand(3, -1, -1, -1))
    # Keys are u / |u| in the library and u / sqrt(|u|^2 + D 1e-6) here.
    assert_near(ours(u, u, v), expected, "output", 1e-5)
    assert not torch.allclose(build("reformer", **sizes, **options)(u, u, v), expected, atol=1e-2)
