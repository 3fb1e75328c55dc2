"""Parity with other libraries on their weights, and their known faults.

Each test is skipped if its library is not installed (`pip install longspan[dev]`).
"""

import pytest
import torch
from contract import assert_near, full_and_causal, key_masks, qkv

from longspan import build

H, D = 3, 8


def import_library(name):
    reason = f"{name} is not installed; install longspan[dev]"
    return pytest.importorskip(name, reason=reason)


def split_heads(x):
    """Reshape (B, T, H * D) to (B, H, T, D)."""
    return x.unflatten(-1, (-1, D)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


def states(T, B=2, H=H, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, H * D, generator=g, dtype=torch.float64)


def assert_real_rows_near(found, expected, real, what, atol=1e-10):
    """Compare real rows only; libraries do not define padded rows."""
    if real is not None:
        found, expected = (x.movedim(1, 2)[real] for x in (found, expected))
    assert_near(found, expected, what, atol)


@full_and_causal
def test_local_equals_local_attention(causal):
    theirs = import_library("local_attention").LocalAttention(
        window_size=16, causal=causal, exact_windowsize=True, autopad=True
    )
    ours = build("local", window=16, causal=causal)
    for T in (16, 50, 96):
        for kind, real in key_masks(T).items():
            inputs = qkv(T)
            # Without a mask, the library attends to its own padding.
            expected = theirs(*inputs, mask=torch.ones(3, T).bool() if real is None else real)
            # In rows without keys, the library averages padding.
            has_keys = ours(*inputs[:2], torch.ones_like(inputs[2]), real)[:, 0, :, 0] > 0
            assert_real_rows_near(ours(*inputs, real), expected, has_keys, f"T={T}, {kind}")


@full_and_causal
@pytest.mark.parametrize("neighbors", [0, 1])
def test_block_windows_equal_local_attention(causal, neighbors):
    """Without neighboring blocks, the pattern is `disjoint`."""
    theirs = import_library("local_attention").LocalAttention(
        window_size=16,
        causal=causal,
        look_backward=neighbors,
        look_forward=0 if causal else neighbors,
        autopad=True,
    )
    whole = {"neighbors": [neighbors, 0 if causal else neighbors], "circle": False}
    ours = build("blockwise", block=16, **whole, causal=causal)
    for T in (16, 50, 96):
        inputs, real = qkv(T), torch.ones(3, T, dtype=torch.bool)
        expected = theirs(*inputs, mask=real)
        assert_near(ours(*inputs, real), expected, f"T={T}")
        if neighbors == 0:
            assert_near(build("disjoint", block=16, causal=causal)(*inputs), expected, f"T={T}")


def linformer_layers():
    theirs = (
        import_library("linformer")
        .LinformerSelfAttention(dim=H * D, seq_len=40, k=8, heads=H)
        .double()
    )
    ours = build("linformer", heads=H, max_length=40, rank=8).double()
    with torch.no_grad():
        ours.projection.copy_(torch.stack([theirs.proj_k.T, theirs.proj_v.T])[:, None])

    def layer(x, real=None):
        q, k, v = (split_heads(to(x)) for to in (theirs.to_q, theirs.to_k, theirs.to_v))
        return theirs.to_out(merge_heads(ours(q, k, v, real)))

    return theirs, layer


@pytest.mark.parametrize("T", [1, 17, 40])
def test_linformer_equals_library_without_mask(T):
    theirs, layer = linformer_layers()
    assert_near(layer(states(T)), theirs(states(T)), "output")


def test_linformer_library_ignores_its_mask():
    theirs, layer = linformer_layers()
    real = (torch.arange(40) < 30).expand(2, -1)
    x = states(40)
    y = torch.where(real[..., None], x, states(40, seed=1))
    change = (theirs(y, mask=real) - theirs(x, mask=real))[:, :30].abs().max()
    assert change > 1e-2, "the library is fixed: delete this test and its line in the docs"
    assert_near(layer(y, real)[:, :30], layer(x, real)[:, :30], "ours")


def nystrom_layers(iterations, landmarks=8, conv_kernel_size=5):
    package = import_library("nystrom_attention")
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
        q, k, v = (split_heads(part) for part in theirs.to_qkv(x).chunk(3, -1))
        return theirs.to_out(merge_heads(ours(q, k, v, real)))

    return theirs, layer


def test_nystrom_equals_converged_library_on_one_row():
    """The library is correct with a mask, for one row, at multiples of the landmarks."""
    theirs, layer = nystrom_layers(iterations=40)
    for T in (16, 40, 64):
        x, real = states(T, B=1), torch.ones(1, T, dtype=torch.bool)
        assert_near(layer(x, real), theirs(x, mask=real), f"T={T}", 1e-8)


def test_nystrom_library_couples_batch_rows():
    theirs, layer = nystrom_layers(iterations=6)
    x = states(64, B=2)
    x[1] *= 4
    coupling = (theirs(x)[:1] - theirs(x[:1])).abs().max()
    assert coupling > 1e-4, "the library is fixed: delete this test and its line in the docs"
    assert_near(layer(x)[:1], layer(x[:1]), "ours")


def test_nystrom_equals_transformers():
    """One row and one head, because its inverse is scaled by the maximum over both."""
    nystromformer = import_library("transformers.models.nystromformer")
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
    q, k, v = (split_heads(to(x)) for to in (theirs.query, theirs.key, theirs.value))
    assert_near(merge_heads(ours(q, k, v)), theirs(x)[0], "output", 1e-9)
