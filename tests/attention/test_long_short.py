"""Long-Short attention: a window of tokens and learned landmarks in one softmax."""

import math

import pytest
import torch
import torch.nn.functional as F
from contract import assert_near, check_contract, full_and_causal, key_masks, qkv

from longspan import build
from longspan.attention import Inputs
from longspan.attention.ops.blocks import SharedKeys, pattern_attention
from longspan.attention.patterns import BlockWindow, Causal, Global, Window

SIZES = {"window": 6, "rank": 3, "segment": 4, "segment_rank": 2}


def long_short(causal=False, heads=3, **options):
    """Build a small float64 mechanism with perturbed parameters."""
    options = {**SIZES, **options}
    torch.manual_seed(0)
    attention = build("long_short", heads=heads, head_dim=8, causal=causal, **options).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return attention


def normalize(norm, x):
    """Apply LayerNorm over the merged heads of one sample (H, S, D)."""
    merged = x.transpose(0, 1).flatten(1)
    out = F.layer_norm(merged, merged.shape[1:], norm.weight, norm.bias)
    return out.view(x.shape[1], x.shape[0], -1).transpose(0, 1)


def projection_weights(attention, k, real, tokens):
    """Return P of one sample over `tokens`, (H, rank, len(tokens))."""
    merged = k[:, tokens].transpose(0, 1).flatten(1)
    logits = (merged @ attention.keys.far.logits.weight.T).T
    logits = logits.masked_fill(~real[tokens], -torch.inf)
    return logits.softmax(-1).view(k.shape[0], -1, logits.shape[-1])


