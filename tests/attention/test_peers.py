"""Parity with other libraries where they are right, on their weights; their faults are not ours.

Each test skips where its package is not installed (`pip install longspan[dev]` has them).
"""

import pytest
import torch
from contract import assert_near, key_masks, qkv

from longspan import build
from longspan.attention.ops.blocks import pattern_attention
from longspan.attention.patterns import BlockWindow, Causal

H, D = 3, 8
both_orders = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def peer(name):
    reason = f"{name} is not installed; it belongs to longspan[dev]"
    return pytest.importorskip(name, reason=reason)


def heads(x):
    """(B, T, H * D) -> (B, H, T, D)."""
    return x.unflatten(-1, (-1, D)).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).flatten(2)


def states(T, B=2, H=H, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, H * D, generator=g, dtype=torch.float64)


def assert_real_rows_near(found, expected, real, what, atol=1e-10):
    """Public code leaves padded rows to chance."""
    if real is not None:
        found, expected = (x.movedim(1, 2)[real] for x in (found, expected))
    assert_near(found, expected, what, atol)


@both_orders
def test_exact_windows_of_local_attention(causal):
    theirs = peer("local_attention").LocalAttention(
        window_size=16, causal=causal, exact_windowsize=True, autopad=True
    )
    ours = build("local", window=16, causal=causal)
    for T in (16, 50, 96):
        for kind, real in key_masks(T).items():
            inputs = qkv(T)
            # Without a mask its own padding is attended.
            expected = theirs(*inputs, mask=torch.ones(3, T).bool() if real is None else real)
            # Rows without any key of theirs are means of padding.
            some = ours(*inputs[:2], torch.ones_like(inputs[2]), real)[:, 0, :, 0] > 0
            assert_real_rows_near(ours(*inputs, real), expected, some, f"T={T}, {kind}")


@both_orders
@pytest.mark.parametrize("around", [0, 1])
def test_block_windows_of_local_attention(causal, around):
    """Own block alone is `disjoint`; one block around is a pattern of its own."""
    theirs = peer("local_attention").LocalAttention(
        window_size=16,
        causal=causal,
        look_backward=around,
        look_forward=0 if causal else around,
        autopad=True,
    )
    pattern = BlockWindow(16, 16 * around)
    pattern = pattern & Causal() if causal else pattern
    for T in (16, 50, 96):
        inputs, real = qkv(T), torch.ones(3, T, dtype=torch.bool)
        expected = theirs(*inputs, mask=real)
        found = pattern_attention(*inputs, pattern, real, None)
        assert_near(found, expected, f"T={T}")
        if around == 0:
            assert_near(build("disjoint", block=16, causal=causal)(*inputs), expected, f"T={T}")


def linformer_layers():
    theirs = peer("linformer").LinformerSelfAttention(dim=H * D, seq_len=40, k=8, heads=H).double()
    ours = build("linformer", heads=H, max_length=40, rank=8).double()
    with torch.no_grad():
        ours.projection.copy_(torch.stack([theirs.proj_k.T, theirs.proj_v.T])[:, None])

    def layer(x, real=None):
        q, k, v = (heads(to(x)) for to in (theirs.to_q, theirs.to_k, theirs.to_v))
        return theirs.to_out(merged(ours(q, k, v, real)))

    return theirs, layer


@pytest.mark.parametrize("T", [1, 17, 40])
def test_linformer_of_one_length(T):
    theirs, layer = linformer_layers()
    assert_near(layer(states(T)), theirs(states(T)), "output")


def test_linformer_that_ignores_its_mask():
    theirs, layer = linformer_layers()
    real = (torch.arange(40) < 30).expand(2, -1)
    x = states(40)
    y = torch.where(real[..., None], x, states(40, seed=1))
    change = (theirs(y, mask=real) - theirs(x, mask=real))[:, :30].abs().max()
    assert change > 1e-2, "it is right by now: this test and a line of the docs can go"
    assert_near(layer(y, real)[:, :30], layer(x, real)[:, :30], "ours")


def nystrom_layers(iterations, landmarks=8, conv_kernel_size=5):
    package = peer("nystrom_attention")
    theirs = package.NystromAttention(
        dim=H * D,
        dim_head=D,
        heads=H,
        num_landmarks=landmarks,
        pinv_iterations=iterations,
        residual_conv_kernel=conv_kernel_size,
    ).double()
    ours = build(
        "nystrom",
        heads=H,
        landmarks=landmarks,
        iterations=iterations,
        conv_kernel_size=conv_kernel_size,
    ).double()
    with torch.no_grad():
        ours.conv.weight.copy_(theirs.res_conv.weight[..., 0])

    def layer(x, real=None):
        q, k, v = (heads(part) for part in theirs.to_qkv(x).chunk(3, -1))
        return theirs.to_out(merged(ours(q, k, v, real)))

    return theirs, layer


def test_nystrom_attention_of_one_row_when_converged():
    """With a mask, for one row, at a multiple of the landmarks: there it is right."""
    theirs, layer = nystrom_layers(iterations=40)
    for T in (16, 40, 64):
        x, real = states(T, B=1), torch.ones(1, T, dtype=torch.bool)
        assert_near(layer(x, real), theirs(x, mask=real), f"T={T}", 1e-8)


def test_nystrom_attention_whose_rows_know_of_each_other():
    theirs, layer = nystrom_layers(iterations=6)
    x = states(64, B=2)
    x[1] *= 4
    coupling = (theirs(x)[:1] - theirs(x[:1])).abs().max()
    assert coupling > 1e-4, "it is right by now: this test and a line of the docs can go"
    assert_near(layer(x)[:1], layer(x[:1]), "ours")


def test_nystromformer_of_transformers():
    """One row and one head (its inverse is scaled by the largest), of the one length it takes."""
    nystromformer = peer("transformers.models.nystromformer")
    config = nystromformer.NystromformerConfig(
        hidden_size=D,
        num_attention_heads=1,
        num_landmarks=8,
        segment_means_seq_len=48,
        conv_kernel_size=5,
        attention_probs_dropout_prob=0.0,
    )
    module = nystromformer.modeling_nystromformer
    theirs = module.NystromformerSelfAttention(config).double()
    ours = build("nystrom", heads=1, landmarks=8, iterations=6, conv_kernel_size=5).double()
    with torch.no_grad():
        ours.conv.weight.copy_(theirs.conv.weight[..., 0])
    x = 3 * states(48, B=1, H=1)
    q, k, v = (heads(to(x)) for to in (theirs.query, theirs.key, theirs.value))
    assert_near(merged(ours(q, k, v)), theirs(x)[0], "output", 1e-9)
