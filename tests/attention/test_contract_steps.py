"""Steps of a causal mechanism: outputs equal forward, caches are values."""

import functools

import jaxtyping
import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_near,
    assert_steps_near,
    build_small,
    every_stepping_mechanism,
    gradients,
    key_masks,
    qkv,
    run_steps,
    steps_of,
)
from jaxtyping import TypeCheckError

from longspan.attention import MECHANISMS, Inputs, build
from longspan.attention.cache import MOST_UNUSED
from longspan.attention.masking import zero_masked
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.errors import InputError

STEPS = (1, 1, 7, 1, 23, 8, 1, 33, 2, 23)  # numbers of tokens
T = sum(STEPS)


@every_stepping_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_steps_equal_forward(name, causal, backend, kind):
    attention, mask = build_small(name, causal, backend), key_masks(T)[kind]
    inputs = qkv(T, E=5)
    out, cache = run_steps(attention, inputs, STEPS, mask)
    assert cache.length == T
    assert_steps_near(attention, out, attention(*inputs, mask), kind)


@every_stepping_mechanism
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_keys_and_values_of_another_cache_can_be_continued(name, causal, backend, kind):
    attention, (q, k, v), mask = build_small(name, causal, backend), qkv(T), key_masks(T)[kind]
    k, v = zero_masked(k, mask), zero_masked(v, mask)
    past, before = slice(0, 70), None if mask is None else mask[:, :70]
    state = attention.state_of(Inputs(q[:, :, past], k[:, :, past], v[:, :, past], before))
    if state is None:
        pytest.skip("its state depends on more than keys and values")
    cache = attention.make_cache(70, q, v, state)
    out, _ = run_steps(attention, (q, k, v), (T - 70,), mask, cache)
    assert_near(out, attention(q, k, v, mask)[:, :, 70:], "output")
    if isinstance(attention, PatternAttention):
        own = attention.step(*(x[:, :, past] for x in (q, k, v)), None, before)[1].state
        assert all(torch.equal(state[x], own[x]) for x in (own | state))


@every_stepping_mechanism
def test_key_mask_may_be_given_in_some_steps_only(name, causal, backend):
    attention, inputs, mask = build_small(name, causal, backend), qkv(T), key_masks(T)["holes"]
    outs, cache = [], None
    for n, size in enumerate(steps_of(T, 20)):
        out, cache = run_steps(attention, inputs, (size,), mask if n % 2 else None, cache)
        outs.append(out)
    every_key = torch.arange(T) // 20 % 2 == 0
    assert_near(torch.cat(outs, 2), attention(*inputs, mask | every_key), "output")


@every_stepping_mechanism
def test_gradients_flow_through_the_cache(name, causal, backend):
    if not getattr(build_small(name, causal, backend), "backprop_through_memory", True):
        pytest.skip("its memory is detached")
    attention = build_small(name, causal, backend)
    inputs = [x.requires_grad_() for x in qkv(T)]
    found = gradients(run_steps(attention, inputs, STEPS)[0], inputs, attention)
    expected = gradients(attention(*inputs), inputs, attention)
    assert_near(found, expected, "gradient")


@every_stepping_mechanism
def test_step_changes_neither_cache_nor_module(name, causal, backend):
    attention, inputs = build_small(name, causal, backend), qkv(T)
    _, cache = run_steps(attention, inputs, STEPS)
    before = {n: x.clone() for n, x in (cache.state | attention.state_dict()).items()}
    for new in (qkv(3, seed=1), qkv(1, seed=2)):
        first, _ = attention.step(*new, cache)
        again, _ = attention.step(*new, cache)
        assert torch.equal(first, again)
    for n, x in (cache.state | attention.state_dict()).items():
        assert torch.equal(x, before[n]), n
    detached = cache.detach().state
    assert all(torch.equal(x, detached[n]) for n, x in cache.state.items())


@every_stepping_mechanism
def test_cache_holds_its_own_memory_only(name, causal, backend):
    """A view of what a long prompt computed would keep all of it."""
    attention, cache = build_small(name, causal, backend), None
    sizes = [T - 14] + [1] * 14  # to the end of a segment or block, and beyond
    for part in zip(*(x.split(sizes, 2) for x in qkv(T)), strict=True):
        cache = attention.step(*(x.clone() for x in part), cache)[1]
        for x in cache.state.values():
            assert x.untyped_storage().nbytes() <= (1 + 1 / MOST_UNUSED) * x.nbytes