def attend_one_query(attention, q, k, v, real, t):
    """Compute the output of one query of one sample from its gathered keys."""
    keys, far, w = attention.keys, attention.keys.far, SIZES["window"]
    near = [normalize(keys.near, x) for x in (k, v)]
    T, start = q.shape[1], t // w * w
    window_keys = range(start - w // 2, start + w + w // 2)
    segments = [slice(0, T)]
    if attention.causal:
        window_keys = range(t - w + 1, t + 1)
        segments = [slice(4 * c, 4 * c + 4) for c in range(t // 4)]
    window_keys = [s for s in window_keys if 0 <= s < T and real[s]]
    gathered = [[x[:, window_keys] for x in near]]
    for segment in segments:
        if real[segment].any():
            P = projection_weights(attention, k, real, segment)
            pair = (k, v) if keys.unnormalized else near
            gathered.append([normalize(far.norm, P @ x[:, segment]) for x in pair])
    K, V = (torch.cat(x, 1) for x in zip(*gathered, strict=True))
    weights = (K @ q[:, t, :, None] / math.sqrt(8)).softmax(1)
    return (weights * V).sum(1)


@pytest.mark.parametrize("variant", ["ls", "xiong"])
@full_and_causal
def test_one_softmax_covers_window_and_landmarks(variant, causal):
    attention = long_short(causal, variant=variant)
    q, k, v = qkv(23)
    mask = key_masks(23)["holes"]
    mask[0] = True
    mask[1, 4:8] = False
    out = attention(q, k, v, mask)
    k, v = (x * mask[:, None, :, None] for x in (k, v))
    for b in range(3):
        for t in (t for t in (0, 5, 6, 11, 12, 22) if mask[b, t]):
            row = attend_one_query(attention, q[b], k[b], v[b], mask[b], t)
            assert_near(out[b, :, t], row, f"sample {b}, query {t}")


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "xiong"},
        {"variant": "xiong", "causal": True},
        {"first_global": True},
        {"first_global": True, "causal": True},
        {"conv_kernel_size": 3},
        {"conv_kernel_size": 5, "variant": "xiong", "first_global": True},
        {"window": 0},
        {"window": 1, "rank": 1},
        {"rank": 0},
        {"window": 0, "rank": 0},
        {"segment_rank": 0, "causal": True},
        {"window": 1, "segment": 1, "segment_rank": 1, "causal": True},
        {"window": 40, "segment": 40, "causal": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_option_obeys_contract(options):
    check_contract(long_short(**options), lengths=(1, 7, 9, 33))


@pytest.mark.parametrize("window", [1, 6, 7])
def test_without_landmarks_equals_blockwise_on_normalized_inputs(window):
    attention = long_short(window=window, rank=0)
    q, k, v = qkv(40)
    near = [torch.stack([normalize(attention.keys.near, y) for y in x]) for x in (k, v)]
    mask = torch.arange(40) < torch.tensor([40, 31, 2])[:, None]
    blockwise = build("blockwise", block=window)
    assert_near(attention(q, k, v, mask), blockwise(q, *near, mask), "output")


def test_causal_without_landmarks_equals_local_on_normalized_inputs():
    attention = long_short(True, segment_rank=0)
    q, k, v = qkv(40)
    near = [torch.stack([normalize(attention.keys.near, y) for y in x]) for x in (k, v)]
    local = build("local", window=SIZES["window"] - 1, causal=True)
    assert_near(attention(q, k, v), local(q, *near), "output")
    assert attention.traits.cost == "T"


def test_without_window_a_token_attends_to_itself_and_landmarks():
    attention = long_short(window=0)
    q, k, v = qkv(20)
    far = attention.keys.far
    K, V = (torch.stack([normalize(attention.keys.near, y) for y in x]) for x in (k, v))
    real = torch.ones(20, dtype=torch.bool)
    P = torch.stack([projection_weights(attention, x, real, slice(0, 20)) for x in k])
    Kc, Vc = (torch.stack([normalize(far.norm, y) for y in P @ x]) for x in (K, V))
    scores = torch.cat([(q * K).sum(-1, keepdim=True), q @ Kc.mT], -1) / math.sqrt(8)
    weights = scores.softmax(-1)
    assert_near(attention(q, k, v), weights[..., :1] * V + weights[..., 1:] @ Vc, "output")


@full_and_causal
def test_projection_weights_sum_to_one_over_real_tokens(causal):
    attention, (_, k, _) = long_short(causal), qkv(22)
    far = attention.keys.far
    for mask in key_masks(22).values():
        # Real tokens get lower logits than zero padding: a finite penalty would fail.
        with torch.no_grad():
            far.logits.weight.fill_(-100.0)
        some = torch.ones(3, 22, dtype=torch.bool) if mask is None else mask
        P, live = far.weights(k.abs() * some[:, None, :, None], mask)
        length = P.shape[2] * P.shape[4]
        real = some[:, :length].unflatten(1, (P.shape[2], P.shape[4]))[:, None, :, None]
        has_real = real.any(-1).expand(P.shape[:-1])
        assert_near(P.sum(-1)[has_real], torch.ones_like(P.sum(-1)[has_real]), "sum")
        assert not P[has_real & ~real.all(-1)][~real.expand_as(P)[has_real & ~real.all(-1)]].any()
        assert torch.equal(live.expand(3, -1), has_real[:, 0].flatten(1))


@full_and_causal
@pytest.mark.parametrize("variant", ["ls", "xiong"])
def test_global_tokens_attend_to_all_real_keys_and_no_padding(causal, variant):
    attention = long_short(causal, variant=variant)
    q, k, v = qkv(30)
    key_mask = torch.arange(30) < torch.tensor([30, 22, 9])[:, None]
    global_mask = torch.zeros(3, 30, dtype=torch.bool)
    global_mask[0, [2, 29]] = global_mask[1, [8, 25]] = True
    out = attention(q, k, v, key_mask, global_mask=global_mask)
    near = [torch.stack([normalize(attention.keys.near, y) for y in x]) for x in (k, v)]
    full = build("full", causal=causal)(q, *near, key_mask)
    for b, t in ((0, 2), (0, 29), (1, 8)):
        assert_near(out[b, :, t], full[b, :, t], f"{b} {t}")
    assert_near(out[2], attention(q, k, v, key_mask)[2], "row without global tokens")


def test_first_token_is_global_only_with_first_global():
    q, k, v = qkv(30)
    key_mask = torch.ones(3, 30, dtype=torch.bool)
    key_mask[1, 0] = False
    first = torch.zeros_like(key_mask)
    first[:, 0] = True
    forced, free = long_short(first_global=True), long_short()
    expected = free(q, k, v, key_mask, global_mask=first)
    assert_near(forced(q, k, v, key_mask), expected, "output")
    plain = free(q, k, v, key_mask)
    assert not torch.allclose(plain[0], expected[0])
    assert_near(plain[1], expected[1], "padded first token")


def test_convolution_starts_at_zero_and_reads_normalized_values():
    q, k, v = qkv(20)
    fresh = build("long_short", heads=3, head_dim=8, conv_kernel_size=3)
    assert not fresh.conv.weight.any()
    attention = long_short(conv_kernel_size=3)
    mask = torch.arange(20) < torch.tensor([20, 13, 2])[:, None]
    with_convolution = attention(q, k, v, mask)
    weight, attention.conv = attention.conv.weight[:, 0].detach(), None
    V = torch.stack([normalize(attention.keys.near, y) for y in v]) * mask[:, None, :, None]
    padded = F.pad(V, (0, 0, 1, 1))
    convolved = sum(weight[None, :, i, None, None] * padded[:, :, i : i + 20] for i in range(3))
    difference = with_convolution - attention(q, k, v, mask)
    assert_near(difference, convolved * mask[:, None, :, None], "output")


def test_values_of_another_width_have_no_affine_normalization():
    attention = long_short(window=0, rank=0)
    q, k, v = qkv(9, E=5)
    merged = v.transpose(1, 2).flatten(2)
    expected = F.layer_norm(merged, (15,)).view(3, 9, 3, 5).transpose(1, 2)
    assert_near(attention(q, k, v), expected, "output")
    same = long_short(window=0, rank=0)(q, k, k)
    norm = attention.keys.near
    assert_near(same, torch.stack([normalize(norm, x) for x in k]), "values as wide as keys")


def test_cache_grows_by_landmarks_only():
    attention = long_short(True, first_global=True)
    cache = None
    for _ in range(6):
        _, cache = attention.step(*qkv(25), cache)
    assert cache.state["far_k"].shape[2] == 150 // 4 * 2
    cached = cache.state["k"].shape[2]
    _, cache = attention.step(*qkv(96), cache)
    assert cache.state["k"].shape[2] <= cached + 32
    assert cache.state["far_k"].shape[2] == 246 // 4 * 2


def test_parameters_equal_those_of_the_paper():
    shapes = {n: tuple(x.shape) for n, x in long_short(conv_kernel_size=3).named_parameters()}
    assert shapes == {
        "keys.near.weight": (24,),
        "keys.near.bias": (24,),
        "keys.far.logits.weight": (9, 24),
        "keys.far.norm.weight": (24,),
        "keys.far.norm.bias": (24,),
        "conv.weight": (3, 1, 3),
    }
    assert long_short(True).keys.far.logits.weight.shape == (6, 24)


PATTERNS = [
    BlockWindow(6, 3),
    Window(3, dilation=4),
    Window(5) & Causal(),
    (Window(2, dilation=3) | Global((0, 7))) & Causal(),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("per_query", [False, True], ids=["one mask", "mask per query"])
def test_shared_keys_join_the_softmax_of_a_pattern(pattern, per_query):
    T = 29
    (q, k, v), (_, far_k, far_v) = qkv(T), qkv(5, seed=1)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 1, T if per_query else 1, 5, generator=generator) < 0.5
    real = key_masks(T)["holes"]
    k, v = (x * real[:, None, :, None] for x in (k, v))
    shared_keys = SharedKeys(far_k, far_v, mask)
    out = pattern_attention(Inputs(q, k, v, real), pattern, shared_keys)
    not_global = [t for t in range(T) if t not in pattern.layout.globals]
    near = pattern.dense(T) & real[:, None, None, :]
    allowed = torch.cat([near.expand(3, 1, T, T), mask.expand(3, 1, T, 5)], -1)
    scores = q @ torch.cat([k, far_k], 2).mT / math.sqrt(8)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()
    expected = weights @ torch.cat([v, far_v], 2)
    assert_near(out[:, :, not_global], expected[:, :, not_global], "output")
