"""Groups of the released "local attention" of Long Range Arena."""

import contract
import pytest
import torch
from contract import assert_near, qkv

from longspan import build
from longspan.attention.ops.softmax import softmax_reference


def strided_local(max_length, **options):
    return build("strided_local", max_length=max_length, **options)


def released_attention(q, k, v, block):
    """Pad like the release, reshape to (block, blocks) and attend along the first axis."""
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
def test_equals_reshape_of_the_release(block):
    for T in (1, 4, 5, 16, 37, 40):
        inputs = qkv(T)
        for length in ("max", "real"):
            out = strided_local(T, block=block, length=length)(*inputs)
            assert_near(out, released_attention(*inputs, block), f"T={T}, {length}")


def keys_of_the_first_token(T, **options):
    q, k, v = qkv(T, B=1, H=1, D=2)
    v.requires_grad_()
    out = strided_local(T, **options)(q, k, v)
    return torch.autograd.grad(out[0, 0, 0].sum(), v)[0][0, 0, :, 0].nonzero()[:, 0].tolist()


def test_first_token_of_listops_attends_to_every_41st_token():
    assert keys_of_the_first_token(2000) == list(range(0, 2000, 41))
    # 2000 is a multiple of 50, so only the extra block makes this 41.
    assert keys_of_the_first_token(2000, extra_block=False) == list(range(0, 2000, 40))
    assert keys_of_the_first_token(1999, extra_block=False) == list(range(0, 1999, 40))
    assert keys_of_the_first_token(1999) == list(range(0, 1999, 40))


def ragged_mask(T, counts):
    return torch.arange(T) < torch.tensor(counts)[:, None]


@pytest.mark.parametrize("extra_block", [True, False])
def test_length_option_selects_groups_of_longest_or_own_row(extra_block):
    T, counts, options = 64, [64, 40, 11], {"block": 8, "extra_block": extra_block}
    inputs = qkv(T)
    out = {
        x: strided_local(T, length=x, **options)(*inputs, ragged_mask(T, counts))
        for x in ("max", "real")
    }
    for b, n in enumerate(counts):
        row = [x[b : b + 1, :, :n] for x in inputs]
        for length, longest in (("max", T), ("real", n)):
            alone = strided_local(longest, length="max", **options)(*row)
            assert_near(out[length][b : b + 1, :, :n], alone, f"{length}, {n} tokens")
    assert not torch.allclose(out["max"][1], out["real"][1])


def test_query_that_is_not_a_key_has_no_group():
    q, k, v = (x.requires_grad_() for x in qkv(12))
    out = strided_local(12, block=3)(q, k, v, key_mask=ragged_mask(12, [12, 7, 0]))
    assert not out[1, :, 7:].any()
    assert not out[2].any()
    found = torch.autograd.grad(out.square().sum(), q)[0]
    assert not found[1, :, 7:].any()
    assert found[1, :, :7].any()


OPTIONS = [{"length": x, "extra_block": y} for x in ("max", "real") for y in (True, False)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("block", [1, 8])
def test_every_option_obeys_contract(block, options):
    contract.check_contract(strided_local(66, block=block, **options))
