"""Dropout of attention weights: which weights, how many, gradients, steps, refusals."""

import jaxtyping
import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    build_small,
    every_mechanism,
    global_masks,
    key_masks,
    qkv,
    reference_copy,
    weights_of,
)

from longspan.attention import build
from longspan.errors import OptionError

T, P = 33, 0.3


def build_dropping(name, causal, backend):
    attention = build_small(name, causal, backend)
    if not attention.traits.weight_dropout:
        pytest.skip("no dropout of weights (trait)")
    attention.weight_dropout = P
    return attention.train()


@every_mechanism
@pytest.mark.parametrize("is_reference", [False, True])
def test_dropped_weights_are_zero_and_the_others_grow(name, causal, backend, is_reference):
    attention, dropped, real = build_dropping(name, causal, backend), 0, 0
    attention = reference_copy(attention) if is_reference else attention
    torch.manual_seed(0)
    for mask in (None, key_masks(T)["holes"]):
        for global_mask in global_masks(name, T):
            masks = {"mask": mask, "global_mask": global_mask}
            found = weights_of(attention.train(), *qkv(T)[:2], **masks)
            weights = weights_of(attention.eval(), *qkv(T)[:2], **masks)
            assert_near(found, torch.where(found == 0, 0, weights / (1 - P)), "kept weights")
            # The weight of a global token's own row is dropped like any other.
            dropped += int(((found == 0) & (weights > 0)).sum())
            real += int((weights > 0).sum())
    assert abs(dropped / real - P) < 5 * (P * (1 - P) / real) ** 0.5


@every_mechanism
def test_gradients_are_those_of_the_dropped_weights(name, causal, backend):
    attention = build_dropping(name, causal, backend)
    q, k, v = (x[:1, :, :9].clone().requires_grad_() for x in qkv(T))

    def attend(*inputs):
        torch.manual_seed(1)
        return attention(*inputs)

    assert torch.autograd.gradcheck(attend, (q, k, v), fast_mode=True)


@every_mechanism
def test_steps_drop_weights_too(name, causal, backend):
    attention = build_dropping(name, causal, backend)
    if not causal:
        pytest.skip("no steps")
    q, k, _ = qkv(T)
    v = torch.eye(T, dtype=torch.float64).expand(3, HEADS, T, T)
    first, cache = attention.step(q[:, :, :9], k[:, :, :9], v[:, :, :9])
    second, _ = attention.step(q[:, :, 9:], k[:, :, 9:], v[:, :, 9:], cache)
    weights = attention.eval()(q, k, v)
    for out, expected in ((first, weights[:, :, :9]), (second, weights[:, :, 9:])):
        assert_near(out, torch.where(out == 0, 0, expected / (1 - P)), "kept weights")
        assert ((out == 0) & (expected > 0)).any()


@every_mechanism
def test_dropout_is_refused_without_the_trait(name, causal, backend):
    attention = build_small(name, causal, backend)
    if attention.traits.weight_dropout:
        pytest.skip("weights can be dropped (trait)")
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 64}
    with pytest.raises(OptionError, match=r"weight_dropout is not supported .*traits"):
        build(name, weight_dropout=P, **sizes)


@pytest.mark.parametrize("probability", [-0.1, 1.0, float("nan"), True, "0.1", None])
def test_other_values_are_rejected(probability, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(OptionError, match=r"weight_dropout must be a number in \[0, 1\), got"):
        build("local", weight_dropout=probability)


def test_global_projections_refuse_dropout():
    with pytest.raises(OptionError, match="weight_dropout is not supported with these options"):
        build("longformer", heads=2, head_dim=8, global_projections=True, weight_dropout=P)


def test_nothing_is_dropped_outside_training():
    attention = build("local", weight_dropout=P).eval()
    assert attention(*qkv(T)).equal(build("local")(*qkv(T)))
