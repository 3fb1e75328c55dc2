"""A budget of memory never chooses a size with which a mechanism is full attention."""

import pytest
import torch

import tiny
from flop_counter import flop_counter
from longspan.arena import budget_resolution, override, replace_budget
from longspan.arena.budget_resolution import apply_budget, find_resolution
from longspan.arena.model import is_dense
from longspan.attention import MECHANISMS, build
from longspan.attention.ops.relative_positions import RelativeAttention
from longspan.config import parse_budget
from longspan.errors import OptionError, RunError
from longspan.tasks import build as build_task

SIZED = [name for name, cls in MECHANISMS.items() if cls.size_option]
# Shorter than most sizes, no multiple of blocks of 16, and a multiple.
LENGTHS = (12, 40, 64)
GIVEN = {"heads": 2, "head_dim": 8}
# Options beside the size that leave room for one at these lengths, and one weight for each pair.
ROOM = {
    "compressive": {"segment": 8, "compressed_memory": 2},
    "convolution": {"kernels": "head"},
    "longformer": {"global_projections": False},
    "native_sparse": {"block": 4, "compressed_block": 2, "window": 3},
    "position_infused": {"segment": 8},
    "transformer_xl": {"segment": 8},
}

# Lengths up to which the smallest size, 8, is full attention.
DENSE_UP_TO = {"bigbird": 40, "moba": 12, "native_sparse": 12, "reformer": 12}


def make(name, size, T, causal=False):
    """Return a mechanism with one value of its size option; None if it refuses it."""
    options = {**GIVEN, "max_length": T, "causal": causal, **ROOM.get(name, {})}
    try:
        return build(name, **options, **{MECHANISMS[name].size_option: size}).eval()
    except OptionError:
        return None


def attended(attention, T):
    """Return the number of pairs with a weight, from the output for the identity as values."""
    q, k, _ = torch.randn(3, 1, 2, T, 8, generator=torch.Generator().manual_seed(0)).unbind()
    weights = attention(q, k, torch.eye(T).expand(1, 2, T, T))
    return int((weights != 0).sum()) // 2


def memory_experiment(name, T):
    """Return an experiment on T tokens whose budget every size fits, and its task."""
    changes = {f"mechanism.{option}": x for option, x in ROOM.get(name, {}).items()}
    changes["task.max_length"] = T + 1
    experiment = replace_budget(tiny.experiment(name, changes=changes), parse_budget("memory=1TB"))
    return experiment, build_task("listops", experiment.config.task.options)


@pytest.mark.parametrize("name", SIZED)
def test_resolved_size_is_never_full_attention(name, monkeypatch):
    monkeypatch.setattr(budget_resolution, "_step_bytes", lambda *given: 1)
    for T in LENGTHS:
        experiment, task = memory_experiment(name, T)
        if DENSE_UP_TO.get(name, 0) >= T:
            with pytest.raises(RunError, match=f"is full attention on {T} tokens"):
                find_resolution(experiment, task)
            continue
        resolved = find_resolution(experiment, task)
        (size,) = resolved.changes.values()
        assert size < T
        config = apply_budget(experiment, resolved).config
        assert not is_dense(config, task)
        attention = build(name, **GIVEN, max_length=T, **config.mechanism.options).eval()
        pairs = attention.pairs(T)
        assert pairs is None or (max(pairs) if isinstance(pairs, tuple) else pairs) < T * T
        if attention.traits.needs_layer_input or attention.traits.inputs != "qkv":
            continue
        q, k, v = torch.randn(3, 1, 2, T, 8, generator=torch.Generator().manual_seed(0)).unbind()
        assert not torch.allclose(attention(q, k, v), build("full")(q, k, v), atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SIZED)
def test_dense_sizes_attend_to_every_pair_and_no_size_takes_more_flops(name, causal):
    if causal and not MECHANISMS[name].traits.causal:
        pytest.skip("not causal")
    for T in LENGTHS:
        for size in (1, 4, 8, 16, 31, T // 2, T - 2, T - 1, T, 2 * T):
            attention = make(name, size, T, causal)
            if attention is None or attention.pairs(T) is None:
                continue
            # Scores of positions, and those of an indexer, are further products.
            if not isinstance(attention, RelativeAttention) and name != "indexed":
                assert attention.flops(T, 8) <= 4 * T * T * 8, (T, size)
            if not attention.traits.needs_layer_input:
                pairs = T * (T + 1) // 2 if causal else T * T
                assert attention.is_dense(T) == (attended(attention, T) >= pairs), (T, size)


@pytest.mark.parametrize("name", ["local", "disjoint", "blockwise", "longformer", "dilated"])
def test_flops_of_short_inputs_are_the_counted_ones(name):
    """The body that runs by default is dense where blocks would gather more than all pairs."""
    for T in (40, 64, 100):
        for size in (16, 31, T // 2, T - 1, T, 2 * T):
            attention = make(name, size, T)
            q, k, v = torch.randn(3, 1, 2, T, 8).unbind()
            with torch.no_grad(), flop_counter() as counter:
                attention(q, k, v)
            assert counter.get_total_flops() == 2 * attention.flops(T, 8), (T, size)


def test_mechanism_without_a_sparse_size_is_refused():
    experiment, task = memory_experiment("transformer_xl", 40)
    experiment = override(experiment, {"mechanism.segment": 512})
    with pytest.raises(
        RunError, match=r"mechanism\.memory=8 is full attention on 40 tokens, and no"
    ):
        find_resolution(experiment, task)
