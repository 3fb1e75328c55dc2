"""Linformer: full attention over projected keys and values."""

import pytest
import torch
from contract import assert_near, key_masks, qkv, unchecked

from longspan import build
from longspan.errors import InputError, OptionError


def linformer(max_length=40, rank=8, heads=3, **options):
    options = {"heads": heads, "max_length": max_length, "rank": rank, **options}
    return build("linformer", **options).double()


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value"])
def test_identity_projections_give_full_attention(sharing):
    attention = linformer(max_length=30, rank=30, sharing=sharing)
    with torch.no_grad():
        attention.projection.copy_(torch.eye(30).expand_as(attention.projection))
    inputs = qkv(30)
    assert_near(attention(*inputs), build("full")(*inputs), "output")


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value"])
def test_it_is_attention_to_the_projected_keys_and_values(sharing):
    attention = linformer(sharing=sharing)
    q, k, v = qkv(25, 33)
    E, F = attention.projection[0, ..., :33], attention.projection[-1, ..., :33]
    for b in range(3):
        for h in range(3):
            e, f = E[h % len(E)], F[h % len(F)]
            weights = (q[b, h] @ (e @ k[b, h]).T / 8**0.5).softmax(-1)
            assert_near(attention(q, k, v)[b, h], weights @ (f @ v[b, h]), f"{b} {h}")


@pytest.mark.parametrize(("sharing", "count"), [("none", 2 * 3), ("headwise", 2), ("key_value", 1)])
def test_sharing_counts_its_parameters(sharing, count):
    parameters = sum(x.numel() for x in linformer(sharing=sharing).parameters())
    assert parameters == count * 8 * 40


def test_a_projected_key_has_the_size_of_a_key():
    torch.manual_seed(0)
    attention = linformer(max_length=1000, rank=64)
    _, k, _ = qkv(1000)
    assert 0.8 < (attention.projection[0, 0] @ k).std() < 1.2


def test_the_columns_of_padding_get_no_gradient():
    attention = linformer()
    attention(*qkv(40), key_masks(40)["ragged"]).sum().backward()
    assert attention.projection.grad[..., :20].all()
    longest = torch.zeros(3, 40, dtype=torch.bool)
    longest[:, :20] = True
    attention.zero_grad()
    attention(*qkv(40), longest).sum().backward()
    assert not attention.projection.grad[..., 20:].any()


def test_what_it_was_not_built_for_is_refused():
    with pytest.raises(InputError, match="S=41 is beyond max_length=40; build it longer"):
        linformer()(*qkv(41))
    with pytest.raises(InputError, match="it was built for 3 heads, got 2"):
        linformer(sharing="none")(*qkv(9, H=2))
    linformer(sharing="headwise")(*qkv(9, H=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "linformer needs rank >= 1, got 0"),
        ({"sharing": "all"}, "sharing is one of none, headwise, key_value, got 'all'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        unchecked("linformer", heads=3, max_length=40, **options)
