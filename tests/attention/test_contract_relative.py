"""Numbers of distances added to scores: equal to a bias of all pairs, without T x T memory."""

import jaxtyping
import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    build_small,
    full_and_causal,
    global_masks,
    gradients,
    key_masks,
    mechanisms_where,
    qkv,
    reference_copy,
    run_or_skip,
    run_steps,
    steps_of,
)
from test_contract_traits import Allocations

from longspan.attention import MECHANISMS, RelativeBias, build
from longspan.attention.ops import pattern_base
from longspan.errors import InputError

T, WIDTH, FARTHEST = 33, 5, 80
# Heads of the numbers, and whether they differ between queries.
KINDS = [(1, False), (HEADS, False), (1, True), (HEADS, True)]
every_relative_mechanism = mechanisms_where(lambda name, *_: MECHANISMS[name].traits.relative)
every_stepping_mechanism = mechanisms_where(
    lambda name, causal, backend: causal and MECHANISMS[name].traits.relative
)


def draw_relative(heads=HEADS, by_query=True, B=3, rows=T, width=WIDTH):
    """Draw a table of numbers or vectors of distances, and queries or None."""
    g = torch.Generator().manual_seed(heads + 10 * by_query)
    shape = (heads, 2 * FARTHEST + 1, width) if by_query else (heads, 2 * FARTHEST + 1)
    table = torch.randn(shape, generator=g, dtype=torch.float64)
    queries = torch.randn(B, HEADS, rows, width, generator=g, dtype=torch.float64)
    return table, queries if by_query else None


def as_relative(table, queries):
    return RelativeBias(lambda d: table[:, d.clamp(-FARTHEST, FARTHEST) + FARTHEST], queries)


def as_bias(table, queries, rows=T, keys=T):
    """Return the bias of all pairs, row by row; the last query is at the last key."""
    found = []
    for i in range(rows):
        values = torch.stack([table[:, keys - rows + i - j + FARTHEST] for j in range(keys)], 1)
        found.append(values[None] if queries is None else (queries[:, :, i, None] * values).sum(-1))
    return torch.stack(found, 2)


@every_relative_mechanism
@pytest.mark.parametrize(("heads", "by_query"), KINDS)
def test_numbers_of_distances_equal_a_bias_of_all_pairs(name, causal, backend, heads, by_query):
    attention = build_small(name, causal, backend)
    # One head, and numbers of all queries alike, have each mask once.
    mask = key_masks(T)["holes"] if (heads == 1) == by_query else None
    for global_mask in global_masks(name, T):
        found = []
        for own in ("fast", "reference", "bias"):
            table, queries = draw_relative(heads, by_query)
            extra = [x.requires_grad_() for x in (table, queries) if x is not None]
            inputs = [x.requires_grad_() for x in qkv(T)]
            relative = {"relative": as_relative(table, queries)}
            more = {"bias": as_bias(table, queries)} if own == "bias" else relative
            module = attention if own == "fast" else reference_copy(attention)
            out = run_or_skip(module, *inputs, mask, global_mask=global_mask, **more)
            found.append((out, *gradients(out, inputs + extra, module)))
        assert found[0][4].any(), "no gradient of the numbers"
        for x, y, z in zip(*found, strict=True):
            assert_near(x, z, f"attend, {heads} heads, by query: {by_query}")
            assert_near(y, z, f"reference, {heads} heads, by query: {by_query}")


@every_relative_mechanism
def test_every_length_has_its_distances(name, causal, backend):
    attention = build_small(name, causal, backend)
    for length in (1, 2, 7, 16, 40, 64):
        relative = as_relative(*draw_relative(rows=length))
        for global_mask in global_masks(name, length):
            masks = {"global_mask": global_mask, "relative": relative}
            out = run_or_skip(attention, *qkv(length), **masks)
            assert_near(out, reference_copy(attention)(*qkv(length), **masks), f"T={length}")


@every_stepping_mechanism
@pytest.mark.parametrize("sizes", [(8,), (1, 20), (1,)])
@pytest.mark.parametrize("by_query", [False, True])
def test_steps_with_relative_equal_forward(name, causal, backend, sizes, by_query, monkeypatch):
    monkeypatch.setattr(pattern_base, "PIECE", 6)
    attention, inputs = build_small(name, causal, backend), qkv(T, H=HEADS)
    table, queries = draw_relative(by_query=by_query)

    def relative(rows):
        return as_relative(table, queries if queries is None else queries[:, :, rows])

    mask = key_masks(T)["holes"]
    sizes = [*sizes[:-1], *steps_of(T - sum(sizes[:-1]), sizes[-1])]
    out, _ = run_steps(attention, inputs, sizes, mask, relative=relative)
    expected = attention(*inputs, mask, relative=as_relative(table, queries))
    assert_near(out, expected, "output")


@every_relative_mechanism
def test_padding_and_its_vectors_have_no_influence(name, causal, backend):
    attention, mask = build_small(name, causal, backend), key_masks(T)["ragged"]
    table, queries = draw_relative()
    expected = run_or_skip(attention, *qkv(T), mask, relative=as_relative(table, queries))
    hidden = torch.where(mask[:, None, :, None], queries, torch.nan).requires_grad_()
    out = attention(*qkv(T), mask, relative=as_relative(table, hidden))
    assert_near(out, expected, "output")
    out.sum().backward()
    assert hidden.grad.isfinite().all()


