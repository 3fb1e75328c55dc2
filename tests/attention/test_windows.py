"""Windows: sliding (`local`), overlapping blocks (`blockwise`), separate blocks (`disjoint`)."""

import pytest
import torch
from contract import HEAD_DIM, assert_near, global_masks, key_masks, qkv
from torch.utils.flop_counter import FlopCounterMode

from longspan import build
from longspan.attention.ops.softmax import softmax_reference

WINDOWED = [("local", {"window": 4}), ("blockwise", {"block": 8}), ("disjoint", {"block": 8})]
every_window = pytest.mark.parametrize(("name", "options"), WINDOWED, ids=[n for n, _ in WINDOWED])
full_and_causal = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


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


@full_and_causal
def test_window_of_zero_returns_the_values(causal):
    q, k, v = qkv(50)
    assert_near(build("local", window=0, causal=causal)(q, k, v), v, "output")


@full_and_causal
@pytest.mark.parametrize(
    ("name", "options"), [("local", {"window": 50}), ("disjoint", {"block": 50})]
)
def test_window_as_long_as_the_sequence_equals_full_attention(name, options, causal):
    for T in (1, 30, 50):
        inputs = qkv(T)
        full = build("full", causal=causal)(*inputs)
        assert_near(build(name, causal=causal, **options)(*inputs), full, f"T={T}")


def test_single_overlapping_block_equals_full_attention():
    inputs = qkv(16)
    assert_near(build("blockwise", block=16)(*inputs), build("full")(*inputs), "output")


def test_first_token_of_causal_disjoint_block_attends_to_itself():
    q, k, v = qkv(24)
    out = build("disjoint", block=8, causal=True)(q, k, v)
    assert_near(out[:, :, ::8], v[:, :, ::8], "first tokens")


@every_window
@full_and_causal
def test_shifting_the_sequence_shifts_the_interior_output(name, options, causal):
    shift = 5 if name == "local" else 8
    attention = build(name, causal=causal, **options)
    longer = qkv(64 + shift)
    unshifted = attention(*longer)
    shifted = attention(*(x[:, :, shift:] for x in longer))
    # The shift cuts off the neighbors of the first rows.
    assert_near(shifted[:, :, 16:], unshifted[:, :, shift + 16 :], "interior")
    assert not torch.allclose(shifted[:, :, 0], unshifted[:, :, shift]) or name == "disjoint"


@every_window
def test_window_of_only_padding_gives_zeros(name, options):
    q, k, v = qkv(40)
    key_mask = torch.ones(3, 40, dtype=torch.bool)
    key_mask[1, 10:] = False
    out = build(name, **options)(q, k, v, key_mask=key_mask)
    assert not out[1, :, 24:].any()
    assert out[0].abs().sum(-1).all()


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
def test_all_tokens_global_equals_full_attention(name, options):
    inputs = qkv(45)
    all_tokens = torch.ones(3, 45, dtype=torch.bool)
    full = build("full")(*inputs)
    assert_near(build(name, **options)(*inputs, global_mask=all_tokens), full, "output")


@every_window
def test_window_longer_than_the_sequence_has_bounded_flops(name, options):
    option, T = next(iter(options)), 40
    with FlopCounterMode(display=False) as counter:
        build(name, **{option: 100_000})(*qkv(T))
    assert counter.get_total_flops() <= 9 * 4 * T * T * HEAD_DIM
