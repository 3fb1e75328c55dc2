"""Synthesizer: scores from queries or parameters, never from padding."""

import math

import pytest
import torch
from contract import assert_near, check_contract, full_and_causal, key_masks, qkv, weights_of

from longspan import build
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.models.attention_layer import SelfAttention

PARTS = ("dot", "dense", "factorized_dense", "random", "factorized_random")
N = 70


def synthesizer(scores, max_length=N, heads=3, head_dim=8, **options):
    sizes = {"heads": heads, "head_dim": head_dim, "max_length": max_length}
    return build("synthesizer", scores=scores, **sizes, **options).double()


def compute_score(attention, part, q, k, b, h, t, s):
    """Compute one score of one part by its formula."""
    module = attention.parts[part]
    hidden = q[b, h, t].clamp(min=0)
    if part == "dot":
        return q[b, h, t] @ k[b, h, s] / math.sqrt(8)
    if part == "dense":
        return module.map.weight[h, s] @ hidden + module.map.bias[h, s]
    if part == "factorized_dense":
        n = next(n for n in range(N) if n * n >= attention.built_for["max_length"])
        outer = module.outer.weight[h, s // n] @ hidden + module.outer.bias[h, s // n]
        return outer * (module.inner.weight[h, s % n] @ hidden + module.inner.bias[h, s % n])
    if part == "random":
        return module.matrix[h, t, s]
    return module.factors[0, h, t] @ module.factors[1, h, s]


@pytest.mark.parametrize("part", PARTS)
@full_and_causal
def test_each_part_equals_softmax_of_its_formula(part, causal):
    attention = synthesizer(part, causal=causal)
    T = 13
    q, k, _ = qkv(T)
    found = weights_of(attention, q, k, key_masks(T)["ragged"])
    for b, h, t in ((0, 0, 0), (0, 2, 12), (1, 1, 9), (2, 0, 3), (2, 2, 6)):
        length = min((13, 10, 7)[b], t + 1 if causal else T)
        row = torch.stack([compute_score(attention, part, q, k, b, h, t, s) for s in range(length)])
        assert_near(found[b, h, t, :length], row.softmax(0), f"{part} {b} {h} {t}")
        assert not found[b, h, t, length:].any()


@pytest.mark.parametrize("mixture", ["convex", "sum"])
def test_mixture_adds_the_scores_of_its_parts(mixture):
    attention = synthesizer("random+dot+dense", mixture=mixture)
    share = torch.ones(3, dtype=torch.float64)
    if mixture == "convex":
        with torch.no_grad():
            attention.alpha.copy_(torch.tensor([0.5, -1.0, 2.0]))
        share = torch.tensor([0.5, -1.0, 2.0]).double().softmax(0)
    q, k, _ = qkv(9)
    names = ("random", "dot", "dense")
    for b, h, t in ((0, 0, 0), (1, 2, 8), (2, 1, 4)):
        row = torch.stack(
            [
                sum(
                    w * compute_score(attention, part, q, k, b, h, t, s)
                    for w, part in zip(share, names, strict=True)
                )
                for s in range(9)
            ]
        )
        assert_near(weights_of(attention, q, k)[b, h, t], row.softmax(0), f"{b} {h} {t}")


def test_mixture_starts_uniform_and_learns_its_weights():
    mixture = synthesizer("random+factorized_random")
    assert mixture.alpha.softmax(0).tolist() == [0.5, 0.5]
    mixture(*qkv(9)).sum().backward()
    assert mixture.alpha.grad.abs().sum() > 0
    assert synthesizer("random").alpha is None
    assert synthesizer("random+dot", mixture="sum").alpha is None


@pytest.mark.parametrize(
    "options",
    [
        {"scores": "dense"},
        {"scores": "factorized_dense"},
        {"scores": "random"},
        {"scores": "random", "trainable": False},
        {"scores": "factorized_random", "factors": 1},
        {"scores": "dot"},
        {"scores": "random+dot", "mixture": "sum"},
        {"scores": "dense+random"},
        {"scores": "+".join(PARTS), "factors": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@full_and_causal
def test_every_option_obeys_contract(options, causal):
    check_contract(synthesizer(causal=causal, **options), lengths=(1, 9, 33))


@pytest.mark.parametrize("part", ["random", "factorized_random", "dense"])
@full_and_causal
def test_masks_hold_for_scores_of_any_size(part, causal):
    """Padded columns may have the largest scores, because scores do not depend on keys."""
    attention = synthesizer(part, causal=causal)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.mul_(200)
    q, k, _ = qkv(20)
    for mask in key_masks(20).values():
        real = torch.ones(3, 20, dtype=torch.bool) if mask is None else mask
        allowed = real[:, None, None, :] & real[:, None, :, None]
        allowed = allowed.tril() if causal else allowed
        found = weights_of(attention, q, k, mask)
        assert not found[~allowed.expand_as(found)].any()
        total = found.sum(-1)
        assert_near(total, allowed.any(-1).expand_as(total).double(), "sum of a row")


def test_real_query_before_all_real_keys_gives_zeros():
    attention = synthesizer("random", causal=True)
    key_mask = (torch.arange(9) >= 4).expand(3, -1)
    out = attention(*qkv(9), key_mask=key_mask)
    assert not out[:, :, :4].any()
    assert out[:, :, 4:].any(-1).all()


def test_random_scores_read_no_input_and_dense_scores_no_keys():
    inputs_by_scores = {
        "random": "v",
        "factorized_random": "v",
        "random+factorized_random": "v",
        "dense": "qv",
        "random+factorized_dense": "qv",
        "dot": "qkv",
        "dense+dot": "qkv",
    }
    for scores, expected in inputs_by_scores.items():
        attention = synthesizer(scores)
        assert attention.traits.inputs == expected
        q, k, v = qkv(11)
        out = attention(q, k, v)
        assert torch.equal(attention(q + 1, k, v), out) == ("q" not in expected), scores
        assert torch.equal(attention(q, k + 1, v), out) == ("k" not in expected), scores


@pytest.mark.parametrize("max_length", [1, 2, 15, 16, 17])
def test_dense_factors_cover_every_max_length(max_length):
    attention = synthesizer("factorized_dense", max_length=max_length)
    part = attention.parts["factorized_dense"]
    assert part.outer.weight.shape[1] * part.inner.weight.shape[1] >= max_length
    inputs = qkv(max_length)
    assert weights_of(attention, *inputs[:2]).shape[-1] == max_length


def test_factorized_random_equals_random_with_the_product():
    factorized, plain = synthesizer("factorized_random"), synthesizer("random")
    U, V = factorized.parts["factorized_random"].factors.detach()
    with torch.no_grad():
        plain.parts["random"].matrix.copy_(torch.einsum("htk,hsk->hts", U, V))
    inputs, mask = qkv(50), key_masks(50)["holes"]
    assert_near(factorized(*inputs, mask), plain(*inputs, mask), "output")
    assert 0.8 < plain.parts["random"].matrix.std() < 1.2


def test_fixed_scores_depend_on_the_seed_and_are_not_trained():
    def matrix(**options):
        return synthesizer("random", trainable=False, **options).parts["random"].matrix

    first = matrix()
    torch.manual_seed(5)
    assert torch.equal(matrix(), first)
    assert not torch.equal(matrix(seed=1), first)
    fixed = synthesizer("random+factorized_random", trainable=False, mixture="sum")
    assert not list(fixed.parameters())
    assert set(fixed.state_dict()) == {"parts.random.matrix", "parts.factorized_random.factors"}
    # As in any module, trained scores follow the global seed.
    assert not torch.equal(synthesizer("random").parts["random"].matrix, first)


def test_model_projects_only_the_inputs_that_are_read():
    for scores, projections in (("random", 2), ("dense", 3), ("random+dot", 4)):
        config = LongspanConfig(
            hidden_size=16,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=9,
            attention="synthesizer",
            attention_options={"scores": scores},
        )
        layer = SelfAttention(config, 0)
        projection_layers = [layer.query, layer.key, layer.value, layer.output]
        assert sum(x is not None for x in projection_layers) == projections
        feed_forward, head = 2 * 9 * 16 * 16 * 2, 2 * 16 * config.classifier_hidden_size
        head += 2 * config.classifier_hidden_size * 2
        attention_flops = 2 * layer.mechanism.flops(9, 8)
        expected = projections * 2 * 9 * 16 * 16 + feed_forward + attention_flops
        counted = LongspanForSequenceClassification.flops(config, {"input_ids": (9,)})
        assert counted == config.num_hidden_layers * expected + head
