"""Linformer: full attention to projected keys and values."""

import pytest
import torch
from contract import TOLERANCE, assert_near, build_unchecked, check_contract, key_masks, qkv
from torch.utils.flop_counter import FlopCounterMode

from longspan import build
from longspan.errors import InputError, OptionError


def linformer(max_length=40, rank=8, heads=3, **options):
    options = {"heads": heads, "max_length": max_length, "rank": rank, **options}
    return build("linformer", **options).double()


SHARING = ["none", "headwise", "key_value", "layerwise"]
POOLS = {"mean": torch.mean, "max": torch.amax}


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("projection", ["learned", "convolution"])
def test_every_sharing_obeys_contract(sharing, projection):
    torch.manual_seed(0)
    check_contract(linformer(max_length=64, rank=7, sharing=sharing, projection=projection))


@pytest.mark.parametrize("projection", sorted(POOLS))
@pytest.mark.parametrize("rank", [1, 6, 64])
def test_pools_obey_contract(projection, rank):
    check_contract(linformer(max_length=64, rank=rank, projection=projection))


@pytest.mark.parametrize("sharing", SHARING)
def test_identity_projections_give_full_attention(sharing):
    attention = linformer(max_length=30, rank=30, sharing=sharing)
    with torch.no_grad():
        attention.projection.copy_(torch.eye(30).expand_as(attention.projection))
    inputs = qkv(30)
    assert_near(attention(*inputs), build("full")(*inputs), "output")


@pytest.mark.parametrize("sharing", SHARING)
def test_equals_attention_to_projected_keys_and_values(sharing):
    attention = linformer(sharing=sharing)
    q, k, v = qkv(25, 33)
    E, F = attention.projection[0, ..., :33], attention.projection[-1, ..., :33]
    for b in range(3):
        for h in range(3):
            e, f = E[h % len(E)], F[h % len(F)]
            weights = (q[b, h] @ (e @ k[b, h]).T / 8**0.5).softmax(-1)
            assert_near(attention(q, k, v)[b, h], weights @ (f @ v[b, h]), f"{b} {h}")


@pytest.mark.parametrize(
    ("sharing", "count"), [("none", 2 * 3), ("headwise", 2), ("key_value", 1), ("layerwise", 1)]
)
@pytest.mark.parametrize(
    ("projection", "each"),
    [("learned", 8 * 40), ("convolution", 5), ("mean", 0), ("max", 0)],
)
def test_sharing_determines_the_parameter_counts(sharing, count, projection, each):
    attention = linformer(sharing=sharing, projection=projection)
    assert sum(x.numel() for x in attention.parameters()) == count * each


