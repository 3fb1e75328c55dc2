"""Spans and rollouts of known attention weights."""

import pytest
import torch

import mechanism_calls as calls
from longspan.analysis.rollout import attention_rollout
from longspan.analysis.span import compute_spans, uniform_span
from longspan.attention import Inputs
from longspan.attention import weights as module
from longspan.attention.weights import compute_weights

T = 12


def random_weights(T, H=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(H, T, T, generator=generator, dtype=torch.float64).softmax(-1)


def naive_span(weights, queries, keys):
    """Evaluate the definition pair by pair; weights (T, S)."""
    means = []
    for t in queries:
        total = sum(abs(float(weights[t, s])) for s in keys)
        means.append(sum(abs(float(weights[t, s])) * abs(t - s) for s in keys) / total)
    return sum(means) / len(means)


def test_uniform_attention_has_uniform_span():
    found = compute_spans(calls.call_with(torch.full((2, T, T), 1 / T))).span
    expected = sum(abs(t - s) for t in range(T) for s in range(T)) / T**2
    assert found[0].tolist() == pytest.approx([expected, expected])
    assert uniform_span([T]) == pytest.approx(expected)
    assert uniform_span([T, 1]) == pytest.approx(expected / 2)
    causal = sum((t - s) / (t + 1) for t in range(T) for s in range(t + 1)) / T
    assert uniform_span([T], causal=True) == pytest.approx(causal)


@pytest.mark.parametrize("columns", [1, 5, 256])
def test_span_follows_definition(columns, monkeypatch):
    monkeypatch.setattr(module, "MAX_COLUMNS", columns)
    weights = random_weights(T) - 0.1
    for special in (0, 1):
        found = compute_spans(calls.call_with(weights), special)
        rest = range(special, T)
        for head in range(2):
            expected = naive_span(weights[head], rest, rest)
            assert float(found.span[0, head]) == pytest.approx(expected)
        sizes = weights[:, special:, special:].abs()
        lost = sizes.where(weights[:, special:, special:] < 0, 0.0)
        expected = lost.sum((1, 2)) / sizes.sum((1, 2))
        assert found.negative[0].tolist() == pytest.approx(expected.tolist())


def test_span_ignores_scale_and_empty_rows():
    weights = random_weights(T)
    scaled = weights * torch.rand(2, T, 1, dtype=torch.float64)
    one, other = (compute_spans(calls.call_with(x)).span for x in (weights, scaled))
    assert one.tolist()[0] == pytest.approx(other.tolist()[0])
    scaled[:, 5:] = 0
    found = compute_spans(calls.call_with(scaled)).span
    expected = [naive_span(weights[head], range(5), range(T)) for head in range(2)]
    assert found.tolist()[0] == pytest.approx(expected)
    assert compute_spans(calls.call_with(0 * weights)).span.isnan().all()


@pytest.mark.parametrize("name", ["full", "local", "linformer", "performer", "long_short"])
def test_span_ignores_padding_and_other_rows(name):
    attention = calls.build_small(name)
    call = calls.make_call(attention, mask=calls.ragged_mask())
    short = calls.LENGTH - 6
    alone = module.Call(attention, Inputs(*(x[1:, :, :short] for x in call.x[:3])))
    torch.testing.assert_close(compute_spans(alone, 1).span[0], compute_spans(call, 1).span[1])


def test_span_is_bounded_by_window():
    wide, narrow = (
        compute_spans(calls.make_call(calls.build_small("local", options={"window": w}))).span
        for w in (9, 2)
    )
    reach = calls.build_small("local", options={"window": 2}).pattern.layout.span
    assert 0 < float(narrow.max()) <= 2 <= reach
    assert float(narrow.max()) < float(wide.min()) <= 9


def naive_rollout(layers, start):
    """Evaluate the definition with matrices; layers of (H, T, T)."""
    size = layers[0].shape[1]
    product = torch.eye(size, dtype=torch.float64)
    for weights in layers:
        share = weights.abs() / weights.abs().sum(-1, keepdim=True)
        product = 0.5 * (share.mean(0) + torch.eye(size, dtype=torch.float64)) @ product
    return start @ product


@pytest.mark.parametrize("columns", [5, 256])
def test_rollout_is_product_over_layers(columns, monkeypatch):
    monkeypatch.setattr(module, "MAX_COLUMNS", columns)
    layers = [random_weights(T, seed=seed) - 0.02 * seed for seed in range(3)]
    start = torch.rand(1, T, dtype=torch.float64)
    start = start / start.sum()
    found = attention_rollout([calls.call_with(x) for x in layers], start)
    torch.testing.assert_close(found, naive_rollout(layers, start))
    assert float(found.sum()) == pytest.approx(1)


def test_rollout_of_known_layers():
    start = torch.zeros(1, T, dtype=torch.float64)
    start[0, 4] = 1
    identity, uniform = torch.eye(T)[None], torch.full((1, T, T), 1 / T)
    torch.testing.assert_close(attention_rollout([calls.call_with(identity)] * 3, start), start)
    found = attention_rollout([calls.call_with(uniform)] * 3, start)
    torch.testing.assert_close(found, start / 8 + 7 / 8 / T)
    # A state that attends to nothing is unchanged.
    found = attention_rollout([calls.call_with(0 * uniform)] * 2, start)
    torch.testing.assert_close(found, start)


def test_rollout_ignores_padding_and_other_rows():
    attention, mask = calls.build_small("full"), calls.ragged_mask()
    call = calls.make_call(attention, mask=mask)
    weights = compute_weights(attention, call.x.q, call.x.k, mask)
    short = calls.LENGTH - 6
    start = mask.double() / mask.sum(1, keepdim=True)
    found = attention_rollout([call, call], start)
    inside = weights[1, :, :short, :short]
    expected = naive_rollout([inside, inside], start[1:, :short])
    torch.testing.assert_close(found[1:, :short], expected)
    assert not found[1, short:].any()
