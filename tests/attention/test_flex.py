"""FlexAttention: masks and gradients against the reference, tiles, compilations, refusals.

torch computes no gradients of it on the CPU, so the tests remove that check and run its unfused
formula. `test_cuda_kernels.py` runs the compiled kernels on a GPU.
"""

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from contract import HEADS, HERE, assert_near, qkv, reference_copy
from kernel_checks import (
    FLEX_CASES,
    D,
    build_flex,
    check_rows_and_gradients,
    flex_cases,
    masks_of,
    run_tests,
)
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.attention import MECHANISMS, Inputs, backends, build
from longspan.attention.kernels.flex import calls as flex
from longspan.attention.kernels.flex import tiles as tiles_module
from longspan.attention.kernels.flex.tiles import TILE, bucket_length
from longspan.attention.kernels.flex_bigbird import BIGBIRD
from longspan.attention.kernels.flex_patterns import PATTERNS
from longspan.attention.patterns import Causal, Global, PerHead, Window
from longspan.errors import InputError

# Modes do not reach torch's operator flex_attention.
pytestmark = pytest.mark.own_rounding
NAMES = {"bigbird", "blockwise", "dilated", "disjoint", "local", "longformer", "sparse_transformer"}
every_case = pytest.mark.parametrize(
    ("name", "options", "causal"),
    flex_cases(),
    ids=[f"{n}-{'-'.join(map(str, o.values()))}-{c}" for n, o, c in flex_cases()],
)


@pytest.fixture
def calls(on_cpu, monkeypatch):
    """Replace the compiled kernel by one that returns the values; return its calls."""
    calls = []

    def attend(q, k, v, block_mask):
        calls.append((q, k, v, block_mask))
        return v

    monkeypatch.setattr(flex, "compile_kernel", lambda *_: attend)
    return calls


@pytest.fixture
def unfused(calls, monkeypatch):
    """Replace the compiled kernel by torch's formula of all pairs; return the calls."""

    def attend(q, k, v, block_mask):
        calls.append((q, k, v, block_mask))
        return torch_flex.flex_attention(q, k, v, block_mask=block_mask)

    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "compile_kernel", lambda *_: attend)
    return calls


def test_mechanisms_with_the_kernel():
    assert {name for name in MECHANISMS if "flex" in backends(name)} == NAMES
    assert {name for name, _ in FLEX_CASES} == NAMES


@every_case
def test_rows_and_gradients_equal_the_reference(unfused, name, options, causal):
    check_rows_and_gradients(build_flex(name, causal, **options), 150)
    assert all(x.shape[2] == 256 for call in unfused for x in call[:3])


@pytest.mark.parametrize("T", [1, 127, 128, 129])
def test_lengths_around_a_tile(unfused, T):
    check_rows_and_gradients(build_flex("local", window=3), T)
    check_rows_and_gradients(build_flex("bigbird", block=8, num_random_blocks=1), T)


def tile_masks(block_mask):
    """Return the partial and the full tiles of a BlockMask as masks, by rows and by columns."""
    n = block_mask.kv_indices.shape[-1]
    found = []
    for by in ("kv", "q"):
        for full in ("", "full_"):
            count = getattr(block_mask, f"{full}{by}_num_blocks")
            index = getattr(block_mask, f"{full}{by}_indices")
            listed = torch.arange(n) < count[..., None]
            mask = torch.zeros(index.shape, dtype=torch.bool)
            mask = mask.scatter(-1, index.long(), listed)
            found.append(mask if by == "kv" else mask.mT)
    return found


def all_pairs(block_mask, B, H):
    """Return the index function of a BlockMask for all pairs of the bucket."""
    n = block_mask.seq_lengths[0]
    b, h, t = torch.arange(B), torch.arange(H), torch.arange(n)
    allowed = block_mask.mask_mod(b[:, None, None, None], h[:, None, None], t[:, None], t)
    return allowed.expand(B, H, n, n)


