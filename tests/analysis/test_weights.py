"""Weights read off the real module explain its output, for every mechanism of the registry."""

import dataclasses

import given
import pytest
import torch

from longspan.analysis import weights as module
from longspan.analysis.weights import Call, check, weights_of
from longspan.attention import MECHANISMS, Attention, LayerInput, Traits
from longspan.attention.value_norms import ValueNorm, skip_value_norms
from longspan.errors import InputError

CASES = [
    pytest.param(name, causal, id=f"{name}-{'causal' if causal else 'full'}")
    for name, cls in MECHANISMS.items()
    for causal in ((False, True) if cls.traits.causal else (False,))
]
every_mechanism = pytest.mark.parametrize(("name", "causal"), CASES)


def normed(attention):
    return any(isinstance(part, ValueNorm) for part in attention.modules())


def near(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def masks(name):
    """No mask, padding, padding with global tokens."""
    found = [(None, None), (given.ragged(), None)]
    if MECHANISMS[name].traits.global_tokens:
        found.append((given.ragged(), torch.arange(given.LENGTH).expand(2, -1) % 11 == 3))
    return found


def all_weights(call):
    return torch.cat([weights for _, weights in call.columns()], 3)


@every_mechanism
def test_the_weights_times_the_values_are_the_output(name, causal, monkeypatch):
    monkeypatch.setattr(module, "COLUMNS", 17)
    attention = given.built(name, causal)
    for mask, global_mask in masks(name):
        call = given.call_of(attention, mask=mask, global_mask=global_mask)
        weights = weights_of(
            attention, call.q, call.k, mask, v=call.v, global_mask=global_mask, layer_input=None
        )
        out = attention(call.q, call.k, call.v, mask, global_mask=global_mask)
        if normed(attention):
            assert (weights @ call.v - out).abs().max() > 0.1
            out = call.mixed(call.v)
        near(weights @ call.v, out)
        assert call.missed() < 1e-12
        if MECHANISMS[name].traits.exact:
            assert weights.min() >= 0
            sums = weights.sum(3).movedim(1, 2)[call.real]
            near(sums, torch.ones_like(sums))


@every_mechanism
def test_the_output_is_linear_in_the_values(name, causal):
    attention = given.built(name, causal)
    call, other = given.call_of(attention), given.call_of(attention, seed=1)
    mixed = call.mixed(2 * call.v - 3 * other.v)
    near(mixed, 2 * call.mixed(call.v) - 3 * call.mixed(other.v))
    # of what a norm of the values is left out of, and of nothing else, the output itself is not
    whole = attention(call.q, call.k, 2 * call.v - 3 * other.v)
    assert torch.allclose(whole, mixed, atol=1e-10) != normed(attention)


@every_mechanism
def test_padding_and_the_rest_of_the_batch_have_no_weight(name, causal):
    attention = given.built(name, causal)
    call = given.call_of(attention, mask=given.ragged())
    weights, T = all_weights(call), given.LENGTH - 6
    assert not weights[1, :, :, T:].any()
    assert not weights[1, :, T:].any()
    alone = Call(attention, *(x[1:, :, :T] for x in (call.q, call.k, call.v)))
    near(all_weights(alone)[0], weights[1, :, :T, :T])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, given.ragged()])
def test_weights_that_are_formed_are_those_that_are_read_off(causal, mask, monkeypatch):
    attention = given.built("full", causal)
    call = given.call_of(attention, mask=mask)
    formed = all_weights(call)
    monkeypatch.setattr(module, "FORMED", 0)
    monkeypatch.setattr(type(attention), "attention_weights", None)
    near(formed, all_weights(call))


def test_only_as_many_columns_are_held_as_are_asked_for(monkeypatch):
    monkeypatch.setattr(module, "COLUMNS", 10)
    call = given.call_of(given.built("local"))
    widths = [weights.shape[3] for _, weights in call.columns()]
    assert widths == [10, 10, 10, 3]


class Squares(Attention):
    """Squares of the values."""

    name = "squares"
    traits = Traits(paper="none", cost="T", exact=False)

    def attend(self, q, k, v, key_mask):
        return v.square()


def test_what_is_no_weighted_sum_is_refused():
    call = given.call_of(Squares())
    with pytest.raises(InputError, match=r"squares has no weights to read: .* misses its output"):
        weights_of(call.attention, call.q, call.k, v=call.v)


def test_values_that_are_projected_anew_are_refused():
    options = {"window": 4, "global_projections": True}
    attention = given.built("longformer", options=options)
    call = given.call_of(attention, global_mask=torch.arange(given.LENGTH).expand(2, -1) == 0)
    states = torch.randn(2, given.LENGTH, given.HEADS * given.HEAD_DIM, dtype=torch.float64)
    layer_input = LayerInput(states=states, query=lambda x: x, key=lambda x: x)
    with pytest.raises(InputError, match="longformer has no weights to read"):
        check(dataclasses.replace(call, layer_input=layer_input))
    # without global tokens there is nothing that it projects
    local = dataclasses.replace(call, layer_input=layer_input, global_mask=None)
    assert local.missed() < 1e-12


def test_values_that_are_mixed_with_each_other_are_refused():
    options = {**MECHANISMS["compressive"].small_options, "compression": "conv"}
    call = given.call_of(given.built("compressive", options=options))
    with pytest.raises(InputError, match="compressive has no weights to read"):
        check(call)


def test_norms_are_back_afterwards_whatever_happens():
    attention = given.built("long_short")
    call = given.call_of(attention)
    before = attention(call.q, call.k, call.v)

    def stopped():
        with skip_value_norms(attention):
            assert not torch.allclose(attention(call.q, call.k, call.v), before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert torch.equal(attention(call.q, call.k, call.v), before)
