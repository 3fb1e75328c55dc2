"""Reformer: hashing, pair counts, limiting cases and parity with transformers."""

import contract
import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    full_and_causal,
    gradients,
    key_masks,
    qkv,
    run_steps,
)

from longspan.attention import build
from longspan.attention.mechanisms.reformer import count_pairs_reference
from longspan.attention.ops.hashing import RecentTokens, RotationHash


def reformer(heads=HEADS, head_dim=HEAD_DIM, max_length=128, causal=False, **options):
    sizes = {"heads": heads, "head_dim": head_dim, "max_length": max_length}
    return build("reformer", causal=causal, **sizes, **options).double()


def normalize(u):
    return u / u.norm(dim=-1, keepdim=True)


def shared_qk_attention(q, v, mask, scale="root"):
    """Compute shared-QK attention; a token attends to itself only without other keys."""
    diagonal = torch.eye(q.shape[2], dtype=torch.bool)
    mask = mask & ~diagonal
    mask = mask | diagonal & ~mask.any(-1, keepdim=True)
    scores = q @ normalize(q).mT / (q.shape[-1] ** 0.5 if scale == "root" else 1)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 4, "hashes": 1},
        {"chunk": 5, "hashes": 3, "dedupe": True},
        {"chunk": 4, "hashes": 2, "scale": "none", "buckets": 10},
        {"chunk": 4, "hashes": 2, "same_bucket": True, "buckets": 6},
        {"chunk": 4, "hashes": 2, "same_bucket": True, "dedupe": True, "buckets": 4},
        {"chunk": 4, "hashes": 1, "wrap": True},
        {"chunk": 4, "hashes": 3, "wrap": True},
        {"chunk": 8, "hashes": 2, "wrap": True, "dedupe": True},
        {"chunk": 3, "hashes": 1, "causal": True, "buckets": 2},
        {"chunk": 4, "hashes": 3, "causal": True, "buckets": 4, "dedupe": True},
        {"chunk": 2, "hashes": 2, "causal": True, "buckets": 256, "scale": "none"},
        {"chunk": 4, "hashes": 2, "causal": True, "buckets": 2, "same_bucket": True},
        {"chunk": 4, "hashes": 2, "buckets": [4, 6], "same_hashes": True},
    ],
    ids=str,
)
def test_every_option_obeys_contract(options):
    contract.check_contract(reformer(**options), lengths=(1, 8, 33))


KINDS = [
    {},
    {"wrap": True},
    {"same_bucket": True},
    {"causal": True},
    {"grid": 8},
    {"grid": 12, "causal": True},
]


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("hashes", [1, 2, 4])
@pytest.mark.parametrize("dedupe", [False, True])
def test_hash_rounds_equal_one_softmax_with_log_counts(kinds, hashes, dedupe):
    attention = reformer(chunk=4, hashes=hashes, buckets=8, dedupe=dedupe, **kinds)
    q, k, v = qkv(37)
    for mask in key_masks(37).values():
        real = torch.ones(3, 37, dtype=torch.bool) if mask is None else mask
        N = attention.table(q, real).counts()[..., :37, :37]
        if dedupe:
            assert hashes == 1 or N.max() > 1
            N = N.clamp(max=1)
        alone = torch.eye(37) * (N.sum(-1, keepdim=True) == 0)
        scores = q @ normalize(q).mT / HEAD_DIM**0.5 + (N + alone).double().log()
        expected = scores.softmax(-1) @ v * real[:, None, :, None]
        # Unlike the formula above, the mechanism adds an epsilon to key norms.
        assert_near(attention(q, k, v, mask), expected, "output", 1e-5)


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("T", [4, 5, 16, 37])
def test_sort_table_counts_equal_those_of_lists(kinds, T):
    attention = reformer(chunk=4, hashes=3, buckets=8, **kinds)
    q = qkv(T)[0]
    none = torch.zeros(3, T, dtype=torch.bool)
    for mask in (~none, none, *list(key_masks(T).values())[1:]):
        table = attention.table(q, mask)
        N = table.counts()[..., :T, :T]
        bucket = attention.hash.reference(q)
        assert torch.equal(N, count_pairs_reference(bucket, mask, 4, **attention.kinds))
        if kinds == {"causal": True}:
            own, old = bucket.movedim(0, -1), T - 3
            recent = RecentTokens(own[:, :, :old], mask[:, :old], 4, 8)
            places, some = recent.append(own[:, :, old:], mask[:, old:], old)
            rows = torch.zeros_like(N[:, :, old:]).scatter_add_(-1, places, some.long())
            real = mask[:, None, old:, None]
            assert torch.equal(rows * real, N[:, :, old:])
            assert torch.equal(RecentTokens(own, mask, 4, 8).count, recent.count)
        assert N.sum(-1).max() <= 3 * 7


