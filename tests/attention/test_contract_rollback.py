"""Rollback: a cache without its last tokens continues as if they had never come."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    build_small,
    every_stepping_mechanism,
    key_masks,
    qkv,
    run_steps,
)

from longspan.attention import MECHANISMS, Cache, LayerInput, RelativeBias, build
from longspan.errors import InputError

SIZES = (43, 5, 1, 7)  # tokens of the steps; all but the first are recorded
T = sum(SIZES)


def run_recorded(attention, inputs, mask=None, sizes=SIZES, **options):
    """Return the cache after steps of which all but the first are recorded."""
    parts = {name: lambda _, own=value: own for name, value in options.items()}
    parts["record"] = lambda rows: rows.start > 0
    return run_steps(attention, inputs, sizes, mask, **parts)[1]


def after(inputs, others, kept):
    """Return the first `kept` tokens of the inputs, followed by other ones."""
    pairs = zip(inputs, others, strict=True)
    return [torch.cat([x[:, :, :kept], y[:, :, kept:]], 2) for x, y in pairs]


@every_stepping_mechanism
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_a_shorter_cache_continues_as_if_the_tokens_had_not_come(name, causal, backend, kind):
    attention, mask = build_small(name, causal, backend), key_masks(T)[kind]
    inputs, others = qkv(T, E=5), qkv(T, E=5, seed=1)
    cache = run_recorded(attention, inputs, mask)
    before = {n: x.clone() for n, x in cache.state.items()}
    assert cache.rollback(0).length == T
    for removed in (1, 6, 7, 8, 10, 13):
        kept = T - removed
        shorter, both = cache.rollback(removed), after(inputs, others, kept)
        assert shorter.length == kept
        out, _ = run_steps(attention, both, (removed,), mask, shorter)
        assert_near(out, attention(*both, mask)[:, :, kept:], f"{removed} tokens removed")
    assert all(torch.equal(x, before[n]) for n, x in cache.state.items())


@every_stepping_mechanism
def test_rollback_beyond_the_record_is_refused_by_name(name, causal, backend):
    attention = build_small(name, causal, backend)
    cache = run_recorded(attention, qkv(T))
    remedy = "the steps of the last 13 are recorded; pass record=True to each step"
    with pytest.raises(InputError, match=rf"{name}\(.*cannot forget its last 14 tokens: {remedy}"):
        cache.rollback(14)
    assert cache.rollback(3).recorded is None
    for changed in (cache.detach(), cache.to("cpu"), cache.select_rows(torch.tensor([0, 1, 2]))):
        with pytest.raises(InputError, match="the steps of the last 0 are recorded"):
            changed.rollback(1)
    with pytest.raises(InputError, match="tokens to remove must be >= 0, got -1"):
        cache.rollback(-1)


@pytest.mark.parametrize("name", ["full", "local", "reformer"])
def test_all_recorded_tokens_may_be_removed(name):
    attention, inputs = build_small(name, True), qkv(T)
    _, cache = attention.step(*inputs, record=True)
    assert cache.rollback(T) is None
    with pytest.raises(InputError, match=f"cannot forget its last {T + 1} tokens"):
        cache.rollback(T + 1)
    assert_same_state(cache.rollback(T - 1), attention.step(*(x[:, :, :1] for x in inputs))[1])


def assert_same_state(cache: Cache, expected: Cache):
    assert cache.length == expected.length
    assert cache.state.keys() == expected.state.keys()
    for name, x in expected.state.items():
        assert_near(cache.state[name], x, name)


@pytest.mark.parametrize("name", [n for n, c in MECHANISMS.items() if c.traits.causal])
def test_rollback_keeps_the_scale_and_the_heads_of_keys(name):
    attention, (q, k, v) = build_small(name, True), qkv(T)
    k, v = k[:, :1], v[:, :1]
    options = {"scale": 0.7} if attention.traits.scale else {}
    cache = run_recorded(attention, (q, k, v), **options)
    expected = run_recorded(attention, (q, k, v), sizes=(43, 5, 1, 4), **options)
    assert_same_state(cache.rollback(3), expected)


@pytest.mark.parametrize("kind", ["bias", "relative"])
def test_rollback_keeps_numbers_added_to_the_scores(kind):
    attention, inputs = build("local", causal=True, window=9).double(), qkv(T)
    added = torch.randn(1, HEADS, T, T, dtype=torch.float64)
    relative = RelativeBias(lambda distance: distance[None].double().cos())
    given = {"bias": added[:, :, 43:]} if kind == "bias" else {"relative": relative}
    _, cache = attention.step(*(x[:, :, :43] for x in inputs))
    _, cache = attention.step(*(x[:, :, 43:] for x in inputs), cache, record=True, **given)
    assert_same_state(cache.rollback(4), run_recorded(attention, inputs, sizes=(43, 9)))


def test_rollback_keeps_the_layer_input():
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "window": 4}
    attention = build(
        "longformer", **sizes, first_global=True, global_projections=True, causal=True
    ).double()
    inputs, width = qkv(T), HEADS * HEAD_DIM
    states = torch.randn(3, T, width, dtype=torch.float64)

    def heads(x):
        return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(-3, -2)

    def steps(*sizes):
        parts = {"record": lambda _: True}
        parts["layer_input"] = lambda rows: LayerInput(states[:, rows], heads, heads)
        return run_steps(attention, inputs, sizes, **parts)[1]

    assert_same_state(steps(20, 10).rollback(7), steps(20, 3))
    assert_same_state(steps(20, 10).rollback(27), steps(3))