@every_relative_mechanism
def test_memory_of_distances_grows_as_claimed(name, causal, backend):
    """Global tokens included: no tensor of T x T numbers unless the mechanism has them."""
    attention = build_small(name, causal, backend)
    largest = []
    for length in (512, 1024):
        table, queries = draw_relative(B=2, rows=length)
        table, queries = (x.requires_grad_() for x in (table, queries))
        masks = {"global_mask": (torch.arange(length) % (length // 2) == 3).expand(2, -1)}
        relative = as_relative(table, queries)
        with Allocations() as found:
            run_or_skip(attention, *qkv(length, B=2), **masks, relative=relative).sum().backward()
        largest.append((found.largest, found.total))
    claimed = {"T": 2, "T^2": 4}[attention.traits.cost]
    for label, short, long in zip(("largest", "total"), *largest, strict=True):
        assert long <= 1.1 * claimed * short, f"{label}: grew {long / short:.1f} times"


@pytest.mark.parametrize("by_query", [False, True])
def test_heads_with_other_dilations_have_their_own_numbers(by_query):
    options = {"window": 3, "dilation": [1, 3, 1], "heads": HEADS, "head_dim": HEAD_DIM}
    attention = build("longformer", **options, backend="torch").double()
    table, queries = draw_relative(by_query=by_query)
    for mask in global_masks("longformer", T):
        out = attention(*qkv(T), global_mask=mask, relative=as_relative(table, queries))
        bias = as_bias(table, queries).expand(3, -1, -1, -1).contiguous()
        expected = reference_copy(attention)(*qkv(T), global_mask=mask, bias=bias)
        assert_near(out, expected, "output")


@pytest.mark.parametrize("width", [1, 300])
def test_sink_tokens_keep_their_distance(width):
    """Steps ask for few distances, however long the text; narrow and wide vectors agree."""
    options = {"window": 4, "first_global": 2, "heads": HEADS, "head_dim": HEAD_DIM}
    attention = build("longformer", causal=True, backend="torch", **options).double()
    table, queries = draw_relative(rows=60, width=width)
    queries, inputs, asked = queries / width, qkv(60), []

    def relative(rows):
        of_distance = as_relative(table, None).of_distance
        return RelativeBias(lambda d: asked.append(len(d)) or of_distance(d), queries[:, :, rows])

    expected = attention(*inputs, relative=relative(slice(None)))
    first, cache = run_steps(attention, inputs, (50,), relative=relative)
    asked.clear()
    others, _ = run_steps(attention, inputs, (5, 1, 4), cache=cache, relative=relative)
    assert_near(torch.cat([first, others], 2), expected, "output")
    # 2 sinks, 4 keys of the window; 5 queries see 5 distances of each sink and 9 of the others.
    assert asked[0] <= 19
    assert asked[1] == 7


def test_wide_vectors_are_not_gathered_for_every_key():
    """A global row sees all keys; it has one product with each distance, not a copy of it."""
    table, queries = draw_relative(rows=64, width=100)
    with Allocations() as found:
        as_relative(table, queries).rows(torch.tensor([[3], [9], [5]]), 64)
    assert found.largest < 3 * HEADS * 64 * 100 * 8


def test_short_inputs_run_in_blocks():
    """The dense body of short inputs takes no bias."""
    attention, relative = build("local", window=64), as_relative(*draw_relative())
    out = attention(*qkv(T), relative=relative)
    assert attention.backend_used == "torch"
    assert_near(out, reference_copy(attention)(*qkv(T), relative=relative), "output")
    attention(*qkv(T))
    assert attention.backend_used == "dense"


@full_and_causal
def test_fewer_queries_are_at_the_last_keys(causal):
    q, *_ = qkv(9)
    _, k, v = qkv(T)
    table, queries = draw_relative(rows=9)
    attention = build("full", causal=causal)
    out = attention(q, k, v, relative=as_relative(table, queries))
    expected = attention(q, k, v, bias=as_bias(table, queries, 9, T))
    assert_near(out, expected, "output")


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (torch.zeros(3, HEADS, T), r"must be \(B, H, T, W\) with \(3, 3, 33\)"),
        (torch.zeros(3, 1, T, 2).double(), r"got \(3, 1, 33, 2\)"),
        (torch.zeros(3, HEADS, T, 2), "must be torch.float64 on cpu, got torch.float32 on cpu"),
        ([1.0], "relative.queries must be a tensor, got list"),
        (None, "relative must be a RelativeBias, got str"),
    ],
)
@pytest.mark.parametrize("step", [False, True])
def test_other_objects_are_rejected(queries, message, step, monkeypatch):
    attention = build("local", causal=True)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    relative = "t5" if queries is None else RelativeBias(len, queries)
    with pytest.raises(InputError, match=message):
        (attention.step if step else attention)(*qkv(T), relative=relative)


def test_bias_and_relative_exclude_each_other():
    relative, bias = as_relative(*draw_relative()), torch.zeros(1, 1, T, T).double()
    with pytest.raises(InputError, match="relative excludes bias; add both in one bias"):
        build("local")(*qkv(T), relative=relative, bias=bias)
