"""Performer: random features are unbiased, orthogonal, in range and drawn on request only."""

import math

import pytest
import torch
from contract import assert_near, check_contract, full_and_causal, gradients, qkv, reference_copy

from flop_counter import flop_counter
from longspan import build
from longspan.attention.mechanisms.performer import random_rows


def performer(features=64, head_dim=16, heads=3, **options):
    return build("performer", heads=heads, head_dim=head_dim, features=features, **options)


MAPS = ["softmax", "hyperbolic", "trigonometric", "relu"]
UNBIASED = MAPS[:3]
every_map = pytest.mark.parametrize("feature_map", MAPS)


def published_features(attention, x):
    """Compute features by the published formulas, (B, H, T, M)."""
    x = x / x.shape[-1] ** 0.25
    rows = attention.projection.to(x.dtype)
    p = torch.einsum("hmd,bhtd->bhtm", rows, x)
    half = x.square().sum(-1, keepdim=True) / 2
    feature_maps = {
        "softmax": lambda: (p - half).exp() / math.sqrt(p.shape[-1]),
        "hyperbolic": lambda: (
            torch.cat([p.exp(), (-p).exp()], -1) * (-half).exp() / math.sqrt(2 * p.shape[-1])
        ),
        "trigonometric": lambda: (
            torch.cat([p.sin(), p.cos()], -1) * half.exp() / math.sqrt(p.shape[-1])
        ),
        "relu": lambda: p.relu() + 1e-3,
    }
    return feature_maps[attention.feature_map]()


@full_and_causal
@every_map
def test_equals_published_formula(feature_map, causal):
    attention = performer(feature_map=feature_map, causal=causal, features=256).double()
    for T in (1, 64, 150):
        q, k, v = qkv(T, D=16)
        # With larger norms, trigonometric weights cancel.
        q, k = 0.3 * q, 0.3 * k
        weights = published_features(attention, q) @ published_features(attention, k).mT
        weights = weights.tril() if causal else weights
        expected = weights @ v / weights.sum(-1, keepdim=True)
        assert_near(attention(q, k, v), expected, f"T={T}", 1e-9)
        attention.backend = "reference"
        assert_near(attention(q, k, v), expected, f"reference, T={T}", 1e-9)
        attention.backend = "torch"


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [{"feature_map": feature_map} for feature_map in MAPS[1:]]
    + [{"feature_map": "relu", "features": None}, {"orthogonal": False}, {"norms": "sqrt_d"}],
    ids=str,
)
def test_other_options_obey_contract(options, causal):
    check_contract(performer(head_dim=8, causal=causal, **{"features": 14, **options}).double())


def estimate_kernel(attention, q, k):
    """Return the estimate of the kernel of each pair (q_t, k_t) from each row, (T, rows)."""
    products = published_features(attention, q) * published_features(attention, k)
    if attention.feature_map in MAPS[1:3]:
        products = products.unflatten(-1, (2, -1)).sum(-2)
    return products[0, 0] * products.shape[-1]


@pytest.mark.parametrize("orthogonal", [True, False], ids=["orthogonal", "iid"])
@pytest.mark.parametrize("mean", [0.3, -0.3])
@pytest.mark.parametrize("feature_map", UNBIASED)
def test_kernel_estimate_is_unbiased(feature_map, mean, orthogonal):
    """A nonzero mean reveals biased directions, such as QR without sign correction."""
    g = torch.Generator().manual_seed(0)
    q, k = (mean + 0.1 * torch.randn(1, 1, 4, 16, generator=g, dtype=torch.float64) for _ in "qk")
    options = {"feature_map": feature_map, "orthogonal": orthogonal, "heads": 1}
    attention = performer(
        features=2000 * 16 * (1 if feature_map == "softmax" else 2), **options
    ).double()
    # Blocks of orthogonal rows are independent of each other.
    draws = estimate_kernel(attention, q, k).unflatten(-1, (2000, 16)).mean(-1)
    error = draws.mean(1) - ((q * k).sum(-1) / 4).exp().flatten()
    deviation = draws.std(1) / 2000**0.5
    assert (error.abs() < 4 * deviation).all()
    assert (deviation < 0.03).all(), "too few draws to detect a bias"


def test_rows_of_a_block_are_orthogonal_with_chi_norms():
    g = torch.Generator().manual_seed(2)
    rows = random_rows(4000, 16, g, True, "chi")
    blocks = rows.view(-1, 16, 16)
    products = blocks @ blocks.mT
    norms = blocks.square().sum(-1)
    assert (products - torch.diag_embed(norms)).abs().max() < 1e-10
    # |w|^2 is chi^2 of 16 degrees: mean 16, variance 32.
    assert (norms.mean() - 16).abs() < 4.5 * (32 / 4000) ** 0.5
    assert 24 < norms.var() < 40
    adjacent = (rows[15:-1:16] * rows[16::16]).sum(-1)
    assert adjacent.abs().max() > 1, "blocks are not independent"
    assert random_rows(5, 16, g, True, "chi").shape == (5, 16)


