"""Sinkhorn: balanced sort matrices, permutations at low temperature, masks and causality."""

import math

import pytest
import torch
from contract import HEAD_DIM, HEADS, assert_near, check_contract, full_and_causal, qkv

from longspan import build
from longspan.attention.ops.block_sorting import block_means, prefix_means, sinkhorn_normalize
from longspan.attention.ops.open_sizes import split_blocks

SIZES = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 128}


def sinkhorn(block=8, causal=False, **options):
    return build("sinkhorn", causal=causal, block=block, **(SIZES | options)).double()


class FixedSort(torch.nn.Module):
    """Sort with a given matrix S."""

    def __init__(self, S):
        super().__init__()
        self.S = S

    def forward(self, q, k, real):
        return self.S.expand(*q.shape[:2], -1, -1)


def sinkhorn_with_matrix(S, **options):
    """Build the mechanism with a given S for all heads and samples."""
    attention = sinkhorn(**options)
    attention.sort = FixedSort(S)
    return attention


def sort_matrix(attention, q, k, mask=None):
    """Return S of these queries and keys."""
    mask = torch.ones(1, q.shape[2], dtype=torch.bool) if mask is None else mask
    q, k = (split_blocks(x * mask[:, None, :, None], attention.block, 2) for x in (q, k))
    return attention.sort(q, k, split_blocks(mask, attention.block, 1))


def masked_attention(q, k, v, mask):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf).softmax(-1)
    return weights @ v


OPTIONS = [
    {},
    {"block": 1},
    {"block": 5, "iterations": 0},
    {"sorting": "linear"},
    {"sorting": "mlp", "iterations": 1},
    {"sorting": "linear", "gumbel": True, "temperature": 2.0},
]


@full_and_causal
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_obeys_contract(options, causal):
    check_contract(sinkhorn(causal=causal, **options), lengths=(1, 8, 9, 33))


@pytest.mark.parametrize("options", [{"sortcut": 1}, {"sortcut": 3}, {"sortcut": 2, "block": 3}])
def test_sortcut_obeys_contract(options):
    check_contract(sinkhorn(**options), lengths=(1, 8, 9, 33))


def test_rows_and_columns_sum_to_one():
    q, k, _ = (2 * x for x in qkv(64))
    for sorting in ("attention", "linear", "mlp"):
        S = sort_matrix(sinkhorn(iterations=20, sorting=sorting), q, k)
        assert S.shape == (3, HEADS, 8, 8)
        assert S.std() > 1e-2
        for dim in (-1, -2):
            assert (S.sum(dim) - 1).abs().max() < 1e-3
    S = sort_matrix(sinkhorn(iterations=0, temperature=0.1), q, k)
    assert (S.sum(-2) - 1).abs().max() > 0.1, "the columns are balanced without iterations"


def test_one_iteration_divides_rows_then_columns_then_rows():
    Z = qkv(6, D=6)[0]
    S = Z.exp()
    for dim in (-1, -2, -1):
        S = S / S.sum(dim, keepdim=True)
    assert_near(sinkhorn_normalize(Z, torch.ones(1, 6, dtype=torch.bool), 1, False), S, "S")


def test_columns_are_balanced_over_real_blocks_only():
    q, k, _ = (2 * x for x in qkv(64))
    mask = torch.arange(64) < torch.tensor([64, 40, 17])[:, None]
    S = sort_matrix(sinkhorn(iterations=30), q, k, mask)
    for row, blocks in enumerate((8, 5, 3)):
        live = (torch.arange(8) < blocks).double().expand(HEADS, -1)
        for dim in (-1, -2):
            assert_near(S[row].sum(dim), live, f"row {row}", 1e-3)


def test_means_are_over_real_tokens():
    x = qkv(10)[0]
    real = torch.rand(3, 10, generator=torch.Generator().manual_seed(0)) < 0.5
    real[0, :4] = False
    x = x * real[:, None, :, None]
    found = block_means(split_blocks(x, 4, 2), split_blocks(real, 4, 1))
    before = prefix_means(split_blocks(x, 4, 2), split_blocks(real, 4, 1))
    for b in range(3):
        for block in range(3):
            tokens = torch.arange(10) // 4 == block
            past = torch.arange(10) <= 4 * block
            for mean, chosen in ((found, tokens & real[b]), (before, past & real[b])):
                expected = x[b][:, chosen].sum(1) / max(1, int(chosen.sum()))
                assert_near(mean[b, :, block], expected, f"row {b}, block {block}")


