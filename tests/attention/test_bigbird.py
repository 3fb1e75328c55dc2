"""BigBird: sets of blocks, drawn once, independent of padding."""

import itertools
from collections import Counter

import pytest
import torch
from contract import HEADS, assert_near, check_contract, full_and_causal, qkv, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.patterns.block_rule import BlockRule

# Runtime type checks use `random`; the strategies do not.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


def bigbird(heads=HEADS, max_length=128, block=4, **options):
    return build("bigbird", heads=heads, max_length=max_length, block=block, **options).double()


def nonzero_weights(attention, T):
    """Return the pairs with a nonzero weight (H, T, T) in the backend `torch`."""
    q, k, _ = qkv(T, B=1, H=len(attention.draws))
    return weights_of(attention, q, k)[0] != 0


def block_sets(attention, N):
    """Return the key blocks of each query block of each head; check that no block is split."""
    b = attention.rule.block
    pairs = (
        nonzero_weights(attention, N * b).unflatten(2, (N, b)).unflatten(1, (N, b)).transpose(2, 3)
    )
    assert (pairs == pairs[..., :1, :1]).all(), "a block is split"
    return [[{J for J in range(N) if row[J, 0, 0]} for row in head] for head in pairs]


@pytest.mark.parametrize("global_blocks", ["ends", "first"])
@pytest.mark.parametrize("r", [0, 1, 3, 50])
def test_blocks_are_window_ends_and_r_others(r, global_blocks):
    for N in (1, 2, 3, 4, 5, 6, 7, 12, 25):
        ends = {0, N - 1} if global_blocks == "ends" else {0}
        for head in block_sets(bigbird(num_random_blocks=r, global_blocks=global_blocks), N):
            for row, found in enumerate(head):
                near = {row - 1, row, row + 1} & set(range(N))
                others = set(range(N)) - near - ends
                if row in ends:
                    assert found == set(range(N))
                    continue
                assert found >= near | ends
                assert len(found - near - ends) == min(r, len(others)), (N, row)


