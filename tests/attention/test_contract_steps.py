"""Step by step, a causal mechanism gives what it gives the whole sequence at once."""

import pytest
import torch
from contract import TOLERANCE, assert_near, built, every_mechanism, gradients, key_masks, qkv
from jaxtyping import TypeCheckError

from longspan.errors import InputError

STEPS = (1, 1, 7, 1, 23, 8, 1, 33, 2, 23)  # one token, or many at once, in any order
T = sum(STEPS)


def causal_only(causal, backend):
    if not causal or backend != "torch":
        pytest.skip("steps belong to causal mechanisms, and have one body")


def stepped(attention, inputs, mask=None):
    """Outputs of all steps, and the last cache."""
    outs, cache, start = [], None, 0
    for size in STEPS:
        rows = slice(start, start + size)
        own = None if mask is None else mask[:, rows]
        out, cache = attention.step(*(x[:, :, rows] for x in inputs), cache, own)
        outs.append(out)
        start += size
    return torch.cat(outs, 2), cache


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_steps_equal_the_whole_sequence(name, causal, backend, kind):
    causal_only(causal, backend)
    attention, mask = built(name, causal, backend), key_masks(T)[kind]
    inputs = qkv(T, E=5)
    out, cache = stepped(attention, inputs, mask)
    assert cache.length == T
    assert_near(out, attention(*inputs, mask), kind)


@every_mechanism
def test_a_mask_may_begin_late_and_end_early(name, causal, backend):
    causal_only(causal, backend)
    attention, inputs, mask = built(name, causal, backend), qkv(T), key_masks(T)["holes"].clone()
    outs, cache = [], None
    for n, rows in enumerate(torch.arange(T).split(20)):
        own = mask[:, rows] if n % 2 else None
        mask[:, rows] |= own is None
        out, cache = attention.step(*(x[:, :, rows] for x in inputs), cache, own)
        outs.append(out)
    assert_near(torch.cat(outs, 2), attention(*inputs, mask), "output")


@every_mechanism
def test_gradients_flow_through_the_cache(name, causal, backend):
    causal_only(causal, backend)
    if built(name, causal, backend).detaches_memory:
        pytest.skip("no gradient passes into its memory")
    attention = built(name, causal, backend)
    inputs = [x.requires_grad_() for x in qkv(T)]
    found = gradients(stepped(attention, inputs)[0], inputs, attention)
    wanted = gradients(attention(*inputs), inputs, attention)
    for a, b in zip(found, wanted, strict=True):
        assert_near(a, b, "gradient")


@every_mechanism
def test_a_step_changes_neither_the_cache_nor_the_module(name, causal, backend):
    causal_only(causal, backend)
    attention, inputs = built(name, causal, backend), qkv(T)
    _, cache = stepped(attention, inputs)
    before = {n: x.clone() for n, x in (cache.state | attention.state_dict()).items()}
    for new in (qkv(3, seed=1), qkv(1, seed=2)):
        first, _ = attention.step(*new, cache)
        again, _ = attention.step(*new, cache)
        assert torch.equal(first, again)
    for n, x in (cache.state | attention.state_dict()).items():
        assert torch.equal(x, before[n]), n
    detached = cache.detach().state
    assert all(torch.equal(x, detached[n]) for n, x in cache.state.items())


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_keep_the_dtype(name, causal, backend, dtype):
    causal_only(causal, backend)
    attention, inputs = built(name, causal, backend).to(dtype), qkv(T, dtype=dtype)
    out, _ = stepped(attention, inputs)
    assert out.dtype == dtype
    exact = attention.double()(*(x.double() for x in inputs))
    assert_near(out.double(), exact, "output", TOLERANCE[dtype])


@every_mechanism
def test_rows_of_a_cache_are_independent(name, causal, backend):
    causal_only(causal, backend)
    attention, inputs = built(name, causal, backend), qkv(T)
    mask = key_masks(T)["holes"]
    out, _ = stepped(attention, inputs, mask)
    for b in range(3):
        row = slice(b, b + 1)
        alone, _ = stepped(attention, [x[row] for x in inputs], mask[row])
        assert_near(out[row], alone, f"row {b}")


@every_mechanism
def test_a_cache_of_other_inputs_is_refused(name, causal, backend):
    causal_only(causal, backend)
    attention = built(name, causal, backend)
    _, cache = attention.step(*qkv(5), None)
    with pytest.raises(InputError, match=r"the cache requires \(B, H, D, E\) = \(3, 3, 8, 8\)"):
        attention.step(*qkv(1, B=2), cache)
    with pytest.raises(InputError, match="as many queries as keys, got T=1 and S=4"):
        attention.step(*qkv(1, 4), cache)


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_chosen_rows_of_a_cache_forget(name, causal, backend, kind):
    """Such rows go on as if all their tokens so far had been padding; the others go on."""
    causal_only(causal, backend)
    attention, inputs, mask = built(name, causal, backend), qkv(T, E=5), key_masks(T)[kind]
    forgets, begin, cache = torch.tensor([False, True, False]), 43, None
    for rows in torch.arange(begin).split(20):
        own = None if mask is None else mask[:, rows]
        _, cache = attention.step(*(x[:, :, rows] for x in inputs), cache, own)
    kept = {n: x.clone() for n, x in cache.state.items()}
    fresh, outs = attention.reset(cache, forgets), []
    assert all(torch.equal(x, kept[n]) for n, x in cache.state.items())
    for rows in torch.arange(begin, T).split(20):
        own = None if mask is None else mask[:, rows]
        out, fresh = attention.step(*(x[:, :, rows] for x in inputs), fresh, own)
        outs.append(out)
    seen = torch.ones(3, T, dtype=torch.bool) if mask is None else mask.clone()
    seen[1, :begin] = False
    assert_near(torch.cat(outs, 2), attention(*inputs, seen)[:, :, begin:], kind)


@every_mechanism
def test_a_reset_of_another_batch_is_refused(name, causal, backend):
    causal_only(causal, backend)
    attention = built(name, causal, backend)
    _, cache = attention.step(*qkv(5), None)
    with pytest.raises(InputError, match=r"rows must have shape \(3,\), got \(2,\)"):
        attention.reset(cache, torch.ones(2, dtype=torch.bool))
    with pytest.raises((InputError, TypeCheckError), match="rows"):
        attention.reset(cache, torch.ones(3))
