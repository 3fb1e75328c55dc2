"""Caches of windows, with and without sink tokens: as small as the receptive field."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    key_masks,
    qkv,
    reference_copy,
    run_steps,
    weights_of,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longspan.attention import build
from longspan.attention.cache import MOST_UNUSED

T, SINKS, WINDOW, BLOCK = 80, 4, 6, 5
LONGFORMER = {"heads": HEADS, "head_dim": HEAD_DIM, "window": WINDOW}
BIGBIRD = {"heads": HEADS, "max_length": T, "block": BLOCK, "num_random_blocks": 0}
WINDOWS = {
    "local": ("local", {"window": WINDOW}, WINDOW),
    "dilated": ("dilated", {"heads": HEADS, "window": WINDOW, "dilation": 3}, 3 * WINDOW),
    "longformer": ("longformer", LONGFORMER, WINDOW),
    "one sink": ("longformer", {**LONGFORMER, "first_global": True}, WINDOW + 1),
    "sinks": ("longformer", {**LONGFORMER, "first_global": SINKS}, WINDOW + SINKS),
}
BLOCKS = {  # the cache grows within a block and shrinks at its end
    "blockwise": ("blockwise", {"block": 2 * BLOCK}, range(BLOCK, 3 * BLOCK)),
    "bigbird": ("bigbird", BIGBIRD, range(2 * BLOCK, 3 * BLOCK)),
    "given blocks": ("bigbird", {**BIGBIRD, "sampling": "given"}, range(2 * BLOCK, 3 * BLOCK)),
}
CASES = BLOCKS | {n: (name, own, range(k, k + 1)) for n, (name, own, k) in WINDOWS.items()}
every_case = pytest.mark.parametrize(("name", "options", "keys"), CASES.values(), ids=list(CASES))


def run_and_count_keys(attention, inputs, mask, sizes):
    """Return the outputs of all steps, and the number of cached keys after each."""
    outs, counts, cache = [], [], None
    for size in sizes:
        out, cache = run_steps(attention, inputs, (size,), mask, cache)
        outs.append(out)
        counts.append(cache.state["k"].shape[2])
        assert {x.shape[1 if n == "real" else 2] for n, x in cache.state.items()} == {counts[-1]}
    return torch.cat(outs, 2), counts


@every_case
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("none", (1,) * T),
        ("ragged", (37,) + (1,) * (T - 37)),
        *((kind, (2, 1, 33, 14, T - 50)) for kind in ("none", "ragged", "holes")),
    ],
    ids=["ones", "prompt", "mix-none", "mix-ragged", "mix-holes"],
)
def test_steps_over_a_bounded_cache_equal_forward(name, options, keys, kind, sizes):
    attention, inputs, mask = build(name, causal=True, **options), qkv(T), key_masks(T)[kind]
    attention = attention.double()
    out, counts = run_and_count_keys(attention, inputs, mask, sizes)
    assert_near(out, attention(*inputs, mask), "forward", 1e-12)
    assert_near(out, reference_copy(attention)(*inputs, mask), "reference")
    assert max(counts) in keys
    assert counts[-1] in keys


def test_random_blocks_need_every_key():
    attention = build("bigbird", causal=True, **{**BIGBIRD, "num_random_blocks": 1}).double()
    _, cache = attention.step(*qkv(T))
    assert cache.state["k"].shape[2] == T


def test_sinks_are_attended_from_any_distance():
    """Attention sinks of Xiao et al. 2024: the first tokens and a window, nothing between."""
    attention = build("longformer", causal=True, **LONGFORMER, first_global=SINKS).double()
    weights = weights_of(attention, *qkv(T)[:2])
    key, query = torch.arange(T), torch.arange(T)[:, None]
    expected = (key <= query) & ((key < SINKS) | (query - key <= WINDOW))
    assert torch.equal(weights > 0, expected.expand_as(weights))


@pytest.mark.parametrize("window", [6, 40])
@pytest.mark.parametrize("prompt", [1, 140])
def test_cache_holds_no_memory_of_dropped_tokens(window, prompt):
    """A view of few tokens would keep the memory of a whole prompt."""
    attention, cache = build("local", causal=True, window=window).double(), None
    for part in zip(*(x.split([prompt] + [1] * 10, 2) for x in qkv(prompt + 10)), strict=True):
        cache = attention.step(*(x.clone() for x in part), cache)[1]
        for x in cache.state.values():
            assert x.untyped_storage().nbytes() <= x.nbytes * (1 + 1 / MOST_UNUSED)


def test_a_growing_state_has_free_places_for_later_tokens():
    attention, cache, copies = build("full", causal=True).double(), None, 0
    for part in zip(*(x.split([320] + [1] * 80, 2) for x in qkv(400)), strict=True):
        before = None if cache is None else cache.state["k"].untyped_storage().data_ptr()
        cache = attention.step(*part, cache)[1]
        copies += cache.state["k"].untyped_storage().data_ptr() != before
    assert copies <= 6  # one for each 16th of the tokens
    assert cache.state["k"].untyped_storage().nbytes() <= 400 * (1 + 1 / MOST_UNUSED) * 3 * 24 * 8


@pytest.mark.parametrize("name", ["full", "sinkhorn", "bigbird", "reformer", "sparse_transformer"])
def test_branches_of_a_growing_state_are_independent(name):
    """Two texts continue one cache in turns: what one writes must not reach the other."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": T}
    attention = build(name, causal=True, **sizes).double()
    first, other = qkv(T), qkv(T, seed=1)
    second = [torch.cat([x[:, :, :60], y[:, :, 60:]], 2) for x, y in zip(first, other, strict=True)]
    _, trunk = run_steps(attention, first, (50,) + (1,) * 10)
    caches, outs = [trunk, trunk], [[], []]
    for _ in range(60, T):
        for n, inputs in enumerate((first, second)):
            out, caches[n] = run_steps(attention, inputs, (1,), cache=caches[n])
            outs[n].append(out)
    for inputs, found in zip((first, second), outs, strict=True):
        assert_near(torch.cat(found, 2), attention(*inputs)[:, :, 60:], "branch")