@pytest.mark.parametrize("sorting", ["attention", "linear", "mlp"])
def test_scores_between_blocks_equal_the_paper(sorting):
    q, k, _ = (3 * x for x in qkv(24))
    attention = sinkhorn(sorting=sorting, iterations=0, temperature=0.5)
    y, z = (x.unflatten(2, (3, 8)).mean(3) for x in (q, k))
    if sorting == "attention":
        R = (y @ z.mT / math.sqrt(HEAD_DIM)).relu()
    else:
        net = attention.sort.net
        with torch.no_grad():
            for bias in net.biases:
                bias.normal_()
        W, c = net.weights[-1], net.biases[-1]
        R = z if sorting == "linear" else (z @ net.weights[0] + net.biases[0]).relu()
        R = (R @ W + c)[..., :3]
        R = R if sorting == "linear" else R.relu()
        assert W.shape == (HEADS, HEAD_DIM, 16), "one column per block up to max_length"
    S = sort_matrix(attention, q, k)
    assert_near(S, (R / 0.5).softmax(-1), "S")
    assert S.std() > 1e-2


def inputs_for_order(T, block, order, size=40.0):
    """Return inputs whose block means strongly select block order[I] for block I."""
    blocks = torch.arange(T) // block
    q, k, v = qkv(T)
    block_mean = q.unflatten(2, (-1, block)).mean(3).repeat_interleave(block, 2)
    k = k - k.unflatten(2, (-1, block)).mean(3).repeat_interleave(block, 2)
    q = q - block_mean
    identity = size * torch.eye(HEAD_DIM, dtype=torch.float64)
    return q + identity[torch.tensor(order)[blocks]], k + identity[blocks], v


ORDER = (2, 0, 3, 1)


def test_low_temperature_gives_a_permutation_of_blocks():
    q, k, v = inputs_for_order(32, 8, ORDER)
    attention = sinkhorn(temperature=1e-2)
    permutation = torch.eye(4, dtype=torch.float64)[list(ORDER)]
    S = sort_matrix(attention, q, k)
    assert_near(S, permutation.expand_as(S), "S")
    blocks = torch.arange(32) // 8
    sorted_blocks = torch.tensor(ORDER)[blocks]
    mask = (blocks[:, None] == blocks) | (sorted_blocks[:, None] == blocks)
    assert_near(attention(q, k, v), masked_attention(q, k, v, mask), "output")


def test_identity_permutation_equals_attention_within_blocks():
    q, k, v = qkv(30)
    blocks = torch.arange(30) // 8
    expected = masked_attention(q, k, v, blocks[:, None] == blocks)
    assert_near(
        sinkhorn_with_matrix(torch.eye(4, dtype=torch.float64))(q, k, v), expected, "output"
    )


@pytest.mark.parametrize("T", [1, 5, 8])
def test_one_block_equals_full_attention(T):
    inputs = qkv(T)
    for options in ({}, {"causal": True}, {"sorting": "linear"}, {"sortcut": 2}):
        out = sinkhorn(**options)(*inputs)
        full = build("full", causal=options.get("causal", False))
        assert_near(out, full(*inputs), str(options))


