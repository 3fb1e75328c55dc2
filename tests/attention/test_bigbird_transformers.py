"""BigBird as transformers computes it: its random blocks, repeats, padding and short inputs."""

import numpy as np
import pytest
import torch
from contract import (
    HEADS,
    assert_equals_reference,
    assert_near,
    check_contract,
    global_masks,
    gradients,
    key_masks,
    qkv,
)
from test_bigbird import block_sets
from transformers.models.big_bird import modeling_big_bird as hf

from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.patterns.block_rule import published_parts
from longspan.attention.patterns.published_blocks import draw_transformers_blocks
from longspan.errors import OptionError

PUBLIC = {"sampling": "transformers", "repeats": True, "padded_blocks": True}


def public_layer(block, r, layer=0, max_length=1024, heads=2, head_dim=4):
    """Return the attention of one layer of transformers' BigBird."""
    config = hf.BigBirdConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        block_size=block,
        num_random_blocks=r,
        max_position_embeddings=max_length,
    )
    torch.manual_seed(0)
    return hf.BigBirdBlockSparseAttention(config, seed=layer).double()


def public_output(layer, x, real):
    """Return the output (B, H, n, D) of transformers' layer, and its q, k and v."""
    masks = hf.BigBirdModel.create_masks_for_block_sparse_attn(real.double(), layer.block_size)
    blocked, band, from_, to = masks
    state = np.random.get_state()
    out = layer(x, band, from_, to, blocked, blocked)[0]
    np.random.set_state(state)

    def split(y):
        return y.unflatten(2, (layer.num_attention_heads, -1)).transpose(1, 2)

    return split(out), [split(f(x)) for f in (layer.query, layer.key, layer.value)]


