"""Growth of the time of a step and of the state with the tokens seen: traits that are counted."""

import math

import pytest
import torch
from contract import HEAD_DIM, HEADS, build_small, every_stepping_mechanism, qkv
from test_contract_traits import own_size
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longspan.attention import build
from longspan.attention.cache import append_tokens
from longspan.attention.hooks import MechanismHooks
from longspan.attention.ops.pattern_base import Kept

SHORT, LONG, STEPS = 128, 1024, 70  # STEPS: enough for a block of any kind and a larger memory
TOKENS = math.log((LONG + STEPS) / (SHORT + STEPS))
LOG = math.log(math.log(LONG + STEPS) / math.log(SHORT + STEPS)) / TOKENS  # of log T, at this T
EXPONENT = {
    "1": 0.0,
    "log T": LOG,
    "T^0.5": 0.5,
    "T": 1.0,
    "T log T": 1 + LOG,
    "T^1.5": 1.5,
    "T^2": 2.0,
}
# They read as many numbers as they return, whatever the size of the tensor that they select from.
SELECTIONS = ("index", "index_select", "gather", "embedding")
WRITES = ("scatter_", "scatter_add_", "index_put_", "index_copy_")  # as many as their source
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided")


class CountNumbers(TorchDispatchMode):
    """Numbers that operations read and write; views cost nothing, copies and sorting do."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ALLOCATIONS:
            self.numbers += sum(self._counted(name, out, args, kwargs))
        return out

    def _counted(self, name, out, args, kwargs):
        if name in WRITES:
            given = args[1:]
        else:
            given = (out,) if name in SELECTIONS else (out, args, kwargs)
        return [x.numel() for x in tree_leaves(given) if isinstance(x, torch.Tensor)]


def per_step(attention, T):
    """Return the mean numbers of a step of one token after T, and the largest state."""
    parts = zip(*(x.split([T, 1, *(1,) * STEPS], 2) for x in qkv(T + 1 + STEPS, B=1)), strict=True)
    first, begun, *others = parts
    attention.eval()
    with torch.no_grad():
        cache = attention.step(*begun, attention.step(*first)[1])[1]
        sizes = []
        with CountNumbers() as work:
            for part in others:
                cache = attention.step(*part, cache)[1]
                sizes.append(sum(x.numel() for x in cache.state.values()))
    return work.numbers / STEPS, max(sizes)


def exponents(make):
    """Return the exponents of T in the time of a step, and in the size of the state."""
    pairs = [per_step(make(T), T) for T in (SHORT, LONG)]
    # One number more, since a state may be empty.
    return [math.log((long + 1) / (short + 1)) / TOKENS for short, long in zip(*pairs, strict=True)]


def check_growth(make):
    traits = make(SHORT).traits
    time, state = exponents(make)
    assert time <= EXPONENT[traits.step_cost] + 0.15, (
        f"the time of a step grows as T^{time:.2f}, traits.step_cost is {traits.step_cost!r}; "
        "override advance, or declare Traits(recomputes=True)"
    )
    found = min(("1", "T^0.5", "T"), key=lambda name: abs(EXPONENT[name] - state))
    assert found == traits.state_size, (
        f"the state grows as T^{state:.2f}; declare Traits(state_size={found!r})"
    )


@every_stepping_mechanism
@pytest.mark.parametrize("kind", ["none", "fixed size"])
def test_steps_and_state_grow_as_claimed(name, causal, backend, kind):
    options = own_size(name, kind)
    check_growth(lambda T: build_small(name, True, max_length=T + STEPS + 1, **options).float())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bigbird", {"num_random_blocks": 0}),
        ("sparse_transformer", {"kind": "fixed", "summary": 2}),
        ("sparse_transformer", {"kind": "fixed", "summary": 2, "stride": 12}),
        ("sparse_transformer", {"head_patterns": "alternating"}),
        ("sparse_transformer", {"head_patterns": "alternating", "layer": 1}),
        ("sparse_transformer", {"head_patterns": "alternating", "stride": 12}),
        ("long_short", {"segment_rank": 0}),
        ("longformer", {"first_global": 3}),
        ("reformer", {"grid": 8}),
        ("reformer", {"dedupe": True}),
        ("sinkhorn", {"sorting": "linear"}),
        ("performer", {"feature_map": "relu"}),
        ("compressive", {"compression": "most_used"}),
        ("synthesizer", {"scores": "random"}),
    ],
    ids=str,
)
def test_options_that_change_the_growth_change_the_claim(name, options):
    check_growth(lambda T: build_small(name, True, max_length=T + STEPS + 1, **options).float())


def test_a_step_that_computes_all_rows_again_breaks_the_claim(monkeypatch):
    attention = build_small("sinkhorn", True)
    monkeypatch.setattr(type(attention), "advance", MechanismHooks.advance)
    with pytest.raises(AssertionError, match=r"the time of a step grows as T\^1\.\d+, traits\.ste"):
        check_growth(lambda T: build_small("sinkhorn", True, max_length=T + STEPS + 1).float())


def test_a_state_that_keeps_every_token_breaks_the_claim(monkeypatch):
    attention = build("local", causal=True, window=5)

    def every_token(self, length):
        return Kept([], 0, length)

    monkeypatch.setattr(type(attention), "kept_positions", every_token)
    with pytest.raises(
        AssertionError, match=r"declare Traits\(state_size='T'\)|the time of a step"
    ):
        check_growth(lambda T: build("local", causal=True, window=5))


def test_the_count_sees_copies_and_sorting_but_no_views():
    x, counts = torch.randn(1, HEADS, 100, HEAD_DIM), []
    index = torch.zeros(7, dtype=torch.long)
    for run in (
        lambda: x[:, :, 3:].mT.expand(5, -1, -1, -1),
        lambda: x.index_select(2, index),
        lambda: torch.cat([x, x], 2),
        lambda: x.sort(2),
        lambda: append_tokens(None, {"k": x}, None, grows=True),
    ):
        with CountNumbers() as work:
            run()
        counts.append(work.numbers // (HEADS * HEAD_DIM))
    assert counts == [0, 7, 400, 300, 0]
