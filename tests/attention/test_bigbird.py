"""BigBird: blocks as sets, drawn once, the same whatever the padding."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from contract import HEADS, assert_near, gradients, obeys, qkv, unchecked
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import build
from longspan.attention.mechanisms.bigbird import BlockRule, published_parts
from longspan.attention.ops.softmax import softmax_reference
from longspan.errors import InputError, OptionError

# Checking shapes draws from `num_random_blocks`, which no strategy here does.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `num_random_blocks` module")


def bigbird(heads=HEADS, max_length=128, block=4, **options):
    return build("bigbird", heads=heads, max_length=max_length, block=block, **options).double()


def support(attention, T):
    """Which pairs have a weight, (H, T, T), as the fast body computes it."""
    q, k, _ = qkv(T, B=1, H=len(attention.draws))
    identity = torch.eye(T, dtype=q.dtype).expand(*q.shape[:2], T, T)
    return attention(q, k, identity)[0] != 0


def block_sets(attention, N):
    """The blocks that each block of queries attends to, in each head; they are whole blocks."""
    b = attention.rule.block
    pairs = support(attention, N * b).unflatten(2, (N, b)).unflatten(1, (N, b)).transpose(2, 3)
    assert (pairs == pairs[..., :1, :1]).all(), "a block is attended in part"
    return [[{J for J in range(N) if row[J, 0, 0]} for row in head] for head in pairs]


@pytest.mark.parametrize("globals_", ["ends", "first"])
@pytest.mark.parametrize("r", [0, 1, 3, 50])
def test_it_is_the_window_the_ends_and_r_other_blocks(r, globals_):
    for N in (1, 2, 3, 4, 5, 6, 7, 12, 25):
        ends = {0, N - 1} if globals_ == "ends" else {0}
        for head in block_sets(bigbird(num_random_blocks=r, global_blocks=globals_), N):
            for row, found in enumerate(head):
                near = {row - 1, row, row + 1} & set(range(N))
                others = set(range(N)) - near - ends
                if row in ends:
                    assert found == set(range(N))
                    continue
                assert found >= near | ends
                assert len(found - near - ends) == min(r, len(others)), (N, row)


def test_causal_blocks_lie_in_the_past():
    pairs = support(bigbird(num_random_blocks=2, causal=True), 64)
    assert not pairs.triu(1).any()
    pairs = pairs.unflatten(2, (16, 4))
    for t in range(64):
        blocks = pairs[:, t].any(-1)
        past = max(t // 4 - 2, 0)  # neither the first block nor the window
        assert (blocks.sum(1) == min(t // 4 + 1, 3) + min(2, past)).all(), t
        assert blocks[:, sorted({0, max(t // 4 - 1, 0), t // 4})].all()
        whole = pairs[:, t, : t // 4].sum(-1)
        assert ((whole == 0) | (whole == 4)).all()
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
def test_every_form_obeys_the_contract(options):
    obeys(bigbird(**options), lengths=(1, 9, 33, 50))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pairs_are_counted(options):
    attention = bigbird(**options)
    for T in (1, 5, 8, 33, 64):
        assert attention.pairs(T) == tuple(support(attention, T).sum((1, 2)).tolist()), T


def test_pairs_take_no_memory_of_all_pairs():
    T, b, r = 1 << 18, 64, 3
    middle = (T // b - 4) * (5 + r) + 2 * (4 + r)  # rows 1 and N-2 see a global block beside them
    counts = bigbird(block=b, max_length=T).pairs(T)
    assert counts == (middle * b * b + 2 * b * T,) * HEADS


@pytest.mark.parametrize("causal", [False, True])
def test_more_random_blocks_than_there_are_is_full_attention(causal):
    for T in (1, 9, 40, 77):
        inputs = qkv(T)
        full = build("full", causal=causal)(*inputs)
        assert_near(bigbird(num_random_blocks=30, causal=causal)(*inputs), full, f"T={T}")


def test_a_short_input_is_full_attention():
    inputs = qkv(64)  # four blocks: the ends, and the window of what lies between
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


def test_training_and_evaluation_attend_to_the_same():
    attention, inputs = bigbird(num_random_blocks=2), qkv(60)
    assert torch.equal(attention.train()(*inputs), attention.eval()(*inputs))


def test_another_length_in_between_changes_nothing():
    attention, inputs = bigbird(num_random_blocks=2), qkv(100)
    before = attention(*inputs)
    attention(*qkv(7))
    assert torch.equal(attention(*inputs), before)


def test_another_dtype_draws_the_same_blocks():
    attention = bigbird(num_random_blocks=2, block=1, max_length=4096)
    before = attention.rule.lists(attention.draws, torch.full((1, 1, 1, 1), 4096))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        moved = attention.to(dtype)
        after = moved.rule.lists(moved.draws, torch.full((1, 1, 1, 1), 4096))
        assert torch.equal(before, after), dtype


def test_room_for_longer_inputs_changes_nothing():
    inputs = qkv(50)
    short, long = (bigbird(num_random_blocks=2, max_length=n)(*inputs) for n in (50, 128))
    assert torch.equal(short, long)


@pytest.mark.parametrize("options", [{}, {"sampling": "original"}, {"form": "etc"}])
def test_each_row_has_blocks_of_its_own_length(options):
    attention, lengths = bigbird(num_random_blocks=2, **options), (61, 40, 18)
    q, k, v = qkv(70)
    out = attention(q, k, v, torch.arange(70) < torch.tensor(lengths)[:, None])
    for b, n in enumerate(lengths):
        alone = attention(*(x[b : b + 1, :, :n] for x in (q, k, v)))
        assert_near(out[b, :, :n], alone[0], f"length {n}")
        assert not out[b, :, n:].any()


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


def test_etc_is_a_window_of_blocks_behind_the_global_tokens():
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


def test_a_window_that_holds_only_padding_gives_zeros():
    q, k, v = qkv(40)
    real = torch.arange(40) < torch.tensor([40, 3, 9])[:, None]
    out = bigbird(form="etc")(q, k, v, real, query_mask=torch.ones_like(real))
    assert out[0].abs().sum(-1).all()
    for b, blocks in ((1, 1), (2, 3)):
        assert out[b, :, : 4 * (blocks + 1)].abs().sum(-1).all()
        assert not out[b, :, 4 * (blocks + 1) :].any()


def test_etc_takes_its_global_tokens_from_a_ragged_mask():
    q, k, v = qkv(40)
    chosen = torch.arange(40) < torch.tensor([3, 0, 9])[:, None]
    place = torch.arange(40) // 4
    window = (place[:, None] - place).abs() < 2
    mask = window | chosen[:, None, :, None] | chosen[:, None, None, :]
    out = bigbird(form="etc")(q, k, v, global_mask=chosen)
    assert_near(out, softmax_reference(q, k, v, mask), "output")


def test_a_global_token_inside_the_window_counts_once():
    q, k, v = qkv(60)
    for causal in (False, True):
        attention = bigbird(num_random_blocks=2, causal=causal)
        none = torch.zeros(3, 60, dtype=torch.bool)
        own = none.clone()
        own[:, :2] = True  # global already: the first block is
        plain = attention(q, k, v)
        assert_near(attention(q, k, v, global_mask=none), plain, "no global token")
        assert_near(attention(q, k, v, global_mask=own), plain, "global twice")


def test_scores_beyond_any_fixed_penalty_stay_within_the_blocks():
    q, k, v = qkv(64, B=1)
    q, k = 1e3 * q.abs(), -1e3 * k.abs()
    k[:, :, 20:24] = 0  # the keys that would win, were they only discouraged
    attention = bigbird(num_random_blocks=1)
    out = attention(q, k, v)
    assert_near(out[0], softmax_reference(q[0], k[0], v[0], support(attention, 64)), "output", 1e-8)


def test_the_gradient_of_global_keys_is_one_sum():
    """A thousand terms of one sign: were each sum rounded to bfloat16, they would stop to count."""
    T = 4096
    zeros = torch.zeros(1, 1, T, 1, dtype=torch.bfloat16)
    v = zeros.clone().requires_grad_()
    bigbird(1, T, num_random_blocks=2).bfloat16()(zeros, zeros, v).sum().backward()
    keys = 4 * torch.full((T // 4,), 7.0)  # two global blocks, three near ones, two drawn
    expected = (4 / keys[2:-2]).sum() + 8 / T
    first = v.grad[0, 0, :4, 0].float()
    assert ((first - expected).abs() < 0.01 * expected).all()


counts = st.integers(0, 6)
blocks_ = st.sampled_from([1, 4, 64, 100, 128, 256, 400, 512])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["uniform", "original", "given"]),
    blocks_,
    counts,
    st.lists(st.integers(0, 70) | st.sampled_from([16, 32, 48, 64]), min_size=1, max_size=3),
    st.integers(0, 1),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_lists_are_the_sets_of_every_row(sampling, block, r, lengths, first, causal, seed):
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
                chosen = rule._chosen(head[row], row, blocks)
                near = {row - 1, row} | ({row + 1} if not causal else set())
                listed = [J for J in own[row] if J >= 0]
                assert len(set(listed)) == len(listed), "a block twice"
                assert set(listed) == set(chosen) | (near & set(range(blocks)))
                assert own[row][0] == row


def test_every_set_of_blocks_is_as_likely():
    rule, draws = BlockRule(4, 0, 1, 1, False, "uniform"), 24_000
    g = torch.Generator().manual_seed(0)
    lists = rule.lists(
        torch.randint(2**31, (draws, 10, 3), generator=g), torch.full((1, 1, 1, 1), 10)
    )
    found = Counter(tuple(sorted(x)) for x in lists[0, :, 4, 3:].tolist())
    expected = list(itertools.combinations((1, 2, 6, 7, 8), 3))
    assert sorted(found) == expected
    assert max(abs(n - 2400) for n in found.values()) < 4 * 2400**0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bigbird(block=0), "block must be >= 1, got 0"),
        (lambda: bigbird(num_random_blocks=-1), "num_random_blocks must be >= 0, got -1"),
        (lambda: bigbird(global_tokens=2), "global_tokens=2 requires form='etc'"),
        (lambda: bigbird(form="etc", global_tokens=-1), "global_tokens must be >= 0, got -1"),
        (lambda: bigbird(form="etc", causal=True), "causal=True requires form='itc'"),
        (lambda: bigbird(form="etc", global_blocks="first"), "'first' requires form='itc'"),
        (lambda: bigbird(form="etc", sampling="original"), "'original' requires"),
        (lambda: bigbird(causal=True, sampling="original"), "'original' requires"),
        (
            lambda: bigbird(global_blocks="first", sampling="original"),
            "'original' requires",
        ),
        (
            lambda: bigbird(form="etc", causal=True, global_blocks="first"),
            "causal=True requires form.*; global_blocks='first' requires",
        ),
        (lambda: bigbird(global_blocks="last"), "global_blocks must be one of ends, first"),
        (
            lambda: unchecked("bigbird", heads=1, max_length=8, form="x"),
            "invalid form='x', global_blocks='ends' or",
        ),
        (
            lambda: unchecked("bigbird", heads=1, max_length=8, global_blocks="x"),
            "invalid form='itc', global_blocks='x' or",
        ),
        (lambda: unchecked("bigbird", heads=1, max_length=8, sampling="x"), "or sampling='x'"),
    ],
)
def test_options_without_a_meaning_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_inputs_it_was_not_built_for_are_refused():
    attention = bigbird(max_length=20, causal=True)
    with pytest.raises(InputError, match="must be 3, as built; got 2; S=21 exceeds"):
        attention(*qkv(21, H=2))
    _, cache = attention.step(*qkv(15))
    attention.step(*qkv(5), cache)
    with pytest.raises(InputError, match="S=21 exceeds max_length=20"):
        attention.step(*qkv(6), cache)


# The public code, in training mode: what it draws is given to ours.


def published_layer(block, r, heads=2, head_dim=4, max_length=1024):
    from transformers.models.big_bird import modeling_big_bird as hf

    config = hf.BigBirdConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        block_size=block,
        num_random_blocks=r,
        max_position_embeddings=max_length,
    )
    torch.manual_seed(0)
    return hf, hf.BigBirdBlockSparseAttention(config, seed=0).double()


def published_table(layer, n, block, r, heads=2):
    """The blocks that the public code draws for each head and block of queries but the ends."""
    before = np.random.get_state()
    np.random.seed(0)
    if n in (1024, 3072, 4096):
        size = layer.max_seqlen
        rows = n // block - 2
        table = [
            layer._bigbird_block_rand_mask(size, size, block, block, r, last_idx=1024)[:rows]
            for _ in range(heads)
        ]
    else:
        plan = layer._get_rand_attn_plan(n, block, r)
        table = layer._bigbird_block_rand_mask_with_head(n, n, block, block, heads, *plan)
    np.random.set_state(before)
    return torch.tensor(np.stack(table)).long()


def published_output(hf, layer, x, real, block):
    """Heads apart (B, H, n, D), the layer's q, k and v with them."""
    masks = hf.BigBirdModel.create_masks_for_block_sparse_attn(real.double(), block)
    blocked, band, from_, to = masks
    before = np.random.get_state()
    out = layer(
        x,
        band_mask=band,
        from_mask=from_,
        to_mask=to,
        from_blocked_mask=blocked,
        to_blocked_mask=blocked,
    )[0]
    np.random.set_state(before)

    def split(y):
        return y.unflatten(2, (layer.num_attention_heads, -1)).transpose(1, 2)

    return split(out), [split(f(x)) for f in (layer.query, layer.key, layer.value)]