def test_no_padding_is_added_to_whole_chunks():
    attention = reformer(chunk=8)
    for T, slots in ((8, 8), (16, 16), (17, 24), (3, 3)):
        assert (
            attention.table(qkv(T)[0], torch.ones(3, T, dtype=torch.bool)).order.shape[-1] == slots
        )


@pytest.mark.parametrize("hashes", [1, 3])
@pytest.mark.parametrize("scale", ["root", "none"])
def test_two_chunks_with_wrap_equal_full_shared_attention(hashes, scale):
    q, k, v = qkv(32)
    attention = reformer(chunk=16, hashes=1, wrap=True, scale=scale)
    all_pairs = torch.ones(32, 32, dtype=torch.bool)
    assert_near(attention(q, k, v), shared_qk_attention(q, v, all_pairs, scale), "two chunks", 1e-5)
    attention = reformer(chunk=32, hashes=hashes, scale=scale)
    for T in (1, 2, 20, 32):
        q, k, v = qkv(T)
        short = all_pairs[:T, :T]
        assert_near(
            attention(q, k, v), shared_qk_attention(q, v, short, scale), f"one chunk, T={T}", 1e-5
        )


def test_token_is_its_own_key_only_without_other_keys():
    q, k, v = qkv(9)
    assert_near(reformer(causal=True, chunk=4)(q, k, v)[:, :, 0], v[:, :, 0], "first token")
    one = torch.arange(9) == 5
    assert_near(reformer(chunk=4)(q, k, v, one.expand(3, -1))[:, :, 5], v[:, :, 5], "only token")
    # These scores are below any finite penalty on attending to oneself.
    u = torch.tensor([1.0, -1.0]).double()[None, None, :, None] * 1e9 * qkv(1)[0]
    out = reformer(chunk=4, scale="none")(u, u, v[:, :, :2])
    assert_near(out, v[:, :, :2].flip(2), "each attends to its opposite")
    both = torch.zeros(3, 2, dtype=torch.bool)
    both[:, 0] = True
    out = reformer(chunk=4, same_bucket=True)(u, u, v[:, :, :2])
    assert_near(out, v[:, :, :2], "opposite tokens have different buckets")
    out = reformer(chunk=4, same_bucket=True)(u, u, v[:, :, :2], global_mask=both)
    assert_near(out, v[:, :, :2].flip(2), "a global token is an additional key")


def test_all_tokens_global_equals_full_shared_attention():
    q, k, v = qkv(20)
    for causal in (False, True):
        mask = torch.ones(20, 20, dtype=torch.bool)
        mask = mask.tril() if causal else mask
        attention = reformer(chunk=4, causal=causal)
        out = attention(q, k, v, global_mask=torch.ones(3, 20, dtype=torch.bool))
        assert_near(out, shared_qk_attention(q, v, mask), "all global", 1e-5)


def test_more_hash_rounds_approach_full_shared_attention():
    q, k, v = qkv(64, H=2)
    full = shared_qk_attention(q, v, torch.ones(64, 64, dtype=torch.bool))
    found = []
    for hashes in (1, 4, 16, 64):
        errors = []
        for seed in range(4):
            sizes = {"heads": 2, "chunk": 4, "hashes": hashes, "seed": seed, "dedupe": True}
            errors.append((reformer(**sizes)(q, k, v) - full).abs().mean())
        found.append(torch.stack(errors).median().item())
    assert found[1] < 0.8 * found[0]
    assert found[2] < 0.6 * found[1]
    assert found[3] < 0.4 * found[2]
    assert found[3] < 0.01


