"""Packed documents: the rows of each document alone, for the work of their tokens."""

import itertools

import pytest
import torch
from contract import (
    HEADS,
    assert_near,
    build_small,
    every_mechanism,
    gradients,
    qkv,
    reference_copy,
    run_or_skip,
)
from torch.utils._python_dispatch import TorchDispatchMode

from flop_counter import flop_counter
from longspan.attention import MECHANISMS, LayerInput, build
from longspan.errors import InputError, OptionError

LENGTHS = (7, 1, 33, 40, 8, 64, 5)
# Shorter than a block, and longer.
MIXES = {"mixed": LENGTHS, "tiny": (3, 1, 2, 4, 2)}


def bounds(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)])


def packed_qkv(lengths, seed=0, **sizes):
    return [x[0].transpose(0, 1).contiguous() for x in qkv(sum(lengths), B=1, seed=seed, **sizes)]


def run_packed(attention, inputs, lengths, **masks):
    """Compute the documents at once; skip the test if a kernel does not support one of them."""
    return run_or_skip(attention.packed, *inputs, bounds(lengths), **masks)


def alone(attention, inputs, lengths, **masks):
    """Return the rows of each document alone, one after another."""
    masks = {name: x.split(list(lengths)) for name, x in masks.items()}
    outs = []
    for i, rows in enumerate(zip(*(x.split(list(lengths)) for x in inputs), strict=True)):
        own = {name: x[i][None] for name, x in masks.items()}
        out = run_or_skip(attention, *(x.transpose(0, 1)[None] for x in rows), **own)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def packed_masks(name, lengths):
    """Return no mask, and ragged global tokens if they are supported."""
    masks = [{}]
    if MECHANISMS[name].traits.global_tokens:
        g = torch.Generator().manual_seed(1)
        masks.append({"global_mask": torch.rand(sum(lengths), generator=g) < 0.15})
    return masks


@every_mechanism
@pytest.mark.parametrize("lengths", MIXES.values(), ids=MIXES)
def test_packed_documents_equal_documents_alone(name, causal, backend, lengths):
    attention = build_small(name, causal, backend)
    for masks in packed_masks(name, lengths):
        inputs = [x.requires_grad_() for x in packed_qkv(lengths)]
        out = run_packed(attention, inputs, lengths, **masks)
        expected = alone(attention, inputs, lengths, **masks)
        results = ((x, *gradients(x, inputs, attention)) for x in (out, expected))
        assert_near(*results, f"global tokens {bool(masks)}")


@every_mechanism
def test_other_documents_have_no_influence(name, causal, backend):
    attention, lengths = build_small(name, causal, backend), LENGTHS
    inputs = [x.requires_grad_() for x in packed_qkv(lengths)]
    out = run_packed(attention, inputs, lengths)
    for i in (1, 3):
        rows = slice(int(bounds(lengths)[i]), int(bounds(lengths)[i + 1]))
        outside = torch.ones(sum(lengths), 1, 1, dtype=torch.bool)
        outside[rows] = False
        garbage = [torch.where(outside, 50 * x.flip(0), x) for x in inputs]
        assert_near(attention.packed(*garbage, bounds(lengths))[rows], out[rows], f"document {i}")
        grads = torch.autograd.grad(
            out[rows].pow(2).sum(),
            inputs,
            allow_unused=True,
            retain_graph=True,
            materialize_grads=True,
        )
        assert not any(x[outside[:, 0, 0]].any() for x in grads), f"gradient of document {i}"