@every_stepping_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_preserve_dtype(name, causal, backend, dtype):
    attention, inputs = build_small(name, causal, backend).to(dtype), qkv(T, dtype=dtype)
    out, _ = run_steps(attention, inputs, STEPS)
    assert out.dtype == dtype
    exact = attention.double()(*(x.double() for x in inputs))
    assert_near(out.double(), exact, "output", TOLERANCE[dtype])


@every_stepping_mechanism
def test_cache_rows_are_independent(name, causal, backend):
    attention, inputs = build_small(name, causal, backend), qkv(T)
    mask = key_masks(T)["holes"]
    out, _ = run_steps(attention, inputs, STEPS, mask)
    for b in range(3):
        row = slice(b, b + 1)
        alone, _ = run_steps(attention, [x[row] for x in inputs], STEPS, mask[row])
        assert_near(out[row], alone, f"row {b}")


@every_stepping_mechanism
def test_cache_of_different_shape_is_rejected(name, causal, backend):
    attention = build_small(name, causal, backend)
    _, cache = attention.step(*qkv(5), None)
    with pytest.raises(InputError, match=r"the cache requires \(B, H, D, E\) = \(3, 3, 8, 8\)"):
        attention.step(*qkv(1, B=2), cache)
    with pytest.raises(InputError, match="as many queries as keys, got T=1 and S=4"):
        attention.step(*qkv(1, 4), cache)


@functools.cache
def caches_of_all():
    """Return a cache of each mechanism."""
    names = [name for name, cls in MECHANISMS.items() if cls.traits.causal]
    return {name: build_small(name, True).step(*qkv(5))[1] for name in names}


@every_stepping_mechanism
def test_cache_of_other_mechanism_or_options_is_rejected(name, causal, backend):
    attention, inputs = build_small(name, causal, backend), qkv(5)
    others = [(other, cache) for other, cache in caches_of_all().items() if other != name]
    if (option := attention.size_option) is not None:
        size = 6 if MECHANISMS[name].small_options.get(option) == 5 else 5
        others.append((name, build_small(name, True, **{option: size}).step(*inputs)[1]))
    for other, cache in others:
        with pytest.raises(InputError, match=rf"the cache was made by {other}\(.*, not by {name}"):
            attention.step(*inputs, cache)
    _, cache = build_small(name, causal, backend).step(*inputs)
    assert attention.step(*inputs, cache)[1].length == 10


@every_stepping_mechanism
def test_cache_of_other_dtype_is_rejected(name, causal, backend):
    attention = build_small(name, causal, backend)
    _, cache = attention.step(*qkv(5))
    with pytest.raises(InputError, match=r"the cache requires torch\.float64, got torch\.float32"):
        attention.float().step(*qkv(1, dtype=torch.float32), cache)


@every_stepping_mechanism
def test_cache_on_other_device_is_rejected(name, causal, backend):
    attention = build_small(name, causal, backend)
    _, cache = attention.step(*qkv(5))
    if not cache.state:
        pytest.skip("no state")
    moved = cache.to("meta")
    assert all(x.is_meta for x in moved.state.values())
    with pytest.raises(InputError, match=r"the cache is on meta, the inputs on cpu; use cache\.to"):
        attention.step(*qkv(1), moved)


@every_stepping_mechanism
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_selected_rows_continue_their_sequences(name, causal, backend, kind):
    attention, inputs, mask = build_small(name, causal, backend), qkv(T, E=5), key_masks(T)[kind]
    begin, rows = 43, torch.tensor([2, 0, 2, 2])
    _, cache = run_steps(attention, inputs, (begin,), mask)
    own = None if mask is None else mask[rows]
    out, _ = run_steps(
        attention, [x[rows] for x in inputs], (T - begin,), own, cache.select_rows(rows)
    )
    assert_near(out, attention(*inputs, mask)[rows, :, begin:], kind)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([0, 3]), "rows must be between 0 and 2, got 0 to 3"),
        (torch.tensor([-1, 0]), "rows must be between 0 and 2, got -1 to 0"),
        (torch.tensor([[0]]), r"a vector of integers, got torch.int64 of shape \(1, 1\)"),
        (torch.tensor([True, False, True]), r"a vector of integers, got torch.bool of shape"),
    ],
)
def test_selection_of_absent_rows_is_rejected(rows, message):
    _, cache = build_small("local", True).step(*qkv(5))
    with pytest.raises(InputError, match=message):
        cache.select_rows(rows)