@every_case
def test_tiles_cover_the_mask(calls, name, options, causal):
    """Skipped tiles hold no allowed pair, full ones no forbidden pair, others are few."""
    T, B, length = 600, 3, 640
    attention = build_flex(name, causal, **options)
    for key_mask, global_mask in masks_of(T, B):
        calls.clear()
        with torch.no_grad():
            attention(*qkv(T, B=B, D=D), key_mask=key_mask, global_mask=global_mask)
        block_mask = calls[0][3]
        assert block_mask.shape[-2:] == (length, length)
        partial, full, *by_queries = tile_masks(block_mask)
        assert torch.equal(partial, by_queries[0])
        assert torch.equal(full, by_queries[1])
        assert not (partial & full).any()
        pairs = all_pairs(block_mask, B, HEADS)
        pairs = pairs.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).transpose(3, 4)
        some, every = pairs.any(5).any(4), pairs.all(5).all(4)
        # The rows after the last token are in no output.
        inside = (torch.arange(length // TILE) * TILE < T)[:, None]
        visited = partial | full
        assert not (some & inside & ~visited).any()
        assert not (full & ~every).any()
        if key_mask is None:
            assert torch.equal(visited & inside, visited)
            # Tiles of global keys are computed under the mask.
            has_globals = global_mask is not None or name == "bigbird"
            assert has_globals or not (every & inside & ~full).any()
            assert torch.equal(visited.expand_as(some), some & inside)


def test_mask_of_pairs_is_the_dense_mask(calls):
    attention = build_flex("longformer", window=5, first_global=2, dilation=[1, 2, 3])
    inputs, (_, *masks) = qkv(150, D=D), masks_of(150)
    for key_mask, global_mask in masks:
        with torch.no_grad():
            attention(*inputs, key_mask=key_mask, global_mask=global_mask)
        pairs = all_pairs(calls[-1][3], 3, HEADS)
        x = Inputs(*inputs, key_mask, global_mask=global_mask)
        expected = attention.dense_mask(x)
        assert torch.equal(pairs[:, :, :150, :150], expected.expand(3, HEADS, -1, -1))
        assert not pairs[..., 150:].any()


def test_tiles_of_wide_windows_are_mostly_full():
    """A mask inside every tile would be right, and slow."""
    tiles = tiles_module.pattern_tiles(Window(300), 1024, torch.device("cpu"))
    assert tiles.every[0, 0, 4].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert tiles.some[0, 0, 4].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    heads = PerHead((Window(0), Window(0) | Global((700,)))) & Causal()
    tiles = tiles_module.pattern_tiles(heads, 1024, torch.device("cpu"))
    assert torch.equal(tiles.some[0, 0], torch.eye(8, dtype=torch.bool))
    assert tiles.some[0, 1, 5].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert tiles.some[0, 1, 7].tolist() == [0, 0, 0, 0, 0, 1, 0, 1]


def test_buckets_are_few_and_close():
    found = [bucket_length(T) for T in range(1, 65537)]
    assert all(T <= x < T * 1.25 + TILE and x % TILE == 0 for T, x in enumerate(found, 1))
    assert len(set(found)) == 32


class HostReads(TorchDispatchMode):
    """Operations that wait for a device, or whose sizes depend on values."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "masked_select"):
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_calls_never_wait_for_the_device(calls, name):
    attention = build_flex(name)
    kind = BIGBIRD if name == "bigbird" else PATTERNS
    with torch.no_grad(), HostReads() as reads:
        for masks in masks_of(300):
            key_mask, global_mask = masks
            kind.run(attention, Inputs(*qkv(300, D=D), key_mask, global_mask=global_mask))
    assert not reads.found


def test_layers_share_the_tiles_of_a_batch(unfused):
    layers, inputs = [build_flex("local") for _ in range(3)], qkv(150, D=D)
    mask = masks_of(150)[1][0]
    with torch.no_grad():
        for layer in layers:
            layer(*inputs, key_mask=mask)
        assert len({id(call[3]) for call in unfused}) == 1
        layers[0](*inputs, key_mask=mask.clone())
        assert unfused[-1][3] is not unfused[0][3]
        mask[0, :100] = False
        out = layers[0](*inputs, key_mask=mask)
        expected = reference_copy(layers[0])(*inputs, key_mask=mask)
        assert_near(out, expected, "a mask that was changed")


@torch.no_grad()
@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize("name", sorted(NAMES))
def test_tiles_of_one_batch_do_not_serve_a_larger_one(name):
    attention = build_flex(name)
    for B, T in ((1, 150), (3, 150), (2, 200), (2, 130)):
        inputs = qkv(T, B=B, D=D)
        assert_near(attention(*inputs), reference_copy(attention)(*inputs), f"{B} rows of {T}")


@torch.no_grad()
@pytest.mark.usefixtures("unfused")
def test_keys_with_fewer_heads():
    attention, (q, k, v) = build_flex("local"), qkv(150, D=D)
    inputs = q, k[:, :1], v[:, :1]
    assert_near(attention(*inputs), reference_copy(attention)(*inputs), "grouped heads")


def test_random_blocks_that_were_redrawn_are_read(unfused):
    bigbird, inputs = build_flex("bigbird", block=8, num_random_blocks=1), qkv(100, D=D)
    with torch.no_grad():
        before = bigbird(*inputs)
        bigbird.draws.copy_(bigbird.draws.flip(1))
        after = bigbird(*inputs)
        assert not torch.equal(before, after)
        assert_near(after, reference_copy(bigbird)(*inputs), "new draws")


def test_auto_runs_what_it_ran():
    for name in sorted(NAMES):
        attention = build_flex(name).float()
        attention.backend = "auto"
        with torch.no_grad():
            attention(*qkv(150, D=D, dtype=torch.float32))
        assert attention.backend_used in ("torch", "dense")


def refusals_of(attention, dtype=torch.float32, T=40, width=D, **more):
    inputs = [x.requires_grad_(torch.is_grad_enabled()) for x in qkv(T, D=width, dtype=dtype)]
    with pytest.raises(InputError) as caught:
        attention.to(dtype)(*inputs, **more)
    return str(caught.value)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local", {"weight_dropout": 0.5}, "dropout of weights"),
        ("blockwise", {"neighbors": [1, 1]}, r"neighbors=\.\.\. makes the row a circle"),
        ("bigbird", {"full_up_to": 50}, "full_up_to=50 makes the attention of T=40 full"),
        (
            "bigbird",
            {"sampling": "transformers", "repeats": True},
            "repeats=True counts some keys more than once",
        ),
    ],
)
def test_options_without_a_kernel_are_refused(name, options, message):
    attention = build_flex(name, **options)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refusals_of(attention))


@torch.no_grad()
def test_inputs_without_a_kernel_are_refused():
    local = build_flex("local")
    assert "dtype must be one of float16, bfloat16, float32, got torch.float64" in refusals_of(
        local, torch.float64
    )
    assert "D and E must be between 16 and 256, got 8 and 8" in refusals_of(local, width=8)
    bias = torch.zeros(1, 1, 40, 40)
    assert "a bias, or terms of relative positions" in refusals_of(local, bias=bias)
    with torch.enable_grad():
        assert "no backward pass on the CPU; use torch.no_grad()" in refusals_of(local)
    meta = [x.to("meta") for x in qkv(40, D=D, dtype=torch.float32)]
    with pytest.raises(InputError, match=r"device must be cuda, or cpu .*, got meta"):
        local.float()(*meta)


def test_global_projections_are_refused():
    longformer = build_flex("longformer", global_projections=True)
    reasons = PATTERNS.own_refusals(longformer, Inputs(*qkv(40, D=D)))
    assert reasons == ["global_projections=True computes the rows of global tokens separately"]


@torch.no_grad()
def test_transforms_are_refused():
    local, inputs = build_flex("local").float(), qkv(40, D=D, dtype=torch.float32)
    with pytest.raises(InputError, match=r"torch\.func transforms and forward mode"):
        torch.func.vmap(local)(*(x[None] for x in inputs))


def test_kernels_compiled_by_torch():
    """Own process: the types that the tests check cannot be traced."""
    assert " passed" in run_tests(HERE / "flex_compiled.py", "-m", "not slow")


@pytest.mark.slow
def test_kernels_compiled_for_the_cpu():
    assert " passed" in run_tests(HERE / "flex_compiled.py", "-m", "slow")


def test_build_accepts_the_name():
    assert build("local", backend="flex").backend == "flex"