def public_table(layer, n, block, r, heads=2, seed=0):
    """Return the blocks that transformers draws for each head and inner block of queries."""
    state = np.random.get_state()
    np.random.seed(seed)
    if n in (1024, 3072, 4096):
        sizes = (layer.max_seqlen, layer.max_seqlen, block, block, r)
        drawn = [layer._bigbird_block_rand_mask(*sizes, last_idx=1024) for _ in range(heads)]
        table = [rows[: n // block - 2] for rows in drawn]
    else:
        plan = layer._get_rand_attn_plan(n, block, r)
        table = layer._bigbird_block_rand_mask_with_head(n, n, block, block, heads, *plan)
    np.random.set_state(state)
    return torch.tensor(np.stack(table)).long()


def bigbird(block, r, layer=0, max_length=128, heads=2, **options):
    sizes = {"heads": heads, "max_length": max_length, "layer": layer}
    return build("bigbird", **sizes, block=block, num_random_blocks=r, **options).double()


# Tokens, length of a block, random blocks, layer and maximum length.
CASES = [(48, 4, 2, 0, 128), (84, 4, 7, 3, 84), (1024, 64, 2, 0, 1024), (1024, 64, 2, 5, 4096)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "table"])
def test_outputs_and_gradients_equal_transformers(case, training):
    n, block, r, index, max_length = case
    theirs = public_layer(block, r, index, max_length).train(training)
    ours = bigbird(block, r, index, max_length, **PUBLIC).train(training)
    g = torch.Generator().manual_seed(n)
    x = torch.randn(2, n, 8, generator=g, dtype=torch.float64).requires_grad_()
    # The second row ends within a block, and others of its blocks are empty.
    real = torch.arange(n) < torch.tensor([[n], [n - 2 * block - 1]])
    expected, inputs = public_output(theirs, x, real)
    own = ours(*inputs, real)
    assert_near(own, expected, "output", 1e-9)
    found = (gradients(y, [x], theirs) for y in (own, expected))
    assert_near(*found, "gradient", 1e-9)


@pytest.mark.parametrize(("n", "r"), [(32, 1), (32, 3), (84, 8), (64, 2), (64, 3)])
def test_given_blocks_equal_transformers_in_training(n, r):
    layer = public_layer(4, r).train()
    attention = bigbird(4, r, max_length=n, sampling="given")
    assert (attention.draws == -1).all()
    attention.draws[:, 1:-1] = public_table(layer, n, 4, r)
    x = torch.randn(2, n, 8, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x.requires_grad_()
    expected, inputs = public_output(layer, x, torch.ones(2, n))
    out = attention(*inputs)
    assert_near(out, expected, "output", 1e-9)
    found = (gradients(y, [x], layer) for y in (out, expected))
    assert_near(*found, "gradient", 1e-9)


def test_takes_all_blocks_where_transformers_raises():
    n, r = 44, 3  # 11 blocks: it draws two of the three after the first eight
    layer = public_layer(4, r)
    with pytest.raises(ValueError, match="could not broadcast"):
        public_table(layer.train(), n, 4, r)
    for head in block_sets(bigbird(4, r, heads=HEADS, sampling="original"), 11):
        for row in range(1, 10):
            window = {0, row - 1, row, row + 1, 10}
            parts = published_parts(row, 11, 4, r)
            assert len(head[row] - window) == sum(min(n, len(all_)) for n, all_ in parts), row


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
def test_original_plan_equals_transformers(block, blocks, r):
    """Over 300 heads, transformers draws exactly the blocks of each part of the plan."""
    layer = public_layer(block, r, max_length=4096)
    n = block * blocks
    table = public_table(layer.train(), n, block, r, heads=300)
    for row in range(1, blocks - 1):
        parts, start = published_parts(row, blocks, block, r), 0
        for count, choices in parts:
            drawn = set(table[:, row - 1, start : start + count].flatten().tolist())
            if n == 1024:
                # transformers counts these blocks twice.
                drawn -= {blocks - 1, row - 1, row, row + 1}
            assert drawn == set(choices), (row, count)
            start += count
        assert start == r


@pytest.mark.parametrize(
    ("n", "block", "r"), [(2048, 64, 3), (3072, 64, 3), (4096, 64, 3), (3072, 96, 1), (640, 64, 1)]
)
def test_table_equals_that_of_transformers(n, block, r):
    theirs = public_layer(block, r, 4, 4096).train()
    ours = bigbird(block, r, 4, 4096, sampling="transformers").train()
    inner = slice(1, n // block - 1)
    table = public_table(theirs, n, block, r, seed=4)
    assert torch.equal(ours.blocks_for(n)[:, inner], table)
    assert torch.equal(ours.blocks_for(n - block + 1), ours.blocks_for(n))
    assert not ours.eval().blocks_for(n).any()


@pytest.mark.parametrize(("block", "max_length"), [(4, 80), (64, 4096), (256, 4096), (512, 4096)])
def test_drawn_blocks_exist_and_leave_the_global_generator_alone(block, max_length):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    made, again = (draw_transformers_blocks(7, 3, max_length, block, 2) for _ in range(2))
    assert (np.random.get_state()[1] == before).all()
    for table in made:
        assert table.shape == (3, max_length // block, 2)
        assert (table[:, 0] == -1).all()
        assert table.max() < max_length // block
    assert all(torch.equal(a, b) for a, b in zip(made, again, strict=True))


@pytest.mark.parametrize("sampling", ["given", "transformers", "uniform", "original"])
@pytest.mark.parametrize("training", [False, True])
def test_repeats_obey_contract(sampling, training):
    attention = bigbird(4, 3, heads=HEADS, sampling=sampling, repeats=True).train(training)
    if sampling == "given":
        g = torch.Generator().manual_seed(0)
        attention.draws[:] = torch.randint(-1, 17, attention.draws.shape, generator=g)
    check_contract(attention, lengths=(1, 9, 33, 50))
    for kind, real in key_masks(50).items():
        label = f"queries of padded keys, {kind}"
        assert_equals_reference(attention, qkv(50), label, key_mask=real)


def test_repeated_block_counts_as_often_as_it_is_given():
    attention = bigbird(4, 4, heads=1, sampling="given", repeats=True)
    attention.draws[0, 3] = torch.tensor([5, 5, 0, 3])
    q, k, v = qkv(32, H=1)
    counts = torch.zeros(8)
    counts[[0, 2, 3, 4, 7]] = 1
    counts += torch.tensor([1, 0, 0, 1, 0, 2, 0, 0])
    counts = counts.repeat_interleave(4)
    expected = softmax_reference(q, k, v, counts > 0, counts.clamp(min=1).double().log())
    assert_near(attention(q, k, v)[:, :, 12:16], expected[:, :, 12:16], "block 3")
    once = attention.pairs(32)[0]
    attention.draws[0, 3] = torch.tensor([5, -1, -1, -1])
    assert attention.pairs(32)[0] == once


def test_padded_blocks_move_the_last_global_block():
    q, k, v = qkv(40, B=1)
    real = torch.arange(40)[None] < 30
    out = bigbird(4, 0, heads=HEADS, padded_blocks=True)(q, k, v, real)
    block = torch.arange(40) // 4
    near = (block[:, None] - block).abs() < 2
    mask = near | (block == 0) | (block[:, None] == 0)
    expected = softmax_reference(q, k, v, mask & real)
    assert_near(out[:, :, :30], expected[:, :, :30], "the last real block is not global")
    assert not out[:, :, 30:].any()


@pytest.mark.parametrize("training", [False, True])
def test_padded_blocks_equal_the_reference(training):
    own = bigbird(4, 3, heads=HEADS, **PUBLIC).train(training)
    reference = bigbird(4, 3, heads=HEADS, **PUBLIC).train(training)
    reference.backend = "reference"
    for T in (1, 9, 33, 50):
        for mask in key_masks(T).values():
            for global_mask in global_masks("bigbird", T):
                made = [x(*qkv(T), mask, global_mask=global_mask) for x in (own, reference)]
                assert_near(*made, f"T={T}")


def test_short_inputs_have_full_attention():
    attention, full = bigbird(4, 1, heads=HEADS, full_up_to=33), build("full")
    for T in (1, 20, 33):
        for mask in key_masks(T).values():
            expected = full(*qkv(T), mask)
            assert_near(attention(*qkv(T), mask), expected, f"T={T}")
            attention.backend = "reference"
            assert_near(attention(*qkv(T), mask), expected, f"reference, T={T}")
            attention.backend = "auto"
        assert attention.pairs(T) == (T * T,) * HEADS
        assert attention.flops(T, 8) == full.flops(T, 8)
    sparse = bigbird(4, 1, heads=HEADS)
    assert_near(attention(*qkv(34)), sparse(*qkv(34)), "longer")
    assert attention.pairs(34) == sparse.pairs(34)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "transformers", "causal": True}, "sampling='transformers' requires"),
        ({"sampling": "transformers", "form": "etc"}, "sampling='transformers' requires"),
        ({"repeats": True, "global_blocks": "first"}, "repeats=True requires global_blocks='ends'"),
        ({"repeats": True, "causal": True}, "repeats=True requires .* causal=False"),
        ({"full_up_to": 4, "causal": True}, "full_up_to requires causal=False"),
        ({"full_up_to": -1}, "full_up_to must be an integer >= 0, got -1"),
    ],
)
def test_combinations_that_transformers_lacks_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        bigbird(4, 2, **options)