def ours(table, n, block):
    attention = bigbird(len(table), n, block, num_random_blocks=table.shape[2], sampling="given")
    assert (attention.draws == -1).all()
    attention.draws[:, 1:-1] = table
    return attention


def times(table, n, block):
    """How often the public code counts a pair, (H, n, n)."""
    N = n // block
    count = torch.zeros(len(table), N, N, dtype=torch.float64)
    for row in range(1, N - 1):
        count[:, row, [*{0, row - 1, row, row + 1, N - 1}]] += 1
        for head, chosen in enumerate(table[:, row - 1].tolist()):
            for J in chosen:
                count[head, row, J] += 1
    count[:, [0, N - 1]] = 1
    return count.repeat_interleave(block, 1).repeat_interleave(block, 2)


def counted(q, k, v, count):
    """Softmax attention with each pair as often as it is counted."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores + count.log()).softmax(-1) @ v


@pytest.mark.parametrize(("n", "r"), [(32, 1), (32, 3), (84, 8), (64, 2), (64, 3)])
def test_the_public_code_gives_the_same_in_training(n, r):
    hf, layer = published_layer(4, r)
    table = published_table(layer, n, 4, r)
    x = torch.randn(2, n, 8, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x.requires_grad_()
    out, (q, k, v) = published_output(hf, layer.train(), x, torch.ones(2, n), 4)
    own = ours(table, n, 4)(q, k, v)
    assert_near(own, out, "output", 1e-9)
    for a, b in zip(gradients(own, [x], layer), gradients(out, [x], layer), strict=True):
        assert_near(a, b, "gradient", 1e-9)


def test_where_the_public_code_finds_too_few_blocks_we_take_them_all():
    n, r = 44, 3  # eleven blocks: two draws from the three behind the first eight
    _, layer = published_layer(4, r)
    with pytest.raises(ValueError, match="could not broadcast"):
        published_table(layer.train(), n, 4, r)
    for head in block_sets(bigbird(num_random_blocks=r, sampling="original"), 11):
        for row in range(1, 10):
            window = {0, row - 1, row, row + 1, 10}
            parts = published_parts(row, 11, 4, r)
            assert len(head[row] - window) == sum(min(n, len(all_)) for n, all_ in parts), row


def test_the_public_code_counts_the_first_block_again_in_evaluation():
    n, block, r = 64, 4, 3
    hf, layer = published_layer(block, r)
    x = torch.randn(1, n, 8, dtype=torch.float64)
    out, qkv_ = published_output(hf, layer.eval(), x, torch.ones(1, n), block)
    zeros = torch.zeros(2, n // block - 2, r).long()
    assert_near(out, counted(*qkv_, times(zeros, n, block)), "1 + r times block 0", 1e-9)
    own = ours(zeros, n, block)(*qkv_)
    assert_near(own, bigbird(2, n, block, num_random_blocks=0)(*qkv_), "blocks are sets")
    assert (own - out).abs().max() > 1e-2


def test_the_public_code_counts_blocks_twice_at_1024_tokens():
    n, block, r = 1024, 64, 3
    hf, layer = published_layer(block, r)
    table = published_table(layer, n, block, r)
    count = times(table, n, block)
    assert count.max() == 2, "no block is drawn twice; choose another seed"
    x = torch.randn(1, n, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out, qkv_ = published_output(hf, layer.train(), x, torch.ones(1, n), block)
    assert_near(out, counted(*qkv_, count), "twice", 1e-9)
    once = counted(*qkv_, count.clamp(max=1))
    assert_near(ours(table, n, block)(*qkv_), once, "once", 1e-9)


@pytest.mark.parametrize(
    ("block", "blocks", "r"),
    [
        (4, 30, 3),
        (4, 12, 3),
        (4, 8, 1),
        (4, 21, 8),
        (4, 20, 2),
        (64, 16, 3),
        (64, 48, 3),
        (64, 64, 3),
        (128, 8, 1),
    ],
)
def test_the_original_plan_is_the_public_one(block, blocks, r):
    """What it draws in 300 heads is all that we say it may draw, part by part."""
    _, layer = published_layer(block, r, max_length=4096)
    n = block * blocks
    table = published_table(layer.train(), n, block, r, heads=300)
    for row in range(1, blocks - 1):
        parts, start = published_parts(row, blocks, block, r), 0
        for count, choices in parts:
            drawn = set(table[:, row - 1, start : start + count].flatten().tolist())
            if n == 1024:
                drawn -= {blocks - 1, row - 1, row, row + 1}  # there they count twice
            assert drawn == set(choices), (row, count)
            start += count
        assert start == r
