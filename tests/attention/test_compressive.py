"""Compressive Transformer: slots for rows that leave the memory, and the losses that train them."""

import pytest
import torch
import torch.nn.functional as F
from contract import HEAD_DIM, HEADS, assert_near, check_contract, full_and_causal, key_masks, qkv
from test_transformer_xl import randomize_parameters, transformer_xl

from longspan import build
from longspan.attention import Inputs
from longspan.attention.mechanisms.compressive import Compression
from longspan.attention.ops.segments import Rows
from longspan.errors import InputError, OptionError

KINDS = ["max", "mean", "conv", "dilated", "most_used"]
SIZES = {"heads": HEADS, "head_dim": HEAD_DIM}
every_kind = pytest.mark.parametrize("kind", KINDS)


def compressive(causal=True, **options):
    """Build with random parameters, because learned compressions begin as the mean."""
    return randomize_parameters(build("compressive", causal=causal, **SIZES, **options))


def compression(kind, ratio, **options):
    return Compression(kind, ratio, HEADS, HEAD_DIM, options.get("autoencoder", False)).double()


def last_cache(attention, inputs, sizes):
    cache = None
    for part in torch.arange(inputs[0].shape[2]).split(sizes):
        _, cache = attention.step(*(x[:, :, part] for x in inputs), cache)
    return cache


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [
        {"segment": 6, "memory": 4, "compressed_memory": 5, "ratio": 4, "compression": k}
        for k in KINDS
    ]
    + [
        {"segment": 4, "memory": 0, "compressed_memory": 30, "ratio": 6, "compression": "dilated"},
        {"segment": 8, "memory": 3, "compressed_memory": 1, "ratio": 2},
        {"segment": 7, "memory": 5, "compressed_memory": 0, "ratio": 3},
        {"segment": 6, "memory": 4, "compressed_memory": 3, "ratio": 3, "compression": "conv"}
        | {"backprop_through_memory": True},
        {"segment": 6, "memory": 4, "compressed_memory": 3, "ratio": 3, "compression": "most_used"}
        | {"backprop_through_memory": True},
    ],
    ids=str,
)
def test_obeys_contract_with_other_compressions(options, causal):
    check_contract(compressive(causal, **options), lengths=(1, 6, 31))


@full_and_causal
@pytest.mark.parametrize("memory", [0, 5, 8, 19])
def test_without_slots_equals_transformer_xl(causal, memory):
    sizes = {"segment": 6, "memory": memory}
    without_slots = transformer_xl(causal, **sizes)
    attention = compressive(causal, compressed_memory=0, ratio=4, **sizes)
    attention.load_state_dict(without_slots.state_dict())
    for mask in key_masks(40).values():
        assert_near(attention(*qkv(40), mask), without_slots(*qkv(40), mask), "output")


@full_and_causal
@every_kind
def test_slots_of_one_row_equal_a_longer_memory(kind, causal):
    attention = build(
        "compressive",
        **SIZES,
        causal=causal,
        segment=6,
        memory=4,
        compressed_memory=9,
        ratio=1,
        compression=kind,
    ).double()
    without_slots = transformer_xl(causal, segment=6, memory=13)
    attention.load_state_dict(without_slots.state_dict(), strict=False)
    for mask in key_masks(50).values():
        assert_near(attention(*qkv(50), mask), without_slots(*qkv(50), mask), "output")


@pytest.mark.parametrize(("n", "memory", "ratio"), [(6, 4, 4), (5, 7, 3), (4, 0, 6), (3, 2, 7)])
def test_rows_wait_in_memory_until_they_fill_a_group(n, memory, ratio):
    """Each row is in the memory or in one slot."""
    attention = compressive(segment=n, memory=memory, compressed_memory=100, ratio=ratio)
    T, inputs = 41, qkv(41)
    for end in range(1, T + 1, 5):
        state = last_cache(attention, [x[:, :, :end] for x in inputs], 2).state
        start = end // n * n
        groups = state["slot_k"].shape[2]
        assert groups == max(0, start - memory) // ratio
        expected = inputs[1][:, :, : groups * ratio].unflatten(2, (-1, ratio)).mean(3)
        assert_near(state["slot_k"], expected, "slots, oldest first")
        assert_near(state["k"], inputs[1][:, :, groups * ratio : end], "rows")
        assert_near(state["v"], inputs[2][:, :, groups * ratio : end], "rows of values")


