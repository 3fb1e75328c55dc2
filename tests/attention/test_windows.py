"""Windows: sliding (`local`), overlapping blocks (`blockwise`), separate blocks (`disjoint`)."""

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    assert_near,
    check_contract,
    full_and_causal,
    global_masks,
    key_masks,
    qkv,
)

from flop_counter import flop_counter
from longspan import build
from longspan.attention.ops.softmax import softmax_reference

WINDOWED = [("local", {"window": 4}), ("blockwise", {"block": 8}), ("disjoint", {"block": 8})]
every_window = pytest.mark.parametrize(("name", "options"), WINDOWED, ids=[n for n, _ in WINDOWED])


def published_mask(name, size, T):
    """Build the mask from the definition in the paper, pair by pair."""
    overlap = size // 2 if name == "blockwise" else 0

    def allowed(i, j):
        if name == "local":
            return abs(i - j) <= size
        c = i // size
        return c * size - overlap <= j < (c + 1) * size + overlap

    return torch.tensor([[allowed(i, j) for j in range(T)] for i in range(T)])


@full_and_causal
@pytest.mark.parametrize(
    ("name", "option", "size"),
    [("local", "window", w) for w in (0, 1, 8, 70, 200)]
    + [(n, "block", b) for n in ("blockwise", "disjoint") for b in (1, 2, 7, 8, 33, 90)],
)
def test_equals_softmax_over_published_pairs(name, option, size, causal):
    attention = build(name, causal=causal, **{option: size})
    for T in (1, 7, 8, 9, 33, 71, 96):
        mask = published_mask(name, size, T)
        mask = mask.tril() if causal else mask
        inputs = qkv(T)
        assert_near(attention(*inputs), softmax_reference(*inputs, mask), f"T={T}")
        assert attention.pairs(T) == int(mask.sum())


@every_window
@full_and_causal
def test_global_tokens_attend_to_all_and_are_attended_by_all(name, options, causal):
    size = next(iter(options.values()))
    attention = build(name, causal=causal, **options)
    T = 45
    for kind, key_mask in key_masks(T).items():
        global_mask = global_masks(name, T)[1]
        assert len(set(global_mask.sum(1).tolist())) == 3, "the rows are not ragged"
        q, k, v = qkv(T)
        mask = (
            published_mask(name, size, T)
            | global_mask[:, None, :, None]
            | global_mask[:, None, None, :]
        )
        if key_mask is not None:
            mask = mask & key_mask[:, None, None, :] & key_mask[:, None, :, None]
        mask = mask.tril() if causal else mask
        expected = softmax_reference(q, k, v, mask)
        assert_near(attention(q, k, v, key_mask, global_mask=global_mask), expected, kind)


@every_window
def test_window_longer_than_the_sequence_has_bounded_flops(name, options):
    option, T = next(iter(options)), 40
    with flop_counter() as counter:
        build(name, **{option: 100_000})(*qkv(T))
    assert counter.get_total_flops() <= 9 * 4 * T * T * HEAD_DIM


def circle(**options):
    return build("blockwise", **{"block": 4, "neighbors": [1, 1], "grid": 12, **options}).double()


@pytest.mark.parametrize(
    "options",
    [
        {"neighbors": [2, 0], "causal": True},
        {"neighbors": [1, 1], "circle": False},
        {"neighbors": [0, 2], "circle": False},
    ],
    ids=str,
)
def test_neighbors_obey_contract(options):
    check_contract(circle(**options), lengths=(1, 8, 33))


@pytest.mark.parametrize("neighbors", [[1, 0], [0, 2], [2, 1]], ids=str)
def test_circle_equals_its_reference(neighbors):
    attention = circle(neighbors=neighbors)
    for T in (1, 3, 12, 17, 33):
        q, k, v = qkv(T)
        for mask in key_masks(T).values():
            attention.backend = "reference"
            expected = attention(q, k, v, mask)
            attention.backend = "torch"
            assert_near(attention(q, k, v, mask), expected, "output")


@pytest.mark.parametrize("neighbors", [[1, 0], [1, 1], [3, 0]])
@pytest.mark.parametrize("grid", [4, 12])
def test_circle_equals_shifted_blocks(neighbors, grid):
    T, (before, after) = 26, neighbors
    (q, k, v), size = qkv(T), -(-T // grid) * grid
    chunks = [F.pad(x, (0, 0, 0, size - T)).unflatten(2, (-1, 4)) for x in (q, k, v)]
    real = (torch.arange(size) < T).view(1, 1, -1, 4, 1).expand(3, 3, -1, -1, 1)
    shifts = range(before, -after - 1, -1)
    keys, values, seen = (
        torch.cat([x.roll(shift, 2) for shift in shifts], 3) for x in (*chunks[1:], real)
    )
    scores = (chunks[0] @ keys.mT / q.shape[-1] ** 0.5).masked_fill(~seen.mT, -torch.inf)
    expected = (scores.softmax(-1) @ values).flatten(2, 3)[:, :, :T]
    attention = circle(neighbors=neighbors, grid=grid)
    assert_near(attention(q, k, v), expected, "output")
    counts = attention._counts(T)
    assert attention.pairs(T) == counts.sum()
    assert attention.backend_used == "torch"
