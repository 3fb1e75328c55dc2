"""Longformer: local and global projections, compared with the reference and Hugging Face."""

import copy

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_near,
    check_contract,
    full_and_causal,
    global_masks,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_steps,
    with_layer_input,
)
from test_contract_traits import Allocations
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from flop_counter import flop_counter
from longspan import build
from longspan.attention import LayerInput
from longspan.attention.ops import blocks
from longspan.errors import InputError, OptionError

WIDTH = HEADS * HEAD_DIM


def longformer(causal=False, layer=0, seed=0, heads=HEADS, head_dim=HEAD_DIM, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"heads": heads, "head_dim": head_dim, "layer": layer}
        return build("longformer", causal=causal, **sizes, **options).double()


def with_projections(causal=False, **options):
    return longformer(causal, **{"window": 4, "global_projections": True, **options})


def states(T, B=3, seed=5):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, WIDTH, generator=g, dtype=torch.float64)


def layer_input(x):
    return LayerInput(x, nn.Identity(), nn.Identity())


def add_last_global(global_mask):
    """Make the last token of the last row global; the row has no other."""
    global_mask = global_mask.clone()
    global_mask[-1, -1] = True
    return global_mask


# Output


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [{}, {"dilation": [1, 2, 5]}, {"window": [9, 0], "layer": 1}, {"first_global": 3}],
    ids=str,
)
def test_projections_obey_contract(options, causal):
    attention = with_projections(causal, **options)
    attention = with_layer_input(attention, nn.Identity(), nn.Identity())
    check_contract(attention, first_step=options.get("first_global", 1))


@full_and_causal
@pytest.mark.parametrize(
    "options",
    [
        {"window": 2, "dilation": [1, 3, 1]},
        {"window": 100},
        {"window": [8, 12]},
        {"window": 3, "first_global": True},
        {"window": 3, "first_global": 4},
    ],
    ids=str,
)
def test_obeys_contract_without_projections(options, causal):
    check_contract(
        longformer(causal, **options, layer=1 if isinstance(options["window"], list) else 0)
    )


@full_and_causal
def test_all_tokens_global_is_full_attention_of_global_projections(causal):
    attention, x = with_projections(causal), states(40)
    all_tokens = torch.ones(3, 40, dtype=torch.bool)
    for kind, key_mask in key_masks(40).items():
        out = attention(*qkv(40), key_mask, global_mask=all_tokens, layer_input=layer_input(x))
        inputs = [
            layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for layer in (
                attention.projections.query,
                attention.projections.key,
                attention.projections.value,
            )
        ]
        assert_near(out, build("full", causal=causal)(*inputs, key_mask), kind)


