"""Linformer: full attention to projected keys and values."""

import pytest
import torch
from contract import TOLERANCE, assert_near, check_contract, key_masks, qkv

from flop_counter import flop_counter
from longspan import build
from longspan.errors import InputError


def linformer(max_length=40, rank=8, heads=3, **options):
    options = {"heads": heads, "max_length": max_length, "rank": rank, **options}
    return build("linformer", **options).double()


SHARING = ["none", "headwise", "key_value", "layerwise"]
POOLS = {"mean": torch.mean, "max": torch.amax}


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("projection", ["learned", "random", "convolution"])
def test_every_sharing_obeys_contract(sharing, projection):
    torch.manual_seed(0)
    check_contract(linformer(max_length=64, rank=7, sharing=sharing, projection=projection))


@pytest.mark.parametrize("projection", sorted(POOLS))
@pytest.mark.parametrize("rank", [1, 6, 64])
def test_pools_obey_contract(projection, rank):
    check_contract(linformer(max_length=64, rank=rank, projection=projection))


@pytest.mark.parametrize("projection", ["learned", "random"])
@pytest.mark.parametrize("sharing", SHARING)
def test_equals_attention_to_projected_keys_and_values(sharing, projection):
    attention = linformer(sharing=sharing, projection=projection)
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
    [("learned", 8 * 40), ("random", 0), ("convolution", 5), ("mean", 0), ("max", 0)],
)
def test_sharing_determines_the_parameter_counts(sharing, count, projection, each):
    attention = linformer(sharing=sharing, projection=projection)
    assert sum(x.numel() for x in attention.parameters()) == count * each


@pytest.mark.parametrize("projection", sorted(POOLS))
@pytest.mark.parametrize("T", [1, 7, 8, 24, 40])
def test_pools_equal_those_of_even_segments(projection, T):
    """A sequence no longer than the rank has a segment for each token."""
    (q, k, v), n = qkv(T), min(T, 8)
    slot_keys, slot_values = (POOLS[projection](x.unflatten(2, (n, T // n)), dim=3) for x in (k, v))
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


@pytest.mark.parametrize("projection", ["random", "mean", "max", "convolution"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_is_near_float64_in_every_projection(projection, dtype):
    # Random slots of rank 100 have the size of keys.
    rank = 100 if projection == "random" else 8
    attention = linformer(max_length=100, rank=rank, projection=projection).to(dtype)
    inputs = qkv(100, dtype=dtype)
    exact = attention.double()(*(x.double() for x in inputs))
    out = attention.to(dtype)(*inputs)
    assert out.dtype == dtype
    assert_near(out.double(), exact, "output", TOLERANCE[dtype])


@pytest.mark.parametrize("projection", ["learned", "random", "mean", "max", "convolution"])
def test_flops_equal_counted_flops(projection):
    attention = linformer(max_length=1024, projection=projection, rank=32)
    with flop_counter() as counter:
        attention(*qkv(1024, B=1, H=3))
    assert attention.flops(1024, 8) * 3 == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_list_of_ranks_has_one_per_layer():
    for layer, rank in enumerate([8, 4, 2]):
        attention = linformer(rank=[8, 4, 2], layer=layer)
        assert attention.projection.shape == (2, 1, rank, 40)
        assert attention.flops(40, 8) == linformer(rank=rank).flops(40, 8)


def test_released_projection_is_an_input():
    attention, inputs = linformer(sharing="layerwise"), qkv(30)
    expected = attention(*inputs)
    projection = attention.release_shared()
    assert not attention.state_dict()
    for backend in ("torch", "reference"):
        attention.backend = backend
        assert_near(attention(*inputs, shared=projection), expected, backend)
        assert not torch.allclose(attention(*inputs, shared=2 * projection), expected, atol=1e-3)
    with pytest.raises(InputError, match="shared is required: the model owns the projection"):
        attention(*inputs)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value"])
def test_layer_that_does_not_share_keeps_its_projection(sharing):
    attention = linformer(sharing=sharing)
    before = attention.projection
    assert attention.release_shared() is None
    assert attention.projection is before
    with pytest.raises(InputError, match="shared must be None: the mechanism owns its projection"):
        attention(*qkv(9), shared=before)


def test_random_projection_preserves_inner_products():
    """Johnson-Lindenstrauss: E^T E is the identity in expectation, with variance 1 / rank."""
    x, y = torch.randn(2, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for rank in (64, 256):
        options = {"rank": rank, "max_length": 200, "projection": "random", "sharing": "key_value"}
        rows = [linformer(seed=seed, **options).projection[0, 0] for seed in range(200)]
        products = torch.stack([(E @ x) @ (E @ y) for E in rows])
        variance = (x @ x * (y @ y) + (x @ y) ** 2) / rank
        assert (products.mean() - x @ y).abs() < 4 * (variance / 200) ** 0.5
        assert 0.7 < products.var() / variance < 1.4


def test_random_projections_differ_by_layer_and_seed_unless_all_layers_share():
    def draw(sharing, layer, seed):
        options = {"sharing": sharing, "layer": layer, "seed": seed, "projection": "random"}
        return linformer(**options).projection

    assert torch.equal(draw("headwise", 1, 3), draw("headwise", 1, 3))
    assert not torch.equal(draw("headwise", 0, 3), draw("headwise", 1, 3))
    assert not torch.equal(draw("headwise", 1, 3), draw("headwise", 1, 4))
    assert torch.equal(draw("layerwise", 0, 3), draw("layerwise", 1, 3))
    assert linformer(sharing="layerwise", projection="random").release_shared() is None
    keys, values = draw("headwise", 0, 0)
    assert not torch.equal(keys, values)


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