def test_soft_matrix_gives_softmax_over_mixed_and_own_keys():
    q, k, v = qkv(32)
    S = torch.rand(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    S = S / S.sum(-1, keepdim=True)
    mixture = torch.kron(S, torch.eye(8, dtype=torch.float64))
    blocks = torch.arange(32) // 8
    mask = (blocks[:, None] == blocks).repeat(1, 2)
    keys, values = (torch.cat([mixture @ x, x], 2) for x in (k, v))
    assert_near(sinkhorn_with_matrix(S)(q, k, v), masked_attention(q, keys, values, mask), "output")
    # With sortcut=2, all queries attend to the first two sorted blocks.
    mask[:, :32] = blocks < 2
    assert_near(
        sinkhorn_with_matrix(S, sortcut=2)(q, k, v),
        masked_attention(q, keys, values, mask),
        "sortcut",
    )


def test_every_block_is_reached_and_trains_every_head_of_the_sort():
    q, k, v = (x.requires_grad_() for x in qkv(40))
    attention = sinkhorn(sorting="mlp")
    attention(q, k, v)[:, :, :8].square().sum().backward()
    assert (v.grad != 0).all()
    assert all(x.grad.any() for x in attention.parameters())
    for name, x in attention.named_parameters():
        assert x.grad.flatten(1).any(1).all(), f"{name}: a head without gradient"


def test_first_two_causal_blocks_equal_full_attention():
    inputs = qkv(16)
    out = sinkhorn(causal=True)(*inputs)
    assert_near(out, build("full", causal=True)(*inputs), "two blocks")
    longer = qkv(24)
    out, full = (f(*longer) for f in (sinkhorn(causal=True), build("full", causal=True)))
    assert_near(out[:, :, :16], full[:, :, :16], "first two of three blocks")
    assert (out[:, :, 16:] - full[:, :, 16:]).abs().max() > 1e-2


def test_causal_rows_of_the_sort_depend_on_earlier_rows_only():
    Z = qkv(7, D=7)[0]
    live = torch.ones(1, 7, dtype=torch.bool)
    S = sinkhorn_normalize(Z, live, 5, True)
    assert not S.triu().any()
    assert_near(S.sum(-1)[..., 1:], torch.ones(3, HEADS, 6).double(), "rows")
    for rows in range(2, 7):
        fewer = sinkhorn_normalize(Z[..., :rows, :rows], live[:, :rows], 5, True)
        assert_near(S[..., :rows, :rows], fewer, f"{rows} rows", 1e-14)


def test_noise_is_for_training_only_and_changes_only_by_redraw():
    inputs = qkv(40)
    plain, noisy = sinkhorn(), sinkhorn(gumbel=True)
    first = noisy(*inputs)
    assert (first - plain(*inputs)).abs().max() > 1e-3
    assert torch.equal(noisy(*inputs), first)
    before = torch.get_rng_state()
    noisy.redraw(1)
    second = noisy(*inputs)
    assert (second - first).abs().max() > 1e-3
    noisy.redraw(0)
    assert_near(noisy(*inputs), first, "layer 0 and seed 0 are drawn from 0", 1e-5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(noisy.eval()(*inputs), plain(*inputs))
    other = sinkhorn(gumbel=True, seed=1)
    assert (other(*inputs) - first).abs().max() > 1e-3


def test_noise_is_gumbel_and_differs_between_heads():
    noise = sinkhorn(block=1, gumbel=True).sort.noise
    assert noise.shape == (HEADS, 128, 128)
    assert abs(noise.mean().item() - 0.5772) < 0.02
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.05
    assert (noise[0] - noise[1]).abs().mean() > 1


def test_default_block_depends_on_max_length():
    for length, block in ((1, 4), (128, 12), (1024, 32), (4096, 64), (16384, 128)):
        attention = build("sinkhorn", **(SIZES | {"max_length": length}))
        assert attention.block == block


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_mixtures_of_small_weight_stay_accurate(dtype):
    """Where only a block of weight 1e-6 has a real token, that token is the key."""
    S = torch.tensor([[1.0, 1e-6], [1e-6, 1.0]], dtype=torch.float64)
    mask = torch.ones(3, 16, dtype=torch.bool)
    mask[:, 12:] = False
    inputs = qkv(16, dtype=dtype)
    exact = sinkhorn_with_matrix(S)(*(x.double() for x in inputs), mask)
    attention = sinkhorn_with_matrix(S.float()).to(dtype)
    attention.sort = FixedSort(S.float())
    out = attention(*inputs, mask)
    atol = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    assert_near(out.double(), exact, "output", atol)


def test_weight_too_small_to_divide_by_is_not_a_key():
    S = torch.tensor([[1.0, 1e-30], [0.0, 1.0]])
    inputs = [x.requires_grad_() for x in qkv(16, dtype=torch.float32)]
    mask = torch.ones(3, 16, dtype=torch.bool)
    mask[:, 4:8] = False
    attention = build("sinkhorn", block=8, **SIZES)
    attention.sort = FixedSort(S.requires_grad_())
    out = attention(*inputs, mask)
    out.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (*inputs, S))
    expected = masked_attention(*(x[:, :, :4] for x in inputs), torch.ones(4, 4, dtype=torch.bool))
    assert_near(out[:, :, :4], expected, "keys of its own block only", 1e-5)
