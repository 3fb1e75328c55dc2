"""Feature maps of linear attention: formulas of their sources, distillation, any norms."""

import itertools

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_equals_reference,
    assert_near,
    build_small,
    check_contract,
    full_and_causal,
    gradients,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)

from flop_counter import flop_counter
from longspan import build
from longspan.attention import Inputs
from longspan.attention.ops.feature_maps import MAPS, Projections, count_features, taylor_features
from longspan.errors import InputError

OPTIONS = [
    {"feature_dim": 3},
    {"feature_map": "relu"},
    {"feature_map": "relu", "feature_dim": 11},
    {"feature_map": "taylor"},
    {"feature_map": "taylor", "feature_dim": 3},
    {"feature_map": "hedgehog"},
    {"feature_map": "hedgehog", "feature_dim": 5},
    {"feature_map": "softmax"},
    {"feature_map": "softmax", "feature_dim": 5},
]
exponential = pytest.mark.parametrize("feature_map", ["hedgehog", "softmax"])


def draw_parameters(attention):
    generator = torch.Generator().manual_seed(5)
    for parameter in attention.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return attention


@full_and_causal
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_map_keeps_the_contract(options, causal):
    attention = draw_parameters(build_small("linear", causal, **options))
    check_contract(attention, lengths=(1, 7, 100), first_step=20)
    assert_equals_reference(attention, qkv(70, 100, E=5), "fewer queries than keys")
    sums = weights_of(attention, *qkv(40)[:2]).sum(-1)
    if attention.traits.row_sums == "one":
        assert_near(sums, torch.ones_like(sums), "sums of weights")
    assert (attention.traits.row_sums == "one") == (options.get("feature_map") != "relu")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_packed_documents_are_computed_at_once_without_levels(options):
    lengths = (7, 1, 40, 20)
    inputs = [x[0].transpose(0, 1) for x in qkv(sum(lengths), B=1)]
    bounds = torch.tensor([0, *itertools.accumulate(lengths)])
    for causal in (False, True):
        attention = build_small("linear", causal, **options)
        assert attention.traits.packed == (
            options.get("feature_map") not in ("hedgehog", "softmax")
        )
        out = attention.packed(*inputs, bounds)
        for a, b in itertools.pairwise(bounds.tolist()):
            alone = attention(*(x[a:b].transpose(0, 1)[None] for x in inputs))
            assert_near(out[a:b], alone[0].transpose(0, 1), f"{a} to {b}")


def test_default_has_neither_parameters_nor_sizes():
    attention = build("linear", heads=2, head_dim=4, causal=True)
    assert not attention.state_dict()
    assert "heads" not in attention.options
    assert repr(attention) == "LinearAttention(causal=True)"
    other = build("linear", feature_map="hedgehog", heads=2, head_dim=4)
    assert repr(other) == "LinearAttention(heads=2, head_dim=4, feature_map='hedgehog')"


def test_taylor_features_are_those_of_zoology_without_repeated_products():
    """Compare with [1, x, x (x) x / sqrt 2] of HazyResearch/zoology, mixers/based.py."""
    x, y = (torch.randn(2, 50, 6, dtype=torch.float64) for _ in range(2))

    def unfolded(z):
        products = (z[..., None] * z[..., None, :]).flatten(-2) / 2**0.5
        return torch.cat([torch.ones_like(z[..., :1]), z / 6**0.25, products / 6**0.5], -1)

    assert taylor_features(x).shape[-1] == count_features("taylor", 6) == 28 < 43
    found = taylor_features(x) @ taylor_features(y).mT
    assert_near(found, unfolded(x) @ unfolded(y).mT, "products")
    scores = x @ y.mT / 6**0.5
    assert_near(found, 1 + scores + scores**2 / 2, "series")
    assert found.min() >= 0.5


def test_hedgehog_is_that_of_flash_linear_attention():
    """Its features are the softmax of (2 x W, -2 x W); a bias is absent here."""
    attention, (q, k, v) = build_small("linear", feature_map="hedgehog"), qkv(33)
    for weight in attention.parameters():
        assert torch.equal(weight, torch.eye(HEAD_DIM, dtype=torch.float64).expand(HEADS, -1, -1))
        weight.data *= 2
    fq, fk = (torch.cat([2 * x, -2 * x], -1).softmax(-1) for x in (q, k))
    weights = fq @ fk.mT
    assert_near(attention(q, k, v), weights / weights.sum(-1, keepdim=True) @ v, "output")


@full_and_causal
@exponential
def test_features_of_any_norm_keep_their_rows(feature_map, causal):
    """Products of features underflow in float32 where the query and key have different ones."""
    q, k, v = qkv(100, dtype=torch.float32)
    q[..., 0], k[..., 0] = q[..., 0] - 5, k[..., 0] + 5
    inputs = [x.requires_grad_() for x in (60 * q, 60 * k, v)]
    attention = build("linear", feature_map=feature_map, causal=causal, heads=HEADS, head_dim=8)
    out = attention(*inputs)
    assert out.norm(dim=-1).all()
    assert all(x.isfinite().all() for x in gradients(out, inputs, attention))
    logs = [torch.cat([x, -x], -1) if feature_map == "hedgehog" else x for x in inputs[:2]]
    fq, fk = (x.double().log_softmax(-1) for x in logs)
    scores = (fq[:, :, :, None] + fk[:, :, None]).logsumexp(-1)
    if causal:
        scores = scores.masked_fill(torch.ones(100, 100).triu(1) > 0, -torch.inf)
    assert_near(out.double(), scores.softmax(-1) @ v.double(), "output", 1e-4)