class CountOperations(TorchDispatchMode):
    """Number of dispatched operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@every_mechanism
def test_number_of_operations_follows_the_trait(name, causal, backend):
    attention = build_small(name, causal, backend)
    found = []
    for documents in (3, 12):
        lengths = (48,) * documents
        with CountOperations() as counter:
            run_packed(attention, packed_qkv(lengths), lengths)
        found.append(counter.count)
    is_packed = attention.traits.packed and backend == "torch"
    # A row that is a multiple of the block needs no padding.
    few = found[1] <= found[0] + 2
    assert few == is_packed, f"{found} operations; declare Traits(packed={few})"


@every_mechanism
def test_work_of_packed_documents_is_that_of_their_tokens(name, causal, backend):
    """One long document does not make the others cost as much, as padding would."""
    attention = build_small(name, causal, backend)
    lengths = (16, 12, 128, 9, 30, 25, 17, 20)
    with flop_counter() as packed:
        run_packed(attention, packed_qkv(lengths), lengths)
    with flop_counter() as single:
        alone(attention, packed_qkv(lengths), lengths)
    padded = [x.expand(8, -1, -1, -1) for x in qkv(128, B=1)]
    with flop_counter() as dense:
        run_or_skip(attention, *padded)
    # torch counts the FLOPs of fused attention on CUDA only.
    if single.get_total_flops():
        assert packed.get_total_flops() <= 2.2 * single.get_total_flops()
        assert packed.get_total_flops() <= 0.75 * dense.get_total_flops()


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_of_packed_documents(name, causal, backend, dtype):
    attention = build_small(name, causal, backend).to(dtype)
    inputs = [x.to(dtype) for x in packed_qkv(LENGTHS)]
    out = run_packed(attention, inputs, LENGTHS)
    assert out.dtype == dtype
    exact = alone(reference_copy(attention).double(), [x.double() for x in inputs], LENGTHS)
    assert_near(out.double(), exact, "packed", 5e-2 if dtype == torch.bfloat16 else 2e-5)


@pytest.mark.parametrize(
    "cu_seqlens",
    [
        torch.tensor([0, 5, 9]),
        torch.tensor([1, 5, 10]),
        torch.tensor([0, 7, 5, 10]),
        torch.tensor([[0, 10]]),
        torch.tensor([0]),
    ],
    ids=["too few", "late start", "decreasing", "matrix", "one number"],
)
def test_wrong_bounds_are_refused(cu_seqlens):
    attention = build_small("local")
    inputs = packed_qkv((10,))
    if cu_seqlens.dim() == 1:
        with pytest.raises(InputError, match=r"cu_seqlens must be .* from 0 to 10"):
            attention.packed(*inputs, cu_seqlens)
        return
    with pytest.raises(Exception, match="cu_seqlens"):
        attention.packed(*inputs, cu_seqlens)


def test_empty_documents_and_every_integer_type():
    attention, inputs = build_small("local"), packed_qkv((10,))
    expected = attention.packed(*inputs, torch.tensor([0, 4, 10]))
    for dtype in (torch.int32, torch.int64):
        cu_seqlens = torch.tensor([0, 0, 4, 4, 10, 10], dtype=dtype)
        assert torch.equal(attention.packed(*inputs, cu_seqlens), expected)


def test_documents_beyond_the_limits_are_refused():
    attention = build_small("linformer", max_length=20)
    assert attention.packed(*packed_qkv((20, 15, 20)), bounds((20, 15, 20))).isfinite().all()
    with pytest.raises(InputError, match="S=21 exceeds max_length=20"):
        attention.packed(*packed_qkv((15, 21)), bounds((15, 21)))
    with pytest.raises(InputError, match="global_mask is not supported"):
        attention.packed(
            *packed_qkv((9,)), bounds((9,)), global_mask=torch.zeros(9, dtype=torch.bool)
        )
    with pytest.raises(InputError, match="scale is not supported"):
        build_small("linear").packed(*packed_qkv((9,)), bounds((9,)), scale=1.0)
    limited, mask = build_small("local", max_global_tokens=2), torch.arange(30) % 5 == 0
    assert limited.packed(*packed_qkv((10, 20))[:3], bounds((10,) * 3), global_mask=mask).any()
    with pytest.raises(InputError, match="at most max_global_tokens=2"):
        limited.packed(*packed_qkv((10, 20)), bounds((10, 20)), global_mask=mask)


def test_grouped_heads_scale_and_layer_input():
    attention = build_small("local", heads=6)
    q, k, v = packed_qkv(LENGTHS, H=6)
    k, v = k[:, ::3], v[:, ::3]
    out = attention.packed(q, k, v, bounds(LENGTHS), scale=0.5)
    wide = [x.repeat_interleave(3, 1) for x in (k, v)]
    expected = attention.packed(2**-1 * 8**0.5 * q, *wide, bounds(LENGTHS))
    assert_near(out, expected, "groups and scale")
    projected = build_small("longformer", global_projections=True)
    with pytest.raises(InputError, match="requires layer_input"):
        projected.packed(*packed_qkv(LENGTHS), bounds(LENGTHS))


def test_fixed_global_tokens_are_those_of_each_document():
    attention = build_small("longformer", first_global=2)
    assert not attention.traits.packed
    inputs = packed_qkv(LENGTHS)
    assert_near(
        attention.packed(*inputs, bounds(LENGTHS)), alone(attention, inputs, LENGTHS), "first"
    )


def test_heads_with_patterns_of_their_own():
    attention = build_small("dilated", dilation=[1, 3, 2])
    inputs = packed_qkv(LENGTHS)
    assert inputs[0].shape[1] == HEADS
    assert_near(attention.packed(*inputs, bounds(LENGTHS)), alone(attention, inputs, LENGTHS), "")


def test_dropped_weights_differ_between_documents():
    attention = build("local", window=4, weight_dropout=0.5)
    inputs = packed_qkv((20, 20), dtype=torch.float32)
    inputs = [torch.cat([x[:20]] * 2) for x in inputs]
    out = attention.packed(*inputs, bounds((20, 20)))
    assert not torch.equal(out[:20], out[20:])
    out = attention.eval().packed(*inputs, bounds((20, 20)))
    assert_near(out[:20], out[20:], "no dropout", 1e-6)
    with pytest.raises(OptionError, match="weight_dropout is not supported"):
        build("linear", weight_dropout=0.5)


def test_documents_read_their_own_layer_input():
    attention = build_small("longformer", first_global=1, global_projections=True)
    inputs, states = packed_qkv(LENGTHS), torch.randn(1, sum(LENGTHS), 24, dtype=torch.float64)
    whole = LayerInput(states, torch.nn.Identity(), torch.nn.Identity())
    out = attention.packed(*inputs, bounds(LENGTHS), layer_input=whole)
    for a, b in itertools.pairwise(bounds(LENGTHS).tolist()):
        rows = [x[a:b].transpose(0, 1)[None] for x in inputs]
        own = LayerInput(states[:, a:b], whole.query, whole.key)
        assert_near(out[a:b], attention(*rows, layer_input=own)[0].transpose(0, 1), f"{a} to {b}")