def test_number_of_buckets_depends_on_max_length_only():
    for chunk, length, sizes in (
        (64, 4096, [128]),
        (64, 1000, [16]),
        (64, 16384, [16, 32]),
        (16, 65536, [64, 128]),
        (64, 5, [2]),
    ):
        attention = reformer(chunk=chunk, max_length=length)
        assert attention.hash.sizes == sizes
        assert attention.hash.rotations.shape[-1] == sum(sizes) // 2
    attention = reformer(chunk=4)
    q = qkv(100)[0]
    short = attention.hash(q[:, :, :9])
    assert torch.equal(attention.hash(q)[..., :9], short)
    assert short.min() >= 0
    assert short.max() < 64


def test_bucket_is_the_nearest_direction_or_opposite():
    hashing = RotationHash(2, 8, 3, 6, seed=1)
    u = qkv(40, H=2, dtype=torch.float32)[0]
    for r in range(3):
        for h in range(2):
            G = hashing.rotations[h, :, r]
            expected = torch.cat([u[:, h] @ G, -u[:, h] @ G], -1).argmax(-1)
            assert torch.equal(hashing(u)[r, :, h], expected)
    # Two hashes of 16 buckets; the first is the low digit.
    hashing = RotationHash(2, 8, 1, 256, seed=1)
    first, second = hashing.rotations[:, :, 0].split(8, -1)
    sides = [torch.cat([u @ G, -u @ G], -1).argmax(-1) for G in (first, second)]
    assert torch.equal(hashing(u)[0], sides[0] + 16 * sides[1])
    assert torch.equal(hashing.reference(u), hashing(u))


def test_directions_are_gaussian_and_differ_by_head_round_and_seed():
    G = RotationHash(4, 64, 4, 128, seed=0).rotations
    assert abs(G.mean()) < 0.01
    assert abs(G.std() - 1) < 0.01
    flat = torch.cat(
        [G.movedim(2, 1).flatten(0, 1), RotationHash(4, 64, 4, 128, 1).rotations[:, :, 0]]
    )
    flat = flat.flatten(1)
    assert (torch.corrcoef(flat) - torch.eye(20)).abs().max() < 0.1
    first, other = (reformer(seed=seed).hash.rotations for seed in (0, 1))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_hashes_equal_float64(dtype):
    hashing = RotationHash(HEADS, HEAD_DIM, 2, 64, seed=0).to(dtype)
    u = (3000 * qkv(100)[0]).to(dtype)
    rounded = hashing(u)
    assert torch.equal(rounded, hashing.double().reference(u.double()))


def test_token_of_zeros_has_the_reference_gradients():
    q, k, v = (x.requires_grad_() for x in qkv(9))
    with torch.no_grad():
        q[:, :, 3:5] = 0
    attention = reformer(chunk=4)
    found = gradients(attention(q, k, v), (q, k, v), attention)
    attention.backend = "reference"
    for x, y in zip(found, gradients(attention(q, k, v), (q, k, v), attention), strict=True):
        assert x.isfinite().all()
        assert_near(x, y, "gradient")


def test_output_is_independent_of_previous_lengths():
    attention, fresh = reformer(chunk=4), reformer(chunk=4)
    attention(*qkv(9))
    attention(*qkv(200))
    assert torch.equal(attention(*qkv(70)), fresh(*qkv(70)))


