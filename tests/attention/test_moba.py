"""Mixture of block attention: which blocks a query selects, and what selection may read."""

import pytest
import torch
from contract import (
    HEADS,
    assert_near,
    check_contract,
    full_and_causal,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)

from longspan import build
from longspan.attention.ops import selected_blocks

OPTIONS = [
    {"block": 1, "num_selected_blocks": 1},
    {"block": 5, "num_selected_blocks": 3},
    {"block": 7, "num_selected_blocks": 40},
    {"block": 100},
]


def moba(causal=True, **options):
    return build("moba", causal=causal, **{"block": 4, "num_selected_blocks": 2} | options).double()


def blocks_of(attention, q, k, mask=None):
    """Return which blocks each query attends to, (B, H, T, N), for whole blocks."""
    pairs = weights_of(attention, q, k, mask) > 0
    return pairs.unflatten(3, (-1, attention.block)).any(4)


@full_and_causal
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_size_obeys_the_contract(options, causal):
    check_contract(moba(causal, **options), lengths=(1, 9, 33, 50))


@pytest.mark.parametrize("first_step", [8, 25, 31])
def test_steps_after_a_prompt_obey_the_contract(first_step):
    check_contract(moba(), first_step=first_step)


@full_and_causal
def test_queries_select_the_blocks_with_the_best_mean_keys(causal):
    q, k, _ = qkv(32)
    seen = blocks_of(moba(causal), q, k)
    scores = q @ k.unflatten(2, (8, 4)).mean(3).mT
    for b in range(3):
        for h in range(HEADS):
            for t in range(32):
                home, row = t // 4, scores[b, h, t].tolist()
                others = [n for n in range(8) if n < home or (n > home and not causal)]
                others.sort(key=lambda n, row=row: row[n])
                expected = {home, *others[-2:]}
                assert set(seen[b, h, t].nonzero()[:, 0].tolist()) == expected, (b, h, t)


@full_and_causal
@pytest.mark.parametrize("T", [1, 9, 40, 130])
def test_enough_blocks_equal_full_attention(causal, T):
    inputs, mask = qkv(T), key_masks(T)["holes"]
    for block in (4, 32):
        attention = moba(causal, block=block, num_selected_blocks=T)
        assert_near(attention(*inputs, mask), build("full", causal=causal)(*inputs, mask), "output")


@full_and_causal
def test_equal_scores_select_the_later_block(causal):
    q, k, _ = qkv(32)
    k[:] = 1.0
    seen = blocks_of(moba(causal, num_selected_blocks=1), q, k)
    for t in range(32):
        later = t // 4 - 1 if causal else 7 - (t >= 28)
        expected = {t // 4, later} - {-1}
        assert set(seen[0, 0, t].nonzero()[:, 0].tolist()) == expected, t


@full_and_causal
def test_means_are_those_of_real_keys(causal):
    """Block 1 has one real key, of large product; with padding in the mean it would lose."""
    q, k = torch.ones(1, 1, 16, 2).double(), torch.ones(1, 1, 16, 2).double()
    k[:, :, 5] = 2.0
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[0, [4, 6, 7]] = False
    seen = blocks_of(moba(causal, num_selected_blocks=1), q, k, mask)
    assert seen[0, 0, 12:, 1].all()
    assert not seen[0, 0, 12:, [0, 2]].any()


@full_and_causal
def test_blocks_of_padding_are_never_selected(causal):
    q, k, _ = qkv(32)
    q, k = q.abs(), -k.abs()  # the mean of padding, zero, would be the best
    mask = torch.ones(3, 32, dtype=torch.bool)
    mask[:, 8:16] = False
    seen = blocks_of(moba(causal), q, k, mask)
    assert (seen[:, :, 24:].sum(3) == 3).all()


@full_and_causal
@pytest.mark.parametrize("block", [3, 4, 10, 33, 64])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_pairs_are_counted(causal, block, count):
    attention = moba(causal, block=block, num_selected_blocks=count)
    for T in (1, 7, 20, 40, 64):
        counted = (weights_of(attention, *qkv(T)[:2]) > 0).sum((2, 3))
        if (pairs := attention.pairs(T)) is not None:
            assert (counted == pairs).all(), T
        assert attention.is_dense(T) == (pairs == (T * (T + 1) // 2 if causal else T * T))
    assert causal or attention.pairs(block) == block * block


def test_steps_keep_the_means_of_whole_blocks():
    attention, (q, k, v) = moba(), qkv(64)
    _, cache = run_steps(attention, (q, k, v), (9, 1, 1, 1, 5, 30, 16, 1))
    assert_near(cache.state["means"], k.unflatten(2, (16, 4)).mean(3), "means")


def test_a_short_step_reads_no_more_than_means_and_selected_blocks(monkeypatch):
    attention, inputs = moba(), qkv(400)
    expected = attention(*inputs)[:, :, 397:]
    _, cache = run_steps(attention, [x[:, :, :397] for x in inputs], (397,))
    monkeypatch.setattr(selected_blocks, "_Layout", None)  # tiles of queries are for long steps
    assert_near(run_steps(attention, inputs, (3,), cache=cache)[0], expected, "output")
