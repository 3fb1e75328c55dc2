"""Native sparse attention: its three parts, what they select, and the gates."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_equals_reference,
    assert_near,
    check_contract,
    full_and_causal,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)

from longspan import build
from longspan.attention import LayerInput
from longspan.attention.ops.softmax import softmax_reference

SMALL = {"block": 4, "compressed_block": 2, "num_selected_blocks": 3, "window": 3}
PARTS = {"compressed": 0, "selected": 1, "window": 2}
OPTIONS = [
    {"compression": "mlp"},
    {"shared_heads": 3},
    {"shared_heads": 3, "compression": "mlp", "block": 6},
    {"block": 6, "compressed_block": 6, "first_blocks": 0, "local_blocks": 0, "window": 0},
    {"num_selected_blocks": 50, "local_blocks": 2},
    {"num_selected_blocks": 1, "first_blocks": 2, "local_blocks": 3},
]


def native_sparse(causal=True, **options):
    torch.manual_seed(0)
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM}
    return build("native_sparse", causal=causal, **sizes, **SMALL | options).double()


def part(name, causal=True, **options):
    """Return the mechanism with the gate of one part at one, and those of the others at zero."""
    attention = native_sparse(causal, **options)
    with torch.no_grad():
        attention.gates.weight.zero_()
        bias = torch.full((3, HEADS), -1e3)
        bias[PARTS[name]] = 1e3
        attention.gates.bias.copy_(bias.flatten())
    return attention


@full_and_causal
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_obeys_the_contract(options, causal):
    check_contract(
        native_sparse(causal, **options), lengths=(1, 9, 33), first_step=23 if causal else 1
    )


@full_and_causal
def test_long_blocks_obey_the_contract(causal):
    """Blocks of 32 and more run piece by piece."""
    sizes = {"block": 32, "compressed_block": 16, "num_selected_blocks": 2, "local_blocks": 0}
    attention = native_sparse(causal, **sizes, first_blocks=0)
    for kind, mask in key_masks(150).items():
        assert_equals_reference(attention, qkv(150), kind, mask=mask)


@full_and_causal
def test_the_window_is_that_of_local(causal):
    inputs, mask = qkv(40), key_masks(40)["holes"]
    expected = build("local", window=3, causal=causal)(*inputs, mask)
    assert_near(part("window", causal)(*inputs, mask), expected, "output")


@full_and_causal
def test_compressed_keys_are_means_of_real_tokens(causal):
    q, k, v = qkv(40)
    real = torch.arange(40) % 3 > 0
    keys, values = (
        torch.stack([x[:, :, i : i + 2][:, :, real[i : i + 2]].mean(2) for i in range(0, 40, 2)], 2)
        for x in (k, v)
    )
    ends, position = torch.arange(1, 40, 2), torch.arange(40)[:, None]
    mask = ends <= position if causal else torch.ones(40, 20, dtype=torch.bool)
    expected = softmax_reference(q, keys, values, mask)
    out = part("compressed", causal)(q, k, v, key_mask=real.expand(3, -1))
    assert_near(out, expected, "output")


@full_and_causal
def test_compressed_blocks_without_a_real_token_are_no_keys(causal):
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[:, 8:16] = False
    weights = weights_of(part("compressed", causal), *qkv(40)[:2], mask)
    assert_near(weights[:, :, 30].sum(-1), torch.ones(3, HEADS).double(), "sum")


@pytest.mark.parametrize("real", [(1, 1), (1, 0), (0, 1)])
def test_an_mlp_has_a_vector_for_each_place_with_a_token(real):
    attention, (q, k, v) = part("compressed", compression="mlp"), qkv(2)
    mlp, real = attention.values, torch.tensor(real).bool()
    block = ((v[0, 0] + mlp.places) * real[:, None]).flatten()
    expected = mlp.output((mlp.hidden(block)).relu())
    out = attention(q, k, v, key_mask=real.expand(3, -1))
    assert_near(out[0, 0, 1], expected, "row that sees one block")


@full_and_causal
def test_first_and_local_blocks_are_always_selected(causal):
    attention = part("selected", causal, num_selected_blocks=5, first_blocks=1, local_blocks=2)
    pairs = weights_of(attention, *qkv(64)[:2]) > 0
    seen = pairs.unflatten(3, (-1, 4)).any(4)
    for t in range(64):
        home = t // 4
        always = {0, home, home - 1, home - 2} | (set() if causal else {home + 1, home + 2})
        assert seen[:, :, t, sorted(always & set(range(16)))].all(), t
        available = home if causal else 15
        assert (seen[:, :, t].sum(2) == 1 + min(5, available)).all(), t


@full_and_causal
def test_others_are_the_blocks_of_the_largest_compressed_weights(causal):
    attention = part("selected", causal, num_selected_blocks=2, first_blocks=0, local_blocks=0)
    q, k, _ = qkv(64)
    seen = (weights_of(attention, q, k) > 0).unflatten(3, (-1, 4)).any(4)
    scores = q @ k.unflatten(2, (32, 2)).mean(3).mT / HEAD_DIM**0.5
    visible = torch.arange(1, 64, 2) <= torch.arange(64)[:, None]
    scores = scores if not causal else scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(3).unflatten(3, (16, 2)).sum(4)
    for t in range(12, 64):
        home = t // 4
        row = weights[:, :, t].clone()
        row[..., home:] = row[..., home:] * (not causal)
        row[..., home] = 0
        expected = torch.zeros_like(row).scatter(2, row.topk(2).indices, 1).bool()
        expected[..., home] = True
        assert torch.equal(seen[:, :, t], expected), t


def test_enough_blocks_equal_full_attention():
    inputs = qkv(50)
    out = part("selected", num_selected_blocks=20)(*inputs)
    assert_near(out, build("full", causal=True)(*inputs), "output")


def test_shared_heads_select_the_same_blocks():
    options = {"num_selected_blocks": 2, "first_blocks": 0, "local_blocks": 0}
    q, k, _ = qkv(64)
    one, all_heads = (
        weights_of(part("selected", shared_heads=n, **options), q, k) > 0 for n in (1, HEADS)
    )
    assert not torch.equal(one[:, 0], one[:, 1])
    assert torch.equal(all_heads[:, 0], all_heads[:, 1])
    assert torch.equal(all_heads[:, 0], all_heads[:, 2])


def test_a_shared_selection_is_that_of_the_summed_weights():
    """A head with large but equal scores has equal weights, and decides nothing."""
    options = {"num_selected_blocks": 1, "first_blocks": 0, "local_blocks": 0}
    attention = part("selected", shared_heads=HEADS, **options)
    q, k, _ = qkv(64)
    k[..., 0], q[:, 0] = 1.0, 0.0
    q[:, 0, :, 0] = 200.0
    seen = (weights_of(attention, q, k) > 0).unflatten(3, (-1, 4)).any(4)
    scores = (q @ k.unflatten(2, (32, 2)).mean(3).mT / HEAD_DIM**0.5)[:, :, 63]
    weights = scores.softmax(2).unflatten(2, (16, 2)).sum(3).sum(1)
    best = weights[:, :15].argmax(1)
    assert (best < 14).any()
    assert seen[torch.arange(3), 1, 63, best].all()


def test_gates_read_the_layer_input():
    attention, inputs = native_sparse(), qkv(20)
    parts = [part(name)(*inputs) for name in PARTS]
    states = torch.randn(3, 20, HEADS * HEAD_DIM).double()
    out = attention(*inputs, layer_input=LayerInput(states, lambda p: p, lambda p: p))
    gates = attention.gates(states).sigmoid().view(3, 20, 3, HEADS).permute(2, 0, 3, 1)
    expected = sum(g[..., None] * x for g, x in zip(gates, parts, strict=True))
    assert_near(out, expected, "output")
    assert not torch.allclose(attention(*inputs), out)


def test_gates_begin_open_alike():
    gates = native_sparse().gates
    assert not gates.bias.any()


def test_steps_keep_compressed_rows_of_whole_blocks():
    attention, (q, k, v) = native_sparse(), qkv(40)
    _, cache = run_steps(attention, (q, k, v), (9, 1, 1, 1, 5, 22, 1))
    for name, x in (("compressed_k", k), ("compressed_v", v)):
        assert_near(cache.state[name], x.unflatten(2, (20, 2)).mean(3), name)


@pytest.mark.parametrize("sizes", [(60, 4), (1,) * 64, (30, 34), (50, 3, 11)])
def test_steps_of_any_size_equal_forward(sizes):
    attention, inputs = native_sparse(window=6), qkv(64)
    out, _ = run_steps(attention, inputs, sizes, key_masks(64)["holes"])
    assert_near(out, attention(*inputs, key_masks(64)["holes"]), "output")


def test_dense_sizes_are_named():
    attention = native_sparse()
    assert attention.is_dense(16)
    assert not attention.is_dense(17)
    assert native_sparse(window=16).is_dense(17)