def test_steps_outside_the_inference_mode_continue_a_state_of_it():
    attention, inputs = build("full", causal=True).double(), qkv(T)
    with torch.inference_mode():
        _, cache = run_steps(attention, inputs, (60, 1, 1, 1))
    out, _ = run_steps(attention, inputs, (1, 1), cache=cache)
    assert_near(out, attention(*inputs)[:, :, 63:65], "output")


def test_graphs_of_earlier_steps_stay_valid_when_the_state_grows():
    attention, (q, k, v) = build("full", causal=True).double(), qkv(T)
    _, cache = run_steps(attention, (q, k, v), (60, 1))
    q.requires_grad_()
    out, cache = run_steps(attention, (q, k, v), (1,), cache=cache)
    run_steps(attention, (q, k, v), (1,), cache=cache)
    (found,) = torch.autograd.grad(out.square().sum(), q)
    whole = attention(q, k, v)[:, :, 61:62]
    assert_near(found, torch.autograd.grad(whole.square().sum(), q)[0], "gradient")


class CountWork(TorchDispatchMode):
    """Number of operations, and of the numbers in their outputs."""

    operations = numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        self.numbers += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


@pytest.mark.parametrize("name", WINDOWS)
def test_steps_do_equal_work_after_any_prefix(name):
    mechanism, options, _ = WINDOWS[name]
    attention, inputs, found = build(mechanism, causal=True, **options).double(), qkv(T), []
    for prefix in (30, 70):
        _, cache = attention.step(*(x[:, :, :prefix] for x in inputs))
        with CountWork() as work:
            attention.step(*(x[:, :, prefix : prefix + 1] for x in inputs), cache)
        found.append((work.operations, work.numbers))
    assert found[0] == found[1]