@every_stepping_mechanism
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_reset_rows_forget_earlier_tokens(name, causal, backend, kind):
    """Reset rows treat all earlier tokens as padding; other rows keep them."""
    attention, inputs, mask = build_small(name, causal, backend), qkv(T, E=5), key_masks(T)[kind]
    reset_rows, begin = torch.tensor([False, True, False]), 43
    _, cache = run_steps(attention, inputs, steps_of(begin, 20), mask)
    state_before = {n: x.clone() for n, x in cache.state.items()}
    fresh = attention.reset(cache, reset_rows)
    assert all(torch.equal(x, state_before[n]) for n, x in cache.state.items())
    out, _ = run_steps(attention, inputs, steps_of(T - begin, 20), mask, fresh)
    seen = torch.ones(3, T, dtype=torch.bool) if mask is None else mask.clone()
    seen[1, :begin] = False
    assert_near(out, attention(*inputs, seen)[:, :, begin:], kind)


@every_stepping_mechanism
def test_reset_with_invalid_rows_is_rejected(name, causal, backend):
    attention = build_small(name, causal, backend)
    _, cache = attention.step(*qkv(5), None)
    with pytest.raises(InputError, match=r"rows must have shape \(3,\), got \(2,\)"):
        attention.reset(cache, torch.ones(2, dtype=torch.bool))
    with pytest.raises((InputError, TypeCheckError), match="rows"):
        attention.reset(cache, torch.ones(3))


def test_cache_of_another_mechanism_cannot_be_reset():
    made = build("performer", causal=True, heads=HEADS, head_dim=HEAD_DIM).double()
    _, cache = made.step(*qkv(5))
    rows = torch.tensor([True, False, False])
    with pytest.raises(InputError, match=r"the cache was made by performer\(.*, not by linear"):
        build("linear", causal=True).reset(cache, rows)
    assert made.reset(cache, rows).length == 5


def test_instances_made_without_build_refuse_caches_of_each_other():
    cls = MECHANISMS["local"]
    wide, narrow = cls(window=4, causal=True), cls(window=1, causal=True)
    _, cache = wide.step(*qkv(5))
    wide.step(*qkv(1), cache)
    with pytest.raises(InputError, match=r"the cache was made by LocalAttention \d+, not by Local"):
        narrow.step(*qkv(1), cache)


def test_other_types_are_rejected(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    local, (q, k, v) = build("local", causal=True), qkv(4)
    with pytest.raises(InputError, match="cache must be that of a step or None, got tuple"):
        local.step(q, k, v, (1, 2))
    _, cache = local.step(q, k, v)
    with pytest.raises(InputError, match="rows must be a tensor of integers, got list"):
        cache.select_rows([0, 1])
    chosen = cache.select_rows(torch.tensor([2, 0], dtype=torch.uint8))
    assert chosen.state["k"].equal(cache.state["k"][[2, 0]])
    infused = build("position_infused", heads=HEADS, head_dim=HEAD_DIM).double()
    with pytest.raises(InputError, match="layer_input must be a LayerInput, got Tensor"):
        infused(q, k, v, layer_input=q)
    linformer = build("linformer", heads=HEADS, max_length=8, rank=2, sharing="layerwise")
    linformer.release_shared()
    with pytest.raises(InputError, match=r"shared must be \(1, 1, 2, 8\), got \(3, 3\)"):
        linformer.double()(q, k, v, shared=torch.ones(3, 3))


@pytest.mark.parametrize("mask", [torch.ones(3, 5).bool(), torch.ones(3, 4)])
def test_other_masks_of_a_step_are_rejected(mask, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match="local does not support this step: mask must"):
        build("local", causal=True).step(*qkv(4), None, mask)


def test_first_step_of_own_global_projections_requires_layer_input():
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "window": 2}
    longformer = build(
        "longformer", **sizes, first_global=True, global_projections=True, causal=True
    )
    with pytest.raises(InputError, match="the first step, of the global first tokens, requires"):
        longformer.double().step(*qkv(3))


def test_queries_that_choose_rows_are_mixed():
    """Compression by use reads all queries, so a query mask hides rows of the output alone."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "segment": 8, "memory": 4, "ratio": 2}
    attention = build("compressive", **sizes, compression="most_used", causal=True).double()
    assert attention.traits.mixes_queries
    assert not build("compressive", **sizes, causal=True).traits.mixes_queries
    q, k, v = qkv(33)
    hidden = torch.arange(33) % 2 == 1
    mask = ~hidden.expand(3, -1)
    out, every = attention(q, k, v, query_mask=mask), attention(q, k, v)
    assert_near(out[:, :, ~hidden], every[:, :, ~hidden], "visible rows")