@pytest.mark.parametrize("orthogonal", [True, False], ids=["orthogonal", "iid"])
def test_norms_sqrt_d_are_the_root_of_the_width(orthogonal):
    g = torch.Generator().manual_seed(5)
    rows = random_rows(4000, 16, g, orthogonal, "sqrt_d")
    assert_near(rows.norm(dim=1), torch.full((4000,), 4.0).double(), "norms", 1e-12)
    # The variance of entries is one, independent of the number of rows.
    assert (rows.square().mean(0) - 1).abs().max() < 0.15
    assert rows.mean(0).abs().max() < 4.5 / 4000**0.5


def test_independent_rows_are_gaussian():
    rows = random_rows(4000, 16, torch.Generator().manual_seed(6), False, "chi")
    covariance = rows.T @ rows / 4000
    assert (covariance - torch.eye(16)).abs().max() < 5 * (2 / 4000) ** 0.5
    assert 24 < rows.square().sum(1).var() < 40
    assert (rows.view(-1, 16, 16) @ rows.view(-1, 16, 16).mT).triu(1).abs().max() > 1


def measure_errors(features, draws, **options):
    """Return root mean square errors of single draws to softmax attention, for small norms."""
    g = torch.Generator().manual_seed(3)
    q, k = (0.3 * torch.randn(1, 2, 64, 16, generator=g, dtype=torch.float64) + 0.2 for _ in "qk")
    v = torch.randn(1, 2, 64, 16, generator=g, dtype=torch.float64)
    exact, found = build("full")(q, k, v), []
    attention = performer(features=features, heads=2, **options).double()
    for seed in range(draws):
        attention.redraw(seed)
        found.append((attention(q, k, v) - exact).square().mean().sqrt())
    return torch.stack(found)


@pytest.mark.parametrize("feature_map", UNBIASED)
def test_error_falls_with_the_root_of_the_features(feature_map):
    counts = [2**n for n in (8, 11, 14)]
    errors = torch.stack([measure_errors(n, 5, feature_map=feature_map).median() for n in counts])
    slope = (errors[-1] / errors[0]).log() / math.log(counts[-1] / counts[0])
    assert -0.6 < slope < -0.4
    assert (errors[1:] < 0.5 * errors[:-1]).all()
    assert errors[-1] < 0.03


@pytest.mark.parametrize("feature_map", UNBIASED)
def test_orthogonal_rows_reduce_the_error(feature_map):
    orthogonal, iid = (
        measure_errors(32, 40, feature_map=feature_map, orthogonal=x).mean() for x in (True, False)
    )
    assert orthogonal < iid


@pytest.mark.parametrize("feature_map", ["softmax", "hyperbolic"])
@pytest.mark.parametrize("size", [1, 20, 100])
def test_large_norms_keep_their_weights(feature_map, size):
    """Compare with weights computed in log space, where nothing underflows."""
    attention = performer(features=32, feature_map=feature_map).double()
    q, k, v = qkv(50, D=16)
    q, k = size * q, size * k
    rows = attention.projection
    rows = rows if feature_map == "softmax" else torch.cat([rows, -rows], 1)
    log_q, log_k = (x @ rows.mT / 2 - x.square().sum(-1, keepdim=True) / 8 for x in (q, k))
    log_weights = (log_q[..., :, None, :] + log_k[..., None, :, :]).logsumexp(-1)
    assert_near(attention(q, k, v), log_weights.softmax(-1) @ v, "float64")
    single = attention.float()(*(x.float() for x in (q, k, v)))
    assert (single.norm(dim=-1) > 0).all()


@full_and_causal
def test_trigonometric_keys_of_any_norm_keep_their_weights(causal):
    """exp(|k|^2 / 2) overflows; weights relative to the largest do not."""
    attention = performer(features=512, feature_map="trigonometric", causal=causal).double()
    q, k, v = qkv(40, D=16)
    k = k * torch.linspace(0.1, 60, 40).double()[:, None]
    rows, x, y = attention.projection, q / 2, k / 2
    angles = (x[..., :, None, :] - y[..., None, :, :]) @ rows.mT[:, None]
    estimates, half = angles.cos().mean(-1), y.square().sum(-1) / 2
    allowed = torch.ones(40, 40).bool().tril() if causal else torch.ones(40, 40).bool()
    logs = half[..., None, :].expand_as(estimates).masked_fill(~allowed, -torch.inf)
    weights = estimates * (logs - logs.amax(-1, keepdim=True)).exp()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    safe = weights.sum(-1).abs() > 1e-3
    assert 0.9 < safe.double().mean() < 1
    out = attention(q, k, v)
    assert_near(out[safe], expected[safe], "output", 1e-8)
    assert not out[~safe].any()