@pytest.mark.parametrize("projection", sorted(POOLS))
@pytest.mark.parametrize("T", [24, 40])
def test_pools_equal_those_of_even_segments(projection, T):
    q, k, v = qkv(T)
    slot_keys, slot_values = (POOLS[projection](x.unflatten(2, (8, T // 8)), dim=3) for x in (k, v))
    out = linformer(projection=projection)(q, k, v)
    assert_near(out, build("full")(q, slot_keys, slot_values), "output")


@pytest.mark.parametrize("projection", sorted(POOLS))
def test_pools_of_a_row_divide_its_real_tokens(projection):
    """Eleven real tokens form four segments of two and one of three; holes are skipped."""
    q, k, v = qkv(23, B=1)
    real = torch.zeros(1, 23, dtype=torch.bool)
    real[0, [1, 2, 5, 6, 7, 8, 9, 11, 13, 20, 21]] = True
    groups = [[1, 2], [5, 6], [7, 8], [9, 11], [13, 20, 21]]
    slot_keys, slot_values = (
        torch.stack([POOLS[projection](x[:, :, g], dim=2) for g in groups], 2) for x in (k, v)
    )
    out = linformer(rank=5, projection=projection)(q, k, v, real)
    expected = build("full")(q, slot_keys, slot_values)
    assert_near(out[:, :, real[0]], expected[:, :, real[0]], "output")


@pytest.mark.parametrize("projection", sorted(POOLS))
@pytest.mark.parametrize("T", [1, 7, 8])
def test_sequence_no_longer_than_rank_is_not_pooled(projection, T):
    inputs = qkv(T)
    assert_near(linformer(projection=projection)(*inputs), build("full")(*inputs), "output")


@pytest.mark.parametrize("T", [1, 4, 5, 33, 40])
def test_convolution_stride_equals_its_kernel_size(T):
    torch.manual_seed(3)
    attention = linformer(sharing="none", projection="convolution")
    q, k, v = qkv(T)
    padded = [torch.cat([x, x.new_zeros(3, 3, -T % 5, 8)], 2) for x in (k, v)]
    slot_keys, slot_values = (
        torch.nn.functional.conv1d(
            x.movedim(3, 1).reshape(24, 3, -1), weight, stride=5, groups=3
        ).reshape(3, 8, 3, -1)
        for x, weight in zip(padded, attention.projection, strict=True)
    )
    expected = build("full")(q, slot_keys.movedim(1, 3), slot_values.movedim(1, 3))
    assert_near(attention(q, k, v), expected, "output")


def test_mean_equals_convolution_with_equal_weights():
    """At max_length, segments and convolution windows coincide."""
    attention = linformer(projection="convolution")
    torch.nn.init.constant_(attention.projection, 1 / 5)
    inputs = qkv(40)
    assert_near(attention(*inputs), linformer(projection="mean")(*inputs), "output")


@pytest.mark.parametrize("projection", ["mean", "max", "convolution"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_is_near_float64_in_every_projection(projection, dtype):
    attention = linformer(max_length=100, projection=projection).to(dtype)
    inputs = qkv(100, dtype=dtype)
    exact = attention.double()(*(x.double() for x in inputs))
    out = attention.to(dtype)(*inputs)
    assert out.dtype == dtype
    assert_near(out.double(), exact, "output", TOLERANCE[dtype])


@pytest.mark.parametrize("projection", ["learned", "mean", "max", "convolution"])
def test_flops_equal_counted_flops(projection):
    attention = linformer(max_length=1024, projection=projection, rank=32)
    with FlopCounterMode(display=False) as counter:
        attention(*qkv(1024, B=1, H=3))
    assert attention.flops(1024, 8) * 3 == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_list_of_ranks_has_one_per_layer():
    for layer, rank in enumerate([8, 4, 2]):
        attention = linformer(rank=[8, 4, 2], layer=layer)
        assert attention.projection.shape == (2, 1, rank, 40)
        assert attention.flops(40, 8) == linformer(rank=rank).flops(40, 8)


def test_sharing_layer_uses_the_projection_of_the_first():
    first, second = (linformer(sharing="layerwise", layer=n) for n in (0, 1))
    inputs = qkv(30)
    unshared = second(*inputs)
    second.share(first)
    assert not second.state_dict()
    assert_near(second(*inputs), first(*inputs), "output")
    assert not torch.allclose(second(*inputs), unshared, atol=1e-3)
    # Sharing survives replacement of the parameter.
    first.projection = torch.nn.Parameter(first.projection.detach() + 1)
    assert_near(second(*inputs), first(*inputs), "output after a change")


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value"])
def test_layer_that_does_not_share_keeps_its_projection(sharing):
    first, second = linformer(sharing=sharing), linformer(sharing=sharing)
    before = second.projection
    second.share(first)
    assert second.projection is before


def test_initial_projection_preserves_the_scale_of_keys():
    torch.manual_seed(0)
    attention = linformer(max_length=1000, rank=64)
    _, k, _ = qkv(1000)
    assert 0.8 < (attention.projection[0, 0] @ k).std() < 1.2


def test_projection_columns_of_padding_get_no_gradient():
    attention = linformer()
    attention(*qkv(40), key_masks(40)["ragged"]).sum().backward()
    assert attention.projection.grad[..., :20].all()
    longest = torch.zeros(3, 40, dtype=torch.bool)
    longest[:, :20] = True
    attention.zero_grad()
    attention(*qkv(40), longest).sum().backward()
    assert not attention.projection.grad[..., 20:].any()


def test_inputs_of_other_sizes_are_rejected():
    with pytest.raises(InputError, match="S=41 exceeds max_length=40"):
        linformer()(*qkv(41))
    with pytest.raises(InputError, match="heads must be 3, as built; got 2"):
        linformer(sharing="none")(*qkv(9, H=2))
    linformer(sharing="headwise")(*qkv(9, H=2))
    linformer(sharing="none", projection="mean")(*qkv(9, H=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "option rank must be >= 1 and have an entry for layer 0; got 0"),
        ({"rank": [8, 0]}, r"must be >= 1 and have an entry for layer 0; got \[8, 0\]"),
        ({"rank": []}, r"must be >= 1 and have an entry for layer 0; got \[\]"),
        ({"rank": [8], "layer": 1}, r"must be >= 1 and have an entry for layer 1; got \[8\]"),
        ({"sharing": "all"}, "expected one of none, headwise, key_value, layerwise; got 'all'"),
        ({"projection": "sum"}, "expected one of learned, mean, max, convolution; got 'sum'"),
        (
            {"sharing": "layerwise", "rank": [8, 4]},
            r"sharing='layerwise' requires one rank for all layers, got \[8, 4\]",
        ),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(OptionError, match=message):
        build_unchecked("linformer", heads=3, max_length=40, **options)