def test_newest_slots_are_kept():
    attention = compressive(segment=6, memory=4, compressed_memory=3, ratio=2)
    inputs = qkv(40)
    state = last_cache(attention, inputs, 9).state
    groups = (36 - 4) // 2
    expected = inputs[2][:, :, : groups * 2].unflatten(2, (-1, 2)).mean(3)[:, :, -3:]
    assert_near(state["slot_v"], expected, "slots")
    assert state["slot_real"].all()
    assert set(state) == {"k", "v", "slot_k", "slot_v", "slot_real"}
    used = compressive(segment=6, memory=4, compressed_memory=3, ratio=2, compression="most_used")
    state = last_cache(used, inputs, 9).state
    assert torch.equal(state["q"], inputs[0][:, :, 36:])


def random_rows(T, mask=None):
    q, k, v = qkv(T)
    return q, Rows(k, v, mask)


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5])
def test_learned_compressions_equal_torch_convolutions(ratio):
    _, rows = random_rows(4 * ratio)
    for kind in ("conv", "dilated"):
        f = randomize_parameters(compression(kind, ratio))
        found = f(rows, rows.k, None)
        for h in range(HEADS):
            for x, weight, slot in ((rows.k, f.keys, found.k), (rows.v, f.values, found.v)):
                x = x[:, h].mT
                if kind == "conv":
                    kernel = weight[h].unflatten(0, (ratio, -1)).permute(2, 1, 0)
                    expected = F.conv1d(x, kernel, stride=ratio)
                else:
                    groups = x.unflatten(-1, (-1, ratio)).transpose(1, 2).flatten(0, 1)
                    for layer, w in enumerate(weight):
                        kernel = w[h].unflatten(0, (2, -1)).permute(2, 1, 0)
                        groups = F.pad(groups, (2**layer, 0))
                        groups = F.conv1d(groups, kernel, dilation=2**layer)
                    expected = groups[..., -1].unflatten(0, (3, -1)).mT
                assert_near(slot[:, h], expected.mT, f"{kind}, head {h}")


def test_learned_compressions_begin_as_the_mean():
    for ratio in (2, 4, 8):
        q, rows = random_rows(3 * ratio)
        mean = compression("mean", ratio)(rows, q, None)
        for kind in ("conv", "dilated"):
            found = compression(kind, ratio)(rows, q, None)
            assert_near(found.k, mean.k, f"{kind}, keys", 1e-6)
            assert_near(found.v, mean.v, f"{kind}, values", 1e-6)