def transformers_layer(hashes, buckets, T, seed=5, causal=False):
    """Return the layer in float64 and the rotations that it draws."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    width = HEADS * HEAD_DIM
    config = transformers.ReformerConfig(
        attention_head_size=HEAD_DIM,
        num_attention_heads=HEADS,
        hidden_size=width,
        num_hashes=hashes,
        lsh_attn_chunk_length=8,
        num_buckets=buckets,
        attn_layers=["lsh"],
        max_position_embeddings=T,
        hash_seed=seed,
        is_decoder=causal,
        lsh_attention_probs_dropout_prob=0.0,
    )
    directions = sum(buckets if isinstance(buckets, list) else [buckets]) // 2
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layer = LSHSelfAttention(config, 0).double()
        torch.manual_seed(seed)
        shape = (HEADS, HEAD_DIM, hashes, directions)
        rotations = torch.randn(shape, dtype=torch.float64)
    return layer, rotations


@pytest.mark.parametrize("hashes", [1, 2, 3])
@pytest.mark.parametrize("buckets", [8, 256], ids=str)
def test_equals_transformers_layer(hashes, buckets):
    T, width = 64, HEADS * HEAD_DIM
    layer, rotations = transformers_layer(hashes, [16, 16] if buckets == 256 else buckets, T)
    attention = reformer(chunk=8, hashes=hashes, buckets=buckets, wrap=True, scale="none")
    attention.hash.rotations.copy_(rotations)
    g = torch.Generator().manual_seed(0)
    found = []
    x = torch.randn(3, T, width, generator=g, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(3, T, width, generator=g, dtype=torch.float64)
    parameters = (x, layer.query_key.weight, layer.value.weight)

    def heads(y):
        return y.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    def ours(x):
        u, v = heads(layer.query_key(x)), heads(layer.value(x))
        return attention(u, u, v).transpose(1, 2).flatten(2)

    def theirs(x):
        with torch.random.fork_rng():  # the layer sets the global seed
            return layer(x).hidden_states

    for layer_function in (ours, theirs):
        out = layer_function(x)
        found.append((out, *torch.autograd.grad(out, parameters, cotangent)))
    for label, a, b in zip(("output", "x", "query_key", "value"), *found, strict=True):
        assert_near(a, b, label, 1e-9)


@full_and_causal
@pytest.mark.parametrize("hashes", [1, 3])
def test_grid_equals_transformers_layer_on_padded_rows(hashes, causal):
    T, buckets = 70, [4, 8]
    layer, rotations = transformers_layer(hashes, buckets, T, causal=causal)
    options = {"chunk": 8, "grid": 24, "scale": "none", "causal": causal}
    attention = reformer(hashes=hashes, buckets=buckets, **options)
    attention.hash.rotations.copy_(rotations)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, T, HEADS * HEAD_DIM, generator=g, dtype=torch.float64)
    mask = torch.arange(T) < torch.tensor([T, 61, 24, 3])[:, None]
    whole = torch.nn.functional.pad(x, (0, 0, 0, 2)), torch.nn.functional.pad(mask, (0, 2))
    with torch.no_grad(), torch.random.fork_rng():
        u, v = (
            to(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for to in (layer.query_key, layer.value)
        )
        out = attention(u, u, v, mask).transpose(1, 2).flatten(2)
        expected = layer(whole[0], attention_mask=whole[1]).hidden_states[:, :T]
    assert_near(out[mask], expected[mask], "output", 1e-8)


def test_same_hashes_are_those_that_transformers_draws():
    layers = [
        build("reformer", heads=2, head_dim=8, max_length=64, layer=layer, seed=7, same_hashes=True)
        for layer in (0, 3)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        expected = torch.randn(layers[0].hash.rotations.shape)
    assert all(torch.equal(attention.hash.rotations, expected) for attention in layers)


def test_padded_tokens_of_short_steps_are_no_keys():
    attention = reformer(causal=True, chunk=4, buckets=2)
    inputs, mask = qkv(48), (torch.arange(48) < 40) | (torch.arange(48) % 2 == 0)
    mask = mask.expand(3, -1)
    out, _ = run_steps(attention, inputs, (40,) + (1,) * 8, mask)
    assert_near(out, attention(*inputs, mask), "rows", 1e-9)


def test_last_step_on_a_grid_equals_the_whole_row():
    attention, inputs = reformer(chunk=4, grid=8, causal=True), qkv(21)
    out, _ = run_steps(attention, inputs, (20, 1))
    assert_near(out[:, :, 20:], attention(*inputs)[:, :, 20:], "last row")
