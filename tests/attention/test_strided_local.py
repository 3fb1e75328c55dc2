"""The groups that the released "local attention" of Long Range Arena attends in."""

import contract
import pytest
import torch
from contract import assert_near, qkv

from longspan import build
from longspan.attention.ops.softmax import softmax_reference
from longspan.errors import OptionError


def grouped(max_length, **options):
    return build("strided_local", max_length=max_length, **options)


def released(q, k, v, block):
    """Pad as the release does, reshape to (block, blocks), attend along the first axis."""
    T = q.shape[2]
    extra = block - T % block
    real = torch.arange(T + extra) < T
    q, k, v = (
        torch.nn.functional.pad(x, (0, 0, 0, extra)).unflatten(2, (block, -1)).transpose(2, 3)
        for x in (q, k, v)
    )
    mask = real.unflatten(0, (block, -1)).T[:, None, :].expand(-1, block, -1)
    out = softmax_reference(q, k, v, mask)
    return out.transpose(2, 3).flatten(2, 3)[:, :, :T]


@pytest.mark.parametrize("block", [1, 2, 5, 8, 60])
def test_it_is_the_reshape_of_the_release(block):
    for T in (1, 4, 5, 16, 37, 40):
        inputs = qkv(T)
        for length in ("max", "real"):
            out = grouped(T, block=block, length=length)(*inputs)
            assert_near(out, released(*inputs, block), f"T={T}, {length}")


def seen_by_the_first(T, **options):
    q, k, v = qkv(T, B=1, H=1, D=2)
    v.requires_grad_()
    out = grouped(T, **options)(q, k, v)
    return torch.autograd.grad(out[0, 0, 0].sum(), v)[0][0, 0, :, 0].nonzero()[:, 0].tolist()


def test_the_first_token_of_listops_sees_every_41st():
    assert seen_by_the_first(2000) == list(range(0, 2000, 41))
    # 2000 is a multiple of 50: without the extra block it would be every 40th.
    assert seen_by_the_first(2000, extra_block=False) == list(range(0, 2000, 40))
    assert seen_by_the_first(1999, extra_block=False) == list(range(0, 1999, 40))
    assert seen_by_the_first(1999) == list(range(0, 1999, 40))


def ragged(T, counts):
    return torch.arange(T) < torch.tensor(counts)[:, None]


@pytest.mark.parametrize("extra_block", [True, False])
def test_a_short_row_has_the_groups_of_the_longest_text_or_its_own(extra_block):
    T, counts, options = 64, [64, 40, 11], {"block": 8, "extra_block": extra_block}
    inputs = qkv(T)
    out = {x: grouped(T, length=x, **options)(*inputs, ragged(T, counts)) for x in ("max", "real")}
    for b, n in enumerate(counts):
        row = [x[b : b + 1, :, :n] for x in inputs]
        for length, longest in (("max", T), ("real", n)):
            alone = grouped(longest, length="max", **options)(*row)
            assert_near(out[length][b : b + 1, :, :n], alone, f"{length}, {n} tokens")
    assert not torch.allclose(out["max"][1], out["real"][1])


def test_padding_hides_no_real_token_of_the_group_and_shows_none():
    """The mask of the release is cut in blocks of neighbours, not in its groups."""
    T, n, block = 20, 13, 4
    q, k, _ = qkv(T)
    values = torch.eye(T, dtype=q.dtype).expand(3, 3, T, T)
    weights = grouped(T, block=block)(0 * q, k, values, ragged(T, [n] * 3))
    m = T // block + 1
    for t in range(n):
        own = [float(s % m == t % m and s < n) for s in range(T)]
        expected = torch.tensor(own, dtype=q.dtype) / sum(own)
        assert_near(weights[0, 0, t], expected, f"token {t}")


@pytest.mark.parametrize("length", ["max", "real"])
def test_tokens_are_numbered_without_the_holes(length):
    T = 40
    inputs = qkv(T)
    real = torch.rand(3, T, generator=torch.Generator().manual_seed(0)) < 0.5
    out = grouped(T, block=5, length=length)(*inputs, real)
    for b in range(3):
        row = [x[b : b + 1][:, :, real[b]] for x in inputs]
        alone = grouped(T, block=5, length=length)(*row)
        assert_near(out[b : b + 1][:, :, real[b]], alone, f"row {b}")


def test_a_query_that_is_no_key_is_in_no_group():
    q, k, v = (x.requires_grad_() for x in qkv(12))
    every = torch.ones(3, 12, dtype=torch.bool)
    out = grouped(12, block=3)(q, k, v, ragged(12, [12, 7, 0]), query_mask=every)
    assert not out[1, :, 7:].any()
    assert not out[2].any()
    found = torch.autograd.grad(out.square().sum(), q)[0]
    assert not found[1, :, 7:].any()
    assert found[1, :, :7].any()


def test_a_text_shorter_than_a_block_is_full_attention():
    inputs = qkv(30)
    assert_near(grouped(30, block=31)(*inputs), build("full")(*inputs), "output")


def test_the_groups_of_a_longer_text_than_announced_are_longer():
    inputs = qkv(50)
    attention = grouped(20, block=10)
    mask = (torch.arange(50)[:, None] - torch.arange(50)) % 3 == 0
    assert_near(attention(*inputs), softmax_reference(*inputs, mask), "output")
    assert attention.pairs(50) == int(mask.sum())


OPTIONS = [{"length": x, "extra_block": y} for x in ("max", "real") for y in (True, False)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("block", [1, 8])
def test_every_option_obeys_the_contract(block, options):
    contract.obeys(grouped(66, block=block, **options))


def test_what_makes_no_groups_is_refused():
    with pytest.raises(OptionError, match="block must be >= 1, got 0"):
        grouped(64, block=0)
    with pytest.raises(OptionError, match="length must be one of max, real, got 'row'"):
        grouped(64, length="row")
    with pytest.raises(OptionError, match="length must be max or real, got 'row'"):
        contract.unchecked("strided_local", max_length=64, length="row")