@pytest.mark.parametrize("feature_map", ["softmax", "trigonometric"])
def test_keys_of_an_earlier_step_may_be_much_larger(feature_map):
    sizes = {"heads": 1, "head_dim": 16, "features": 64, "feature_map": feature_map}
    attention = build("performer", causal=True, **sizes)
    q, k, v = qkv(40, B=1, H=1, D=16, dtype=torch.float32)
    k[:, :, :20] *= 10
    first, cache = attention.step(q[:, :, :20], k[:, :, :20], v[:, :, :20])
    second, _ = attention.step(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], cache)
    assert_near(torch.cat([first, second], 2), attention(q, k, v), "output", 1e-4)


@full_and_causal
def test_weights_that_cancel_give_zero(causal):
    """Estimates of 1 and nearly -1 leave no sum of weights to divide by."""
    attention = performer(
        features=2, head_dim=2, heads=1, feature_map="trigonometric", causal=causal
    )
    attention.projection.copy_(torch.tensor([[[1.0, 0.0]]]))
    scale = 2**0.25
    for gap, zero in ((0.0, True), (0.02, True), (0.2, False)):
        angles = torch.tensor([[0.0], [math.pi - gap]])
        k = torch.cat([angles, (math.pi**2 - angles.square()).clamp(min=0).sqrt()], 1) * scale
        q, v = torch.zeros(2, 2), torch.ones(2, 1)
        inputs = [x[None, None].requires_grad_() for x in (q, k, v)]
        out = attention(*inputs)[0, 0, -1]
        assert bool(out == 0) == zero, gap
        assert zero or out.item() == pytest.approx(1)
        assert all(x.isfinite().all() for x in gradients(attention(*inputs), inputs, attention))


@pytest.mark.parametrize("feature_map", ["softmax", "hyperbolic"])
def test_leading_padding_does_not_disturb_later_keys(feature_map):
    """The first chunks contain no key, and the first real key has a very small weight."""
    attention = performer(features=32, causal=True, feature_map=feature_map)
    q, k, v = qkv(200, D=16, dtype=torch.float32)
    k[:, :, 130:140] *= 12
    mask = torch.arange(200).expand(3, -1) >= 130
    out = attention(q, k, v, mask).double()
    exact = reference_copy(attention).double()(q.double(), k.double(), v.double(), mask)
    assert_near(out, exact, "output", 1e-4)


@every_map
def test_features_change_only_by_redraw(feature_map):
    attention = performer(feature_map=feature_map)
    drawn = attention.projection.clone()
    for training in (True, False):
        attention.train(training)
        attention(*qkv(9, D=16, dtype=torch.float32))
        assert torch.equal(attention.projection, drawn)
    attention.redraw(5)
    assert not torch.equal(attention.projection, drawn)
    other = performer(feature_map=feature_map, seed=5)
    assert torch.equal(attention.projection, other.projection)
    assert not attention.projection.requires_grad


def test_layers_redrawn_from_one_seed_draw_different_rows():
    first, second = performer(), performer(layer=1)
    for attention in (first, second):
        attention.redraw(7)
    assert not torch.allclose(first.projection, second.projection, atol=1)


def test_without_projection_the_coordinates_are_the_features():
    """φ(x) = relu(x) + 1e-3 is the feature map of Long Range Arena."""
    attention = performer(features=None, feature_map="relu").double()
    q, k, v = qkv(30, D=16)
    weights = (q.relu() + 1e-3) @ (k.relu() + 1e-3).mT
    assert_near(attention(q, k, v), weights / weights.sum(-1, keepdim=True) @ v, "output")
    before = attention.projection.clone()
    attention.redraw(3)
    assert torch.equal(attention.projection, before)


@every_map
def test_paired_feature_map_has_half_the_rows(feature_map):
    attention = performer(features=64, feature_map=feature_map)
    assert attention.projection.shape[1] == (32 if feature_map in MAPS[1:3] else 64)
    with flop_counter() as counter:
        attention(*qkv(1024, B=1, D=16, dtype=torch.float32))
    assert 3 * attention.flops(1024, 16) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_heads_layers_and_seeds_draw_different_rows():
    drawn = [performer(layer=a, seed=b).projection for a, b in ((0, 0), (1, 0), (0, 1), (1, 1))]
    rows = torch.cat(drawn).flatten(1)
    rows = rows / rows.norm(dim=1, keepdim=True)
    assert ((rows @ rows.T).abs() - torch.eye(12)).max() < 0.3
    assert torch.equal(drawn[0], performer().projection)


def test_reset_rows_forget_the_scale_of_their_weights():
    """On the scale of the forgotten tokens, features of these large keys would underflow."""
    attention = performer(causal=True)
    _, cache = attention.step(*qkv(5, D=16))
    cache = attention.reset(cache, torch.tensor([True, False, True]))
    q, k, v = qkv(7, D=16, seed=1)
    rows = [0, 2]
    found = attention.step(q, 40 * k, v, cache)[0][rows]
    assert_near(found, attention.step(q, 40 * k, v)[0][rows], "reset rows")
    assert found.abs().max() > 0.1