def test_pooling_ignores_padding():
    real = torch.tensor([[1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
    q, rows = random_rows(6, real)
    low = Rows(rows.k - 9, rows.v - 9, real)
    for kind, pool in (("mean", lambda x: x.mean(1)), ("max", lambda x: x.amax(1))):
        # Mechanisms receive zeros at padded rows.
        zeros = Rows(*(x * real[:, None, :, None] for x in low[:2]), real)
        found = compression(kind, 3)(zeros, q, None)
        assert_near(found.k[0, :, 0], pool(low.k[0, :, [0, 2]]), kind)
        assert_near(found.v[1, :, 1], pool(low.v[1, :, 3:5]), kind)
        assert found.real.tolist() == [[True, False], [True, True], [False, False]]
        assert not found.k[2].any()
        assert not found.v[0, :, 1].any()


def test_most_used_keeps_the_rows_with_most_attention():
    v = qkv(6)[2]
    # Query i attends to the key along axis i, or else to all keys equally.
    q, axes = 60 * torch.eye(6, 8).double().expand(3, HEADS, -1, -1), torch.eye(8).double()
    k = torch.zeros_like(q)
    k[0, 0, 1], k[0, 0, 5] = axes[2], axes[3]
    k[0, 1, 2], k[0, 1, 3] = axes[0], axes[1]
    found = compression("most_used", 3)(Rows(k, v, None), q, None)
    assert torch.equal(found.v[0, 0], v[0, 0, [1, 5]])
    assert torch.equal(found.v[0, 1], v[0, 1, [2, 3]])
    assert torch.equal(found.k[0, 1], k[0, 1, [2, 3]])
    # Ties select the oldest real row.
    real = torch.ones(3, 6, dtype=torch.bool)
    real[1, 0] = False
    found = compression("most_used", 3)(Rows(torch.zeros_like(k), v, real), q, None)
    assert torch.equal(found.v[1], v[1][:, [1, 3]])
    no_queries = torch.zeros(3, 6, dtype=torch.bool)
    found = compression("most_used", 3)(Rows(k, v, real), torch.zeros_like(q), no_queries)
    assert torch.equal(found.v[1], v[1][:, [1, 3]])
    # Padded queries have no influence.
    query_mask = torch.ones(3, 6, dtype=torch.bool)
    query_mask[0, 2] = False
    k[0, 0, 0] = 0.1 * axes[1]
    found = compression("most_used", 3)(Rows(k, v, None), q, query_mask)
    assert torch.equal(found.v[0, 0, 0], v[0, 0, 0])


LEARNED = {"segment": 6, "memory": 4, "compressed_memory": 8, "ratio": 3, "autoencoder": True}


@pytest.mark.parametrize("kind", ["conv", "dilated"])
def test_losses_train_f_and_g_and_forward_trains_the_rest(kind):
    attention = compressive(compression=kind, **LEARNED)
    f = {"compression.keys", "compression.values"}
    g = {"compression.back_keys", "compression.back_values"}
    inputs = [x.requires_grad_() for x in qkv(40)]

    def names_with_gradient(loss):
        attention.zero_grad(set_to_none=True)
        for x in inputs:
            x.grad = None
        loss.backward()
        assert all(p.requires_grad for p in (*attention.parameters(), *inputs))
        named = {**dict(attention.named_parameters()), **dict(zip("qkv", inputs, strict=True))}
        return {n for n, p in named.items() if p.grad is not None and p.grad.any()}

    attention_inputs = {"q", "k", "v", "position", "content_bias", "position_bias"}
    for _ in range(2):
        assert names_with_gradient(attention.reconstruction_loss(*inputs)) == f
        assert names_with_gradient(attention.autoencoding_loss(*inputs)) == f | g
        assert names_with_gradient(attention(*inputs).square().sum()) == attention_inputs
    attention.backprop_through_memory = True
    assert names_with_gradient(attention(*inputs).square().sum()) == attention_inputs | f


@pytest.mark.parametrize("kind", ["mean", "max", "conv", "dilated", "most_used"])
def test_losses_are_zero_where_rows_of_a_group_are_equal(kind):
    options = LEARNED | {"ratio": 4, "compression": kind}
    attention = build("compressive", **SIZES, **options).double()
    q, k, v = qkv(32)
    equal_rows = [x[:, :, ::4].repeat_interleave(4, 2) for x in (k, v)]
    for loss in (attention.reconstruction_loss, attention.autoencoding_loss):
        assert loss(q, *equal_rows) < 1e-12
        assert loss(q, k, v) > 1e-2
        assert loss(*(x[:, :, :11] for x in (q, k, v))) == 0  # all rows are still in the memory


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_losses_in_half_precision_count_all_rows(dtype):
    """A batch has more numbers than the dtype counts."""
    inputs, attention = qkv(1000, dtype=dtype), compressive(**LEARNED)
    expected = [x(*(y.double() for y in inputs)) for x in losses_of(attention)]
    found = [x(*inputs) for x in losses_of(attention.to(dtype))]
    assert_near([x.double() for x in found], expected, "loss", 0.02)


def losses_of(attention):
    return attention.reconstruction_loss, attention.autoencoding_loss


def test_reconstruction_compares_evicted_rows_with_their_slots():
    """The loss attends to the rows that leave the memory with a segment, not to all of it."""
    attention = compressive(segment=6, memory=8, compressed_memory=9, ratio=3)
    q, k, v = qkv(20)
    total, count = 0, 0
    for end, rows in ((12, slice(0, 3)), (18, slice(3, 9))):
        queries = q[:, :, end - 6 : end]
        slots = [x[:, :, rows].unflatten(2, (-1, 3)).mean(3) for x in (k, v)]
        exact = F.scaled_dot_product_attention(queries, k[:, :, rows], v[:, :, rows])
        found = F.scaled_dot_product_attention(queries, *slots)
        total, count = total + (exact - found).square().sum(), count + exact.numel()
    assert_near(attention.reconstruction_loss(q, k, v), total / count, "loss")


def real_groups(b, rows, mask):
    """Return the real rows of each group that has any."""
    groups = (torch.arange(3) + start for start in range(rows.start, rows.stop, 3))
    return [group[mask[b, group]] for group in groups if mask[b, group].any()]


def test_losses_ignore_padding():
    attention = compressive(**LEARNED | {"compression": "max"})
    (q, k, v), mask = qkv(24), key_masks(24)["holes"]
    sums, counts = [0, 0], [0, 0]
    for end, rows in ((12, slice(0, 6)), (18, slice(6, 12)), (24, slice(12, 18))):
        for b in range(3):
            queries = q[b, :, end - 6 : end][:, mask[b, end - 6 : end]]
            groups = real_groups(b, rows, mask)
            counts[0] += queries.numel()
            counts[1] += 2 * k[b, :, rows][:, mask[b, rows]].numel()
            if not groups:
                continue
            slots = [torch.stack([x[b][:, g].amax(1) for g in groups], 1) for x in (k, v)]
            old = [x[b][:, torch.cat(groups)] for x in (k, v)]
            exact, found = (F.scaled_dot_product_attention(queries, *x) for x in (old, slots))
            sums[0] += (exact - found).square().sum()
            back = (attention.compression.back_keys, attention.compression.back_values)
            for x, slot, weight in zip((k, v), slots, back, strict=True):
                restored = (slot @ weight).unflatten(-1, (3, HEAD_DIM))
                for n, g in enumerate(groups):
                    sums[1] += (x[b][:, g] - restored[:, n, (g - rows.start) % 3]).square().sum()
    padded = [torch.where(mask[:, None, :, None], x, torch.nan) for x in (q, k, v)]
    assert_near(attention.reconstruction_loss(*padded, mask), sums[0] / counts[0], "reconstruction")
    assert_near(attention.autoencoding_loss(*padded, mask), sums[1] / counts[1], "autoencoding")


@pytest.mark.parametrize("padded", [False, True])
def test_losses_of_steps_are_those_of_the_sequence(padded):
    """A step finds in the cache the rows that leave the memory."""
    options = {"segment": 6, "memory": 7, "compressed_memory": 5, "ratio": 3}
    attention = compressive(**options, compression="conv")
    q, k, v = qkv(30)
    mask = key_masks(30)["holes"] if padded else None
    cache, total, count = None, 0.0, 0
    for part in torch.arange(30).split(6):
        own = None if mask is None else mask[:, part]
        new = [x[:, :, part] for x in (q, k, v)]
        loss = attention.auxiliary_loss(Inputs(*new, mask=own, cache=cache))
        groups = attention.groups(int(part[-1]) + 1) - attention.groups(int(part[0]))
        real = part.numel() * len(q) if own is None else int(own.sum())
        total, count = total + loss * real * bool(groups), count + real * bool(groups)
        _, cache = attention.step(*new, cache, own)
    whole = attention.auxiliary_loss(Inputs(q, k, v, mask=mask))
    assert_near(total / count, whole, "loss of steps")


@pytest.mark.parametrize(
    "options", [{"compression": "mean"}, {"compression": "conv", "compressed_memory": 0}]
)
def test_compressions_without_parameters_have_no_loss(options):
    assert compressive(**options).auxiliary_loss(Inputs(*qkv(9))) is None


def test_losses_refuse_invalid_options_and_inputs():
    with pytest.raises(OptionError, match="requires autoencoder=True"):
        compressive().autoencoding_loss(*qkv(5))
    for loss in ("reconstruction_loss", "autoencoding_loss"):
        with pytest.raises(
            InputError, match=r"compressive does not support these inputs: .*got T=5 and S=9"
        ):
            getattr(compressive(autoencoder=True), loss)(*qkv(5, 9))
