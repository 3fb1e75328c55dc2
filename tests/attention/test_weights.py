"""Attention weights of every registered mechanism."""

import pytest
import torch

import mechanism_calls as calls
from longspan.attention import MECHANISMS, Attention, LayerInput, Traits, build
from longspan.attention import weights as module
from longspan.attention.value_norms import ValueNorm, skip_value_norms
from longspan.attention.weights import check_weighted_sum, compute_weights
from longspan.errors import InputError

CASES = [
    pytest.param(name, causal, id=f"{name}-{'causal' if causal else 'full'}")
    for name, cls in MECHANISMS.items()
    for causal in ((False, True) if cls.traits.causal else (False,))
]
every_mechanism = pytest.mark.parametrize(("name", "causal"), CASES)


def has_value_norms(attention):
    return any(isinstance(part, ValueNorm) for part in attention.modules())


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def masks(name):
    """Return pairs of masks: none, padding, padding with global tokens."""
    found = [(None, None), (calls.ragged_mask(), None)]
    if MECHANISMS[name].traits.global_tokens:
        found.append((calls.ragged_mask(), torch.arange(calls.LENGTH).expand(2, -1) % 11 == 3))
    return found


@every_mechanism
def test_weights_times_values_equal_output(name, causal, monkeypatch):
    monkeypatch.setattr(module, "MAX_COLUMNS", 17)
    attention = calls.build_small(name, causal)
    for mask, global_mask in masks(name):
        call = calls.make_call(attention, mask=mask, global_mask=global_mask)
        weights = compute_weights(
            attention,
            call.x.q,
            call.x.k,
            mask,
            v=call.x.v,
            global_mask=global_mask,
            layer_input=None,
        )
        out = attention(call.x.q, call.x.k, call.x.v, mask, global_mask=global_mask)
        if has_value_norms(attention):
            assert (weights @ call.x.v - out).abs().max() > 0.1
            out = call.output_for(call.x.v)
        assert_near(weights @ call.x.v, out)
        assert call.relative_error() < 1e-12
        if MECHANISMS[name].traits.exact:
            assert weights.min() >= 0
        if MECHANISMS[name].traits.exact and MECHANISMS[name].traits.row_sums == "one":
            sums = weights.sum(3).movedim(1, 2)[call.real]
            assert_near(sums, torch.ones_like(sums))


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_of_half_precision_is_no_lack_of_weights(name, causal, dtype):
    attention = calls.build_small(name, causal).to(dtype)
    q, k, v = (x.to(dtype) for x in calls.make_call(attention).x[:3])
    assert compute_weights(attention, q, k, v=v).isfinite().all()


def test_number_of_columns_per_pass_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_COLUMNS", 10)
    call = calls.make_call(calls.build_small("local"))
    widths = [weights.shape[3] for _, weights in call.columns()]
    assert widths == [10, 10, 10, 3]


def test_weights_are_those_without_dropout():
    attention = build("local", window=4, weight_dropout=0.5).train()
    q, k, v = calls.make_call(attention).x[:3]
    weights = compute_weights(attention, q, k, v=v)
    assert_near(weights, compute_weights(attention.eval(), q, k, v=v))
    assert attention.weight_dropout == 0.5


class Squares(Attention):
    """Mechanism that squares the values."""

    name = "squares"
    traits = Traits(paper="none", family="kernel", cost="T", exact=False)

    def attend(self, x):
        return x.v.square()


def test_output_nonlinear_in_values_is_rejected():
    call = calls.make_call(Squares())
    with pytest.raises(InputError, match=r"squares has no .* weights: .* differs from its output"):
        compute_weights(call.attention, call.x.q, call.x.k, v=call.x.v)


def test_projected_values_are_rejected():
    options = {"window": 4, "global_projections": True}
    attention = calls.build_small("longformer", options=options)
    call = calls.make_call(attention, global_mask=torch.arange(calls.LENGTH).expand(2, -1) == 0)
    states = torch.randn(2, calls.LENGTH, calls.HEADS * calls.HEAD_DIM, dtype=torch.float64)
    layer_input = LayerInput(states=states, query=lambda x: x, key=lambda x: x)
    with pytest.raises(InputError, match="longformer has no attention weights"):
        check_weighted_sum(call._replace(x=call.x._replace(layer_input=layer_input)))
    # Without global tokens nothing is projected.
    local = call._replace(x=call.x._replace(layer_input=layer_input, global_mask=None))
    assert local.relative_error() < 1e-12


def test_convolved_values_are_rejected():
    options = {**MECHANISMS["compressive"].small_options, "compression": "conv"}
    call = calls.make_call(calls.build_small("compressive", options=options))
    with pytest.raises(InputError, match="compressive has no attention weights"):
        check_weighted_sum(call)


def test_value_norms_are_restored_after_interrupt():
    attention = calls.build_small("long_short")
    call = calls.make_call(attention)
    before = attention(call.x.q, call.x.k, call.x.v)

    def interrupted():
        with skip_value_norms(attention):
            assert not torch.allclose(attention(call.x.q, call.x.k, call.x.v), before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(attention(call.x.q, call.x.k, call.x.v), before)
