"""Sums of features in pieces: equal to the formula, and no features kept for the backward pass."""

import pytest
import torch
from contract import (
    assert_equals_reference,
    assert_near,
    check_contract,
    check_higher_derivatives,
    key_masks,
    qkv,
    reference_copy,
    run_and_count_saved,
    run_with_gradients,
)

from longspan import build
from longspan.attention.mechanisms.performer import MAPS
from longspan.attention.ops import feature_pieces

every_map = pytest.mark.parametrize("feature_map", MAPS)


@pytest.fixture
def small_pieces(monkeypatch):
    """Let every piece have five tokens."""
    monkeypatch.setattr(feature_pieces, "PIECE_BYTES", 1)
    monkeypatch.setattr(feature_pieces, "SHORTEST", 5)


def make(feature_map, features=16):
    sizes = {"heads": 3, "head_dim": 8, "features": features}
    return build("performer", feature_map=feature_map, **sizes).double()


@every_map
@pytest.mark.usefixtures("small_pieces")
def test_pieces_obey_the_contract(feature_map):
    check_contract(make(feature_map), lengths=(1, 5, 6, 23))


@every_map
@pytest.mark.parametrize("shortest", [5, 100], ids=["small", "whole"])
@pytest.mark.usefixtures("small_pieces")
def test_rows_and_pieces_without_keys(monkeypatch, feature_map, shortest):
    """Levels stay finite where the first piece, a middle one or all have no real key.

    A piece of all samples has rows with and without keys.
    """
    monkeypatch.setattr(feature_pieces, "SHORTEST", shortest)
    key_mask = torch.ones(4, 23, dtype=torch.bool)
    key_mask[0], key_mask[1, :5], key_mask[2, 5:10] = False, False, False
    attention, inputs = make(feature_map), qkv(7, 23, B=4)
    assert not attention(*inputs, key_mask=key_mask)[0].any()
    assert_equals_reference(attention, inputs, "no keys", key_mask=key_mask)


@every_map
@pytest.mark.parametrize(("T", "S"), [(7, 23), (23, 7), (1, 12)])
@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_queries_and_keys_differ(feature_map, T, S):
    attention, inputs = make(feature_map), qkv(T, S)
    assert_near(attention(*inputs), reference_copy(attention)(*inputs), "output")


@every_map
@pytest.mark.usefixtures("small_pieces")
def test_pieces_have_second_derivatives_and_forward_mode(feature_map):
    check_higher_derivatives(make(feature_map), key_masks(12)["holes"])


@every_map
def test_keys_alone_are_mapped(feature_map):
    """vmap refuses to write keys of several samples into queries of one."""
    attention, (q, k, v) = make(feature_map), qkv(12, B=2)
    found = torch.vmap(lambda key: attention(q, key, v))(torch.stack([k, -k]))
    for row, key in zip(found, (k, -k), strict=True):
        assert_near(row, attention(q, key, v), "output")


@pytest.mark.parametrize("order", ["rising", "falling"])
@pytest.mark.parametrize("norm", [30.0, 300.0])
@pytest.mark.usefixtures("small_pieces")
def test_levels_of_pieces_far_apart_stay_in_range(norm, order):
    q, k, v = qkv(23, dtype=torch.float32)
    norms = torch.linspace(0, norm, 23)[:, None]
    k = k * (norms if order == "rising" else norms.flip(0))
    attention = build("performer", heads=3, head_dim=8, features=16)
    expected = reference_copy(attention).double()(q.double(), k.double(), v.double())
    assert_near(attention(q, k, v).double(), expected, "output", 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_map
def test_pieces_of_half_precision_round_as_the_whole(feature_map, dtype, monkeypatch):
    attention, results = make(feature_map), []
    monkeypatch.setattr(feature_pieces, "PIECE_BYTES", 1)
    monkeypatch.setattr(feature_pieces, "SHORTEST", 5)
    for whole in (True, False):
        monkeypatch.setattr(feature_pieces, "has_transforms", lambda whole=whole: whole)
        results.append(run_with_gradients(attention, qkv(23, dtype=dtype)))
        assert {x.dtype for x in results[-1]} == {dtype}
    assert_near(*results, "output or gradient", 4 * torch.finfo(dtype).eps)


@every_map
def test_features_are_not_kept_for_the_backward_pass(feature_map, monkeypatch):
    """What is saved grows with the inputs, not with the features of all tokens."""
    monkeypatch.setattr(feature_pieces, "PIECE_BYTES", 1 << 15)
    inputs = [torch.randn(2, 3, 4_096, 8, requires_grad=True) for _ in range(3)]
    attention = make(feature_map, features=256).float()
    out, saved = run_and_count_saved(attention, *inputs)
    assert saved < 1.5 * sum(x.nbytes for x in (*inputs, out))


@pytest.mark.parametrize(
    ("token_bytes", "length", "expected"),
    [
        (1 << 13, 16_384, (1, 512)),  # tokens of one sample
        (1 << 13, 200, (2, 200)),  # whole samples
        (1 << 13, 512, (1, 512)),
        (1 << 20, 16_384, (1, 64)),  # as many tokens as matrix products need
    ],
)
def test_pieces_are_bounded_by_their_bytes(token_bytes, length, expected):
    assert feature_pieces.piece_size(token_bytes, length) == expected


@pytest.mark.parametrize("B", [1, 2, 7])
def test_pieces_may_hold_several_samples(B, monkeypatch):
    monkeypatch.setattr(feature_pieces, "SHORTEST", 12)
    monkeypatch.setattr(feature_pieces, "PIECE_BYTES", 1)
    inputs = qkv(6, B=B)
    key_mask = torch.arange(6) < torch.arange(1, B + 1)[:, None]
    attention = make("softmax")
    out = attention(*inputs, key_mask)
    assert_near(out, reference_copy(attention)(*inputs, key_mask), "output")