@full_and_causal
def test_gradients_reach_all_six_projections(causal):
    T, x = 30, states(30)
    torch.manual_seed(0)
    local = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)).double()
    attention = with_projections(causal)
    is_global = add_last_global(global_masks("longformer", T)[1])
    inputs = [y(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for y in local]
    out = attention(
        *inputs, key_masks(T)["ragged"], global_mask=is_global, layer_input=layer_input(x)
    )
    out.square().sum().backward()
    for name, parameter in [*local.named_parameters(), *attention.named_parameters()]:
        assert parameter.grad is not None, name
        # The bias of a key shifts all scores of a row and cancels in the softmax.
        cancels = name in ("1.bias", "projections.key.bias")
        assert (parameter.grad.abs().max() < 1e-12) == cancels, name


# Independence


@full_and_causal
def test_masks_hold_for_scores_of_any_size(causal):
    """Real scores of global rows are far below zero; padding (x = 0) has zero."""
    T, attention = 40, with_projections(causal)
    identity = torch.eye(WIDTH, dtype=torch.float64)
    with torch.no_grad():
        attention.projections.query.weight.copy_(100 * identity)
        attention.projections.key.weight.copy_(-1000 * identity)
    x, ragged = states(T).abs(), global_masks("longformer", T)[1]
    for kind, key_mask in key_masks(T).items():
        masks = {"mask": key_mask, "global_mask": ragged, "layer_input": layer_input(x)}
        out = attention(*qkv(T), **masks)
        assert_near(out, reference_copy(attention)(*qkv(T), **masks), kind, 1e-8)


def test_empty_global_mask_falls_back_to_the_window():
    T, inputs, x = 300, qkv(300), states(300)
    none = torch.zeros(3, T, dtype=torch.bool)
    attention = with_projections()
    with Allocations() as plain:
        expected = attention(*inputs, layer_input=layer_input(x))
    with Allocations() as masked:
        out = attention(*inputs, global_mask=none, layer_input=layer_input(x))
    assert_near(out, expected, "output")
    assert masked.total <= plain.total + 4 * none.numel()


# Cost


class Syncs(TorchDispatchMode):
    """Count the reads of tensor values by the host; each synchronizes the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"dilation": [1, 2, 3]}], ids=str)
def test_device_is_synchronized_once_and_only_for_ragged_masks(options, monkeypatch):
    monkeypatch.setattr(blocks, "is_piecewise", lambda *_: False)  # pieces are for the CPU alone
    for attention in (longformer(**options), with_projections(**options)):
        attention.backend = "torch"  # the dense body reads nothing
        for mask, expected in zip(global_masks("longformer", 40), (0, 1), strict=True):
            with Syncs() as syncs:
                attention(*qkv(40), global_mask=mask, layer_input=layer_input(states(40)))
            assert syncs.count == expected


def extra_flops(T, tokens):
    """Return the FLOPs that global tokens add to the window."""
    counted = []
    for mask in (None, (torch.arange(T) < tokens).expand(3, T)):
        with flop_counter() as counter:
            with_projections()(*qkv(T), global_mask=mask, layer_input=layer_input(states(T)))
        counted.append(counter.get_total_flops())
    return counted[1] - counted[0]


def test_few_global_tokens_project_themselves_and_many_all_tokens():
    T = 512
    all_tokens = 3 * 2 * 2 * T * WIDTH * WIDTH  # kg and vg of three rows of the batch
    assert extra_flops(T, 1) < all_tokens / 4
    threshold = HEAD_DIM * WIDTH // (WIDTH - HEAD_DIM)
    costs = [extra_flops(T, threshold + n) for n in (-2, -1, 0)]
    assert costs[2] - costs[1] < 1.2 * (costs[1] - costs[0]), (
        "the cost does not jump at the threshold"
    )
    assert costs[2] > all_tokens
    assert extra_flops(T, 4 * threshold) < 0.75 * 4 * costs[2]


@pytest.mark.parametrize("kind", ["few", "many"])
def test_memory_is_linear_in_length(kind):
    allocated = []
    for T in (128, 1024):
        mask = (torch.arange(T) < (2 if kind == "few" else 20)).expand(2, T)
        inputs, x = [y.requires_grad_() for y in qkv(T, B=2)], states(T, B=2).requires_grad_()
        attention = with_projections()
        with Allocations() as forward:
            out = attention(*inputs, global_mask=mask, layer_input=layer_input(x))
        with Allocations() as backward:
            out.sum().backward()
        allocated.append((forward.largest, forward.total, backward.largest, backward.total))
    assert all(long <= 1.1 * 8 * short for short, long in zip(*allocated, strict=True))


# Use


@full_and_causal
def test_copies_of_local_projections_equal_shared_projections(causal):
    T, x = 40, states(40)
    torch.manual_seed(3)
    local = [nn.Linear(WIDTH, WIDTH, bias=bias).double() for bias in (True, True, False)]
    inputs = [y(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for y in local]
    attention = with_projections(causal)
    attention.copy_projections(*local)
    assert not any(
        own.data_ptr() == other.data_ptr()
        for own in attention.parameters()
        for layer in local
        for other in layer.parameters()
    )
    masks = {"mask": key_masks(T)["holes"], "global_mask": global_masks("longformer", T)[1]}
    tied = longformer(causal, window=4)(*inputs, **masks)
    assert_near(attention(*inputs, **masks, layer_input=layer_input(x)), tied, "output")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", ["same", "float32"])
def test_lower_precision_is_near_the_float64_reference(dtype, weights):
    """Under autocast, x and the projections are float32 while q, k and v are not."""
    state_dtype = dtype if weights == "same" else torch.float32
    attention, T = with_projections().to(state_dtype), 64
    inputs, x = qkv(T, dtype=dtype), states(T).to(state_dtype)
    for mask in ((torch.arange(T) < n).expand(3, T) for n in (3, 30)):
        out = attention(*inputs, global_mask=mask, layer_input=layer_input(x))
        assert out.dtype == dtype
        exact = reference_copy(attention).double()(
            *(y.double() for y in inputs), global_mask=mask, layer_input=layer_input(x.double())
        )
        assert_near(out.double(), exact, "output", TOLERANCE[dtype])


def test_autocast_and_checkpointing_preserve_results():
    attention, T = with_projections().float(), 40
    inputs = [y.float().requires_grad_() for y in qkv(T)]
    masks = {
        "global_mask": global_masks("longformer", T)[1],
        "layer_input": layer_input(states(T).float()),
    }
    plain = attention(*inputs, **masks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(*inputs, **masks), plain)
    again = checkpoint(attention, *inputs, use_reentrant=False, **masks)
    found = [gradients(out, inputs, attention) for out in (plain, again)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_step_without_layer_input_equals_forward():
    T, attention = 40, with_projections(True, dilation=[1, 2, 3])
    out, _ = run_steps(attention, qkv(T), (1,) * T)
    assert_near(out, attention(*qkv(T), layer_input=layer_input(states(T))), "output")


# Errors


def test_missing_or_mismatched_layer_input_is_rejected():
    inputs = qkv(9)
    with pytest.raises(InputError, match="global_projections=True requires layer_input"):
        with_projections()(*inputs)
    with pytest.raises(InputError, match=r"\(B, S\) = \(3, 9\), got \(3, 8"):
        with_projections()(*inputs, layer_input=layer_input(states(8)))
    assert (
        longformer()(*inputs).shape
        == longformer()(*inputs, layer_input=layer_input(states(9))).shape
    )


def test_invalid_copies_are_rejected():
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    attention = with_projections()
    before = copy.deepcopy(attention.state_dict())
    with pytest.raises(OptionError, match=r"must have shape \(24, 24\), got \(1, 24\)"):
        attention.copy_projections(*layers[:2], nn.Linear(WIDTH, 1))
    assert all(torch.equal(y, before[n]) for n, y in attention.state_dict().items())


@full_and_causal
@pytest.mark.parametrize("projections", [False, True])
@pytest.mark.parametrize("count", [True, 3])
def test_first_global_equals_a_mask_of_the_first_tokens(causal, projections, count):
    T, x = 40, states(40)
    options = {"global_projections": projections, "window": 4}
    torch.manual_seed(3)
    attention = longformer(causal, first_global=count, **options)
    masked = longformer(causal, **options)
    masked.load_state_dict(attention.state_dict())
    first = (torch.arange(T) < count).expand(3, T)
    extra = {"layer_input": layer_input(x)}
    for key_mask in key_masks(T).values():
        out = attention(*qkv(T), key_mask, **extra)
        assert_near(out, masked(*qkv(T), key_mask, global_mask=first, **extra), "output")
        own = reference_copy(attention)(*qkv(T), key_mask, **extra)
        assert_near(out, own, "reference")


@full_and_causal
@pytest.mark.parametrize("projections", [False, True])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_global_rows_without_keys_are_zero(causal, projections, count):
    """Hidden keys leave rows of the first tokens empty; few rows have a body of their own."""
    T, x = 24, states(24).requires_grad_()
    torch.manual_seed(3)
    attention = longformer(causal, first_global=count, global_projections=projections, window=4)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += torch.randn_like(parameter)
    key_mask = torch.arange(T) >= torch.tensor([0, 5, T])[:, None]
    masks = {"key_mask": key_mask, "layer_input": layer_input(x) if projections else None}
    out = attention(*qkv(T), **masks)
    assert_near(out, reference_copy(attention)(*qkv(T), **masks), "reference")
    empty = (key_mask.cumsum(1) if causal else key_mask.sum(1, keepdim=True).expand(-1, T)) == 0
    assert not out.movedim(1, 2)[empty].any()


def test_first_step_with_some_global_tokens_only_is_refused():
    attention = longformer(True, first_global=5, global_projections=True, window=4)
    with pytest.raises(InputError, match=r"first step must have all 5 global tokens.*got T=4"):
        attention.step(*qkv(4), layer_input=layer_input(states(4)))


def test_flops_of_a_global_row_with_its_own_projections():
    T, x, counted, claimed = 64, states(64, B=1), [], []
    for own in (False, True):
        attention = longformer(window=4, first_global=True, global_projections=own)
        with flop_counter() as counter:
            attention(*(y[:1] for y in qkv(T)), layer_input=layer_input(x))
        counted.append(counter.get_total_flops())
        claimed.append(HEADS * attention.flops(T, HEAD_DIM))
    assert counted[1] - counted[0] == claimed[1] - claimed[0]


# Parity with Hugging Face


def hugging_face_layer(kind, window):
    """Return an attention layer of Hugging Face."""
    modules = pytest.importorskip(f"transformers.models.{kind}.modeling_{kind}")
    torch.manual_seed(0)
    if kind == "longformer":
        config = modules.LongformerConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_hidden_layers=1,
            attention_window=[2 * window],
            attention_probs_dropout_prob=0.0,
        )
        layer = modules.LongformerSelfAttention(config, 0)
    else:
        config = modules.LEDConfig(
            d_model=WIDTH,
            encoder_attention_heads=HEADS,
            encoder_layers=1,
            attention_window=[2 * window],
            attention_dropout=0.0,
        )
        layer = modules.LEDEncoderSelfAttention(config, 0)
    for parameter in layer.parameters():
        # Larger than the initial ones, so that the softmax is far from uniform.
        nn.init.normal_(parameter, std=0.4)
    return layer.double()


@pytest.mark.parametrize("kind", ["longformer", "led"])
@pytest.mark.parametrize("tied", [False, True], ids=["own", "tied"])
def test_equals_hugging_face_layer(kind, tied):
    window, T = 4, 48
    layer, x = hugging_face_layer(kind, window), states(T)
    if tied:
        for name in ("query", "key", "value"):
            getattr(layer, f"{name}_global").load_state_dict(getattr(layer, name).state_dict())
    attention = longformer(window=window, global_projections=not tied)
    if not tied:
        attention.copy_projections(layer.query_global, layer.key_global, layer.value_global)
    real = torch.arange(T) < torch.tensor([T, T - 5, T // 2])[:, None]
    is_global = torch.zeros(3, T, dtype=torch.bool)
    is_global[0, 0], is_global[1, [0, 9, 10, 20, T - 6]] = True, True
    many = torch.arange(T).expand(3, T) % 3 == 0
    for ragged in (torch.zeros_like(is_global), is_global, many):
        ragged = ragged & real
        inputs = [
            getattr(layer, name)(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for name in ("query", "key", "value")
        ]
        out = attention(*inputs, real, global_mask=ragged, layer_input=layer_input(x))
        mask = torch.zeros(3, T, dtype=torch.float64).masked_fill(ragged, 1e4)
        mask = mask.masked_fill(~real, -1e4)
        expected = layer(
            x,
            attention_mask=mask,
            is_index_masked=mask < 0,
            is_index_global_attn=mask > 0,
            is_global_attn=bool(ragged.any()),
        )[0]
        # Hugging Face computes the softmax in float32.
        assert_near(out.transpose(1, 2).flatten(2)[real], expected[real], "output", 2e-6)
