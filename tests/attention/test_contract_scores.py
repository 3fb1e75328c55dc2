"""Scores of `scaled_dot_product_attention`: another scale, and grouped-query heads."""

import itertools

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    assert_equals_reference,
    assert_near,
    build_small,
    every_mechanism,
    global_masks,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_or_skip,
    run_steps,
    softmax_deviation,
    steps_of,
    weights_of,
)

from longspan.attention import MECHANISMS, build
from longspan.attention.cache import MOST_UNUSED
from longspan.errors import InputError

T, SCALES = 33, (0.05, 1.0, -0.7)
DEFAULT = HEAD_DIM**-0.5


def cases(name):
    for mask in (None, key_masks(T)["holes"]):
        for global_mask in global_masks(name, T):
            yield {"mask": mask, "global_mask": global_mask}


@every_mechanism
def test_scale_replaces_the_default_factor(name, causal, backend):
    attention = build_small(name, causal, backend)
    if not attention.traits.scale:
        pytest.skip("no scale (trait)")
    q, k, v = qkv(T)
    # Every scale has masks, and all masks have a scale.
    every = [*cases(name), next(cases(name))]
    for masks, scale in zip(every[: max(3, len(every) - 1)], itertools.cycle(SCALES), strict=False):
        default = run_or_skip(attention, q, k, v, **masks)
        assert_near(run_or_skip(attention, q, k, v, **masks, scale=DEFAULT), default, "default")
        assert not torch.allclose(attention(q, k, v, **masks, scale=scale), default, atol=1e-3)
        assert_equals_reference(attention, (q, k, v), f"scale={scale}", **masks, scale=scale)


@every_mechanism
def test_weights_of_exact_mechanisms_follow_the_scale(name, causal, backend):
    """Log weights of a row are scale q . k plus a constant, over the pairs that exist."""
    if not (MECHANISMS[name].traits.exact and MECHANISMS[name].traits.scale):
        pytest.skip("no softmax scores, or none that take a scale (traits)")
    attention, (q, k, _) = build_small(name, causal, backend), qkv(T)
    # The best keys of a learned pattern are the worst of the opposite scale.
    learned = attention.traits.family == "learned pattern"
    for scale in (x for x in SCALES if x > 0 or not learned):
        w = weights_of(attention, q, k, scale=scale)
        assert torch.equal(w > 0, weights_of(attention, q, k) > 0)
        assert softmax_deviation(w, scale * q @ k.mT) < 1e-8


def test_full_attention_equals_torch_at_any_scale():
    q, k, v = qkv(T)
    for scale in SCALES:
        expected = F.scaled_dot_product_attention(q, k, v, scale=scale)
        assert_near(build("full")(q, k, v, scale=scale), expected, f"scale={scale}")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("performer", {"features": 4096}),
        ("nystrom", {"landmarks": T}),
        ("linformer", {"rank": T, "projection": "mean"}),
        ("sinkhorn", {"block": T, "sortcut": 1, "sorting": "attention"}),
    ],
)
def test_approximations_estimate_softmax_at_the_given_scale(name, options):
    """The first is random; with as many slots as tokens the others are exact."""
    q, k, v = (x / 3 for x in qkv(T))
    attention = build(name, heads=3, head_dim=HEAD_DIM, max_length=T, **options).double()
    for scale in SCALES:
        expected = F.scaled_dot_product_attention(q, k, v, scale=scale)
        outs = attention(q, k, v, scale=scale), attention(q, k, v)
        error, error_of_default = ((out - expected).abs().max() for out in outs)
        assert error < (0.025 if name == "performer" else 1e-8) < error_of_default, scale


@pytest.mark.parametrize("scale", [True, "1", float("nan"), float("inf")])
def test_scale_must_be_a_finite_number(scale, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match="scale must be a finite number or None, got"):
        build("full")(*qkv(3), scale=scale)
    assert build("full")(*qkv(3), scale=1) is not None


def test_scale_applies_to_the_products_of_a_synthesizer():
    sizes = {"heads": 3, "head_dim": HEAD_DIM, "max_length": T}
    attention = build("synthesizer", scores="dot", **sizes).double()
    q, k, v = qkv(T)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.5)
    assert_near(attention(q, k, v, scale=0.5), expected, "output")


# Heads of queries, and of keys and values.
GROUPS = ((6, 2), (4, 1))


def grouped(H, G, seed=0):
    """Return inputs with G heads of keys, and the same with all heads, all of them leaves."""
    q, *_ = qkv(T, H=H, seed=seed)
    _, k, v = qkv(T, H=G, seed=seed, E=5)
    repeated = [q, *(x.repeat_interleave(H // G, 1) for x in (k, v))]
    return [x.clone().requires_grad_() for x in (q, k, v)], [x.requires_grad_() for x in repeated]


@every_mechanism
def test_grouped_heads_equal_repeated_keys(name, causal, backend):
    for masks, (H, G) in zip(cases(name), (*GROUPS, *GROUPS[::-1]), strict=False):
        attention = build_small(name, causal, backend, heads=H)
        few, all_heads = grouped(H, G)
        out, expected = (run_or_skip(attention, *x, **masks) for x in (few, all_heads))
        assert_near(out, expected, "output")
        assert_near(out, reference_copy(attention)(*few, **masks), "the reference")
        found, others = (gradients(*x, attention) for x in ((out, few), (expected, all_heads)))
        others = [others[0], *(x.unflatten(1, (G, -1)).sum(2) for x in others[1:3]), *others[3:]]
        assert_near(found, others, "gradient")


def test_full_attention_with_grouped_heads_equals_torch():
    few, _ = grouped(6, 2)
    expected = F.scaled_dot_product_attention(*few, enable_gqa=True)
    assert_near(build("full")(*few), expected, "output")


@every_mechanism
@pytest.mark.parametrize("scale", [None, 0.05])
def test_steps_with_grouped_heads_and_scale_equal_forward(name, causal, backend, scale):
    attention = build_small(name, causal, backend, heads=6)
    if not causal or not (scale is None or attention.traits.scale):
        pytest.skip("step() requires causal=True; no scale (trait)")
    few, mask = grouped(6, 2)[0], key_masks(T)["holes"]
    out, cache = run_steps(attention, few, steps_of(T, 8), mask, scale=lambda rows: scale)
    assert_near(out, attention(*few, mask, scale=scale), "output")
    held = [x for n, x in cache.state.items() if n in attention.shared_state]
    assert all(x.shape[1] == 2 for x in held)
    assert all(x.untyped_storage().nbytes() <= (1 + 1 / MOST_UNUSED) * x.nbytes for x in held)
    repeated = [x[:, :, :1].repeat_interleave(3, 1) for x in few[1:]]
    with pytest.raises(InputError, match="the cache requires 2 heads of keys, got 6"):
        attention.step(few[0][:, :, :1], *repeated, cache)


@every_mechanism
def test_heads_of_keys_must_divide_those_of_queries(name, causal, backend):
    attention = build_small(name, causal, backend, heads=6)
    q, *_ = qkv(T, H=6)
    _, k, v = qkv(T, H=4)
    with pytest.raises(InputError, match="heads of k must divide those of q, got 4 and 6"):
        attention(q, k, v)