def test_causal_blocks_are_in_the_past():
    pairs = nonzero_weights(bigbird(num_random_blocks=2, causal=True), 64)
    assert not pairs.triu(1).any()
    pairs = pairs.unflatten(2, (16, 4))
    for t in range(64):
        blocks = pairs[:, t].any(-1)
        past = max(t // 4 - 2, 0)  # blocks between the first one and the window
        assert (blocks.sum(1) == min(t // 4 + 1, 3) + min(2, past)).all(), t
        assert blocks[:, sorted({0, max(t // 4 - 1, 0), t // 4})].all()
        per_block = pairs[:, t, : t // 4].sum(-1)
        assert ((per_block == 0) | (per_block == 4)).all()
        assert (pairs[:, t, t // 4].sum(-1) == t % 4 + 1).all()


OPTIONS = [
    {"num_random_blocks": 0},
    {"block": 3, "num_random_blocks": 40},
    {"global_blocks": "first", "num_random_blocks": 2},
    {"num_random_blocks": 2, "sampling": "original"},
    {"block": 100},
    {"form": "etc", "global_tokens": 3},
    {"form": "etc", "global_tokens": 6, "num_random_blocks": 2},
    {"form": "etc", "num_random_blocks": 2},
    {"form": "etc", "global_tokens": 200},
    {"causal": True, "num_random_blocks": 0},
    {"causal": True, "block": 3, "num_random_blocks": 40},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_obeys_contract(options):
    check_contract(bigbird(**options), lengths=(1, 9, 33, 50))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pairs_are_counted_per_head(options):
    attention = bigbird(**options)
    for T in (1, 5, 8, 33, 64):
        assert attention.pairs(T) == tuple(nonzero_weights(attention, T).sum((1, 2)).tolist()), T


def test_pairs_take_no_quadratic_memory():
    T, b, r = 1 << 18, 64, 3
    # The windows of rows 1 and N - 2 contain a global block.
    middle = (T // b - 4) * (5 + r) + 2 * (4 + r)
    pairs = bigbird(block=b, max_length=T).pairs(T)
    assert pairs == (middle * b * b + 2 * b * T,) * HEADS


@full_and_causal
def test_more_random_blocks_than_exist_equals_full_attention(causal):
    for T in (1, 9, 40, 77):
        inputs = qkv(T)
        full = build("full", causal=causal)(*inputs)
        assert_near(bigbird(num_random_blocks=30, causal=causal)(*inputs), full, f"T={T}")


def test_short_input_equals_full_attention():
    inputs = qkv(64)  # four blocks: two ends and a window over both others
    assert_near(bigbird(block=16, num_random_blocks=0)(*inputs), build("full")(*inputs), "output")
    assert not torch.equal(bigbird(block=12, num_random_blocks=0)(*inputs), build("full")(*inputs))


def test_heads_draw_different_blocks():
    for N in (10, 25):
        first, second, third = block_sets(bigbird(num_random_blocks=2), N)
        assert first != second != third != first
    assert (
        len({tuple(x.flatten().tolist()) for x in bigbird(heads=8, num_random_blocks=2).draws}) == 8
    )


def test_seeds_and_layers_draw_different_blocks():
    sets = [
        block_sets(bigbird(num_random_blocks=2, **options), 20)
        for options in ({}, {"seed": 1}, {"seed": 2}, {"seed": 0})
    ]
    assert sets[0] == sets[3]
    assert sets[0] != sets[1] != sets[2] != sets[0]
    layers = [
        build("bigbird", heads=2, max_length=64, block=4, layer=layer).draws for layer in (0, 1)
    ]
    assert not torch.equal(*layers)


def test_training_and_evaluation_use_the_same_blocks():
    attention, inputs = bigbird(num_random_blocks=2), qkv(60)
    assert torch.equal(attention.train()(*inputs), attention.eval()(*inputs))


def test_random_blocks_are_independent_of_dtype():
    attention = bigbird(num_random_blocks=2, block=1, max_length=4096)
    before = attention.rule.lists(attention.draws, torch.full((1, 1, 1, 1), 4096))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        moved = attention.to(dtype)
        after = moved.rule.lists(moved.draws, torch.full((1, 1, 1, 1), 4096))
        assert torch.equal(before, after), dtype


def test_output_is_independent_of_max_length():
    inputs = qkv(50)
    short, long = (bigbird(num_random_blocks=2, max_length=n)(*inputs) for n in (50, 128))
    assert_near(short, long, "output")


def test_holes_do_not_move_the_last_block():
    attention = bigbird(num_random_blocks=0)
    q, k, v = qkv(40, B=1)
    real = torch.ones(1, 40, dtype=torch.bool)
    real[:, 5:30] = False
    out = attention(q, k, v, real)
    mask = torch.zeros(40, 40, dtype=torch.bool)
    for t, s in itertools.product(range(40), range(40)):
        ends = {t // 4, s // 4} & {0, 9}
        mask[t, s] = bool(real[0, s]) and (bool(ends) or abs(t // 4 - s // 4) < 2)
    assert_near(out[:, :, real[0]], softmax_reference(q, k, v, mask)[:, :, real[0]], "output")


def test_etc_is_a_window_of_blocks_after_the_global_tokens():
    g, T = 3, 42
    mask = torch.tensor(
        [
            [t < g or s < g or abs((t - g) // 4 - (s - g) // 4) < 2 for s in range(T)]
            for t in range(T)
        ]
    )
    inputs = qkv(T)
    expected = softmax_reference(*inputs, mask)
    assert_near(bigbird(form="etc", global_tokens=g)(*inputs), expected, "output")


def test_global_token_inside_the_window_counts_once():
    q, k, v = qkv(60)
    for causal in (False, True):
        attention = bigbird(num_random_blocks=2, causal=causal)
        none = torch.zeros(3, 60, dtype=torch.bool)
        own = none.clone()
        own[:, :2] = True  # in the first block, which is global
        plain = attention(q, k, v)
        assert_near(attention(q, k, v, global_mask=none), plain, "no global token")
        assert_near(attention(q, k, v, global_mask=own), plain, "global twice")


def test_gradient_of_global_keys_accumulates_in_float32():
    """Accumulated in bfloat16, a sum of a thousand positive terms would stop growing."""
    T = 4096
    zeros = torch.zeros(1, 1, T, 1, dtype=torch.bfloat16)
    v = zeros.clone().requires_grad_()
    bigbird(1, T, num_random_blocks=2).bfloat16()(zeros, zeros, v).sum().backward()
    keys = 4 * torch.full((T // 4,), 7.0)  # two global blocks, three in the window, two random
    expected = (4 / keys[2:-2]).sum() + 8 / T
    first = v.grad[0, 0, :4, 0].float()
    assert ((first - expected).abs() < 0.01 * expected).all()


block_counts = st.integers(0, 6)
block_sizes = st.sampled_from([1, 4, 64, 100, 128, 256, 400, 512])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["uniform", "original", "given"]),
    block_sizes,
    block_counts,
    st.lists(st.integers(0, 70) | st.sampled_from([16, 32, 48, 64]), min_size=1, max_size=3),
    st.integers(0, 1),
    st.booleans(),
    st.integers(0, 99),
)
def test_lists_are_the_sets_of_every_row(sampling, block, r, lengths, first, causal, seed):
    causal = causal and sampling != "original"
    first = 1 if sampling == "original" or causal else first
    rule = BlockRule(block, 0, first, int(first and not causal), causal, sampling)
    g, rows = torch.Generator().manual_seed(seed), max(1, *lengths)
    draws = torch.randint(2**31, (2, rows, r), generator=g)
    if sampling == "given":
        draws = draws % (rows + 2) - 1
    lists = rule.lists(draws, torch.tensor(lengths)[:, None, None, None])
    for found, blocks in zip(lists.expand(len(lengths), *lists.shape[1:]), lengths, strict=True):
        for own, head in zip(found.tolist(), draws.tolist(), strict=True):
            for row in range(blocks):
                chosen = rule._random_blocks(head[row], row, blocks)
                near = {row - 1, row} | ({row + 1} if not causal else set())
                listed = [J for J in own[row] if J >= 0]
                assert len(set(listed)) == len(listed), "a block is listed twice"
                assert set(listed) == set(chosen) | (near & set(range(blocks)))
                assert own[row][0] == row


def test_every_set_of_blocks_is_equally_likely():
    rule, draws = BlockRule(4, 0, 1, 1, False, "uniform"), 24_000
    g = torch.Generator().manual_seed(0)
    lists = rule.lists(
        torch.randint(2**31, (draws, 10, 3), generator=g), torch.full((1, 1, 1, 1), 10)
    )
    found = Counter(tuple(sorted(x)) for x in lists[0, :, 4, 3:].tolist())
    expected = list(itertools.combinations((1, 2, 6, 7, 8), 3))
    assert sorted(found) == expected
    assert max(abs(n - 2400) for n in found.values()) < 4 * 2400**0.5