def test_row_of_relu_without_a_common_feature_is_zero():
    q, k, v = (torch.ones(1, 1, 4, 2, requires_grad=True) for _ in range(3))
    signs = torch.tensor([1.0, -1.0])
    out = build("linear", feature_map="relu")(q * signs, k * -signs, v)
    assert not out.any()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


def test_projected_products_are_those_of_queries_and_keys_in_expectation():
    projections = Projections(2000, 8, 4, identity=False)
    assert torch.equal(projections.query, projections.key)
    q, k = (x.expand(-1, 2000, -1, -1) for x in qkv(3, H=1, B=1, dtype=torch.float32)[:2])
    fq, fk = projections(q, k)
    mean = (fq @ fk.mT / 4**0.5).mean(1)
    assert_near(mean, (q @ k.mT / 8**0.5)[:, 0], "mean of heads", 0.15)


def distillation(causal=False, **options):
    attention = build_small("linear", causal, feature_map="hedgehog", distillation=True, **options)
    return draw_parameters(attention)


def plain_loss(attention, q, k, mask=None):
    """Return the mean cross-entropy of every real query, from both T x T matrices."""
    T = q.shape[2]
    real = torch.ones(len(q), T, dtype=torch.bool) if mask is None else mask
    allowed = real[:, None, None, :] & real[:, None, :, None]
    if attention.causal:
        allowed = allowed & torch.ones(T, T).tril().bool()
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    expected = scores.softmax(-1).nan_to_num(0)
    fq, fk = attention.projections(q, k)
    fq, fk = (torch.cat([x, -x], -1).softmax(-1) for x in (fq, fk))
    weights = fq @ fk.mT * allowed
    weights = weights / weights.sum(-1, keepdim=True).where(allowed.any(-1, keepdim=True), 1)
    losses = -(expected * weights.where(allowed, 1).log()).sum(-1)
    return losses[real[:, None].expand_as(losses)].mean()


@full_and_causal
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_distillation_is_the_cross_entropy_of_softmax_weights(causal, kind):
    attention, (q, k, v), mask = distillation(causal), qkv(33), key_masks(33)[kind]
    q, k = q.requires_grad_(), k.requires_grad_()
    loss = attention.auxiliary_loss(Inputs(q, k, v, mask=mask))
    expected = plain_loss(attention, q, k, mask)
    assert_near(loss, expected, "loss")
    parameters = list(attention.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True)
    assert_near(found, torch.autograd.grad(expected, parameters), "gradient")
    grads = torch.autograd.grad(loss, (q, k), allow_unused=True)
    assert grads == (None, None), "a gradient reaches the model"
    if mask is not None:
        others = [x.detach().where(mask[:, None, :, None], torch.nan) for x in (q, k, v)]
        assert_near(attention.auxiliary_loss(Inputs(*others, mask=mask)), loss, "padding")
        none = attention.auxiliary_loss(Inputs(q, k, v, mask=torch.zeros_like(mask)))
        assert none == 0
        assert not any(x.any() for x in torch.autograd.grad(none, parameters))


def test_distillation_samples_queries_of_long_inputs():
    """Time and memory grow as 256 x T."""
    attention = distillation(True)
    q, k, v = qkv(1200, B=1)
    with flop_counter() as counter:
        loss = attention.auxiliary_loss(Inputs(q, k[:, :1], v[:, :1]))
    assert counter.get_total_flops() < 2 * HEADS * (2 * 256 * 1200 * 5 * HEAD_DIM)
    assert_near(loss, plain_loss(attention, q, k[:, :1]), "sample", 0.02)


def test_without_distillation_there_is_no_loss():
    for feature_map in MAPS:
        attention = build_small("linear", feature_map=feature_map)
        assert attention.auxiliary_loss(Inputs(*qkv(5))) is None


@full_and_causal
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_flops_are_near_the_counted_ones(options, causal):
    attention = build_small("linear", causal, **options)
    with flop_counter() as counter:
        attention(*qkv(512, B=1))
    claimed = HEADS * attention.flops(512, HEAD_DIM)
    assert 0.4 <= claimed / counter.get_total_flops() <= 2.5


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_states_are_constant_and_can_be_reset(options):
    attention, inputs = build_small("linear", True, **options), qkv(60)
    _, cache = run_steps(attention, inputs, (40,))
    sizes = {n: x.shape for n, x in cache.state.items()}
    width = count_features(attention.feature_map, options.get("feature_dim", HEAD_DIM))
    assert cache.state["summary"].shape[2] == width
    cache = attention.reset(cache, torch.tensor([True, False, False]))
    out, cache = run_steps(attention, inputs, (20,), None, cache)
    assert {n: x.shape for n, x in cache.state.items()} == sizes
    alone = attention(*(x[:1, :, 40:] for x in inputs))
    assert_near(out[:1], alone, "row without its past")


def test_kernels_of_other_maps_are_refused():
    for options in ({"feature_map": "taylor"}, {"feature_dim": 3}):
        attention = build_small("linear", backend="triton", **options)
        ((option, value),) = options.items()
        with pytest.raises(InputError, match=f"{option}={value!r}; the kernels have "):
            attention(*qkv(5))
