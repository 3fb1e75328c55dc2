"""Longformer: two branches with projections of their own, against the dense form and against HF."""

import copy

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_near,
    global_masks,
    gradients,
    key_masks,
    obeys,
    qkv,
    slow_twin,
)
from test_contract_traits import Allocations
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from longspan import build
from longspan.attention import LayerInput
from longspan.attention.ops.softmax import softmax_reference
from longspan.errors import InputError, OptionError

WIDTH = HEADS * HEAD_DIM
both_orders = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def longformer(causal=False, layer=0, seed=0, heads=HEADS, head_dim=HEAD_DIM, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"heads": heads, "head_dim": head_dim, "layer": layer}
        return build("longformer", causal=causal, **sizes, **options).double()


def projecting(causal=False, **options):
    return longformer(causal, **{"window": 4, "global_projections": True, **options})


def states(T, B=3, seed=5):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, WIDTH, generator=g, dtype=torch.float64)


def layer_input(x):
    return LayerInput(x, nn.Identity(), nn.Identity())


def results(attention, inputs, x, rows=None, **masks):
    """Output (its first rows), and gradients of q, k, v, x and every parameter."""
    inputs = [y.detach().requires_grad_() for y in (*inputs, x)]
    out = attention(*inputs[:3], layer_input=layer_input(inputs[3]), **masks)[:, :, :rows]
    return out, *gradients(out, inputs, attention)


def last_global(global_mask):
    """The mask with one more token, the last one of the last row, which had none."""
    global_mask = global_mask.clone()
    global_mask[-1, -1] = True
    return global_mask


# What it computes


@both_orders
@pytest.mark.parametrize(
    "options", [{}, {"dilation": [1, 2, 5]}, {"window": [9, 0], "layer": 1}], ids=str
)
def test_output_and_gradients_equal_the_reference(options, causal):
    attention = projecting(causal, **options)
    names = ["output", "q", "k", "v", "x", *(n for n, _ in attention.named_parameters())]
    for T in (1, 7, 8, 33, 64):
        inputs, x, ragged = qkv(T), states(T), global_masks("longformer", T)[1]
        every = torch.ones_like(ragged)
        for kind, key_mask in key_masks(T).items():
            for which, mask in {"none": None, "ragged": ragged, "all": every}.items():
                masks = {"key_mask": key_mask, "global_mask": mask}
                fast = results(attention, inputs, x, **masks)
                slow = results(slow_twin(attention), inputs, x, **masks)
                for what, a, b in zip(names, fast, slow, strict=True):
                    assert_near(a, b, f"T={T}, {kind}, globals {which}, {what}")


@both_orders
@pytest.mark.parametrize(
    "options", [{"window": 2, "dilation": [1, 3, 1]}, {"window": 100}, {"window": [8, 12]}], ids=str
)
def test_without_projections_it_obeys_the_contract(options, causal):
    obeys(longformer(causal, **options, layer=1 if isinstance(options["window"], list) else 0))


@both_orders
def test_all_tokens_global_is_full_attention_with_the_global_projections(causal):
    attention, x = projecting(causal), states(40)
    every = torch.ones(3, 40, dtype=torch.bool)
    for kind, key_mask in key_masks(40).items():
        out = attention(*qkv(40), key_mask, global_mask=every, layer_input=layer_input(x))
        inputs = [
            layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for layer in (
                attention.projections.query,
                attention.projections.key,
                attention.projections.value,
            )
        ]
        assert_near(out, build("full", causal=causal)(*inputs, key_mask), kind)


@both_orders
def test_a_window_over_all_and_no_global_token_is_full_attention(causal):
    inputs = qkv(40)
    out = projecting(causal, window=40)(*inputs, layer_input=layer_input(states(40)))
    assert_near(out, build("full", causal=causal)(*inputs), "output")


@both_orders
def test_a_global_key_inside_the_window_counts_once(causal):
    T, window = 30, 4
    is_global = torch.zeros(3, T, dtype=torch.bool)
    is_global[0, [0, T - 1]], is_global[1, [11, 12, 15]] = True, True
    q, k, _ = qkv(T)
    identity = torch.eye(T, dtype=q.dtype).expand(3, HEADS, T, T)
    position = torch.arange(T)
    mask = ((position[:, None] - position).abs() <= window)[None, None]
    mask = mask | is_global[:, None, :, None] | is_global[:, None, None, :]
    mask = mask.tril() if causal else mask
    weights = longformer(causal, window=window)(q, k, identity, global_mask=is_global)
    assert_near(weights, softmax_reference(q, k, identity, mask), "weights")


def test_local_rows_read_the_local_projections_and_global_rows_the_global():
    T, attention = 30, projecting()
    inputs, x = qkv(T), states(T)
    is_global = global_masks("longformer", T)[1]
    before = attention(*inputs, global_mask=is_global, layer_input=layer_input(x))
    rows = is_global[:, None, :, None].expand_as(before)
    other = projecting(seed=1)(*inputs, global_mask=is_global, layer_input=layer_input(x))
    assert torch.equal(other[~rows], before[~rows])
    assert not torch.isclose(other[rows], before[rows]).any()
    changed = attention(*(y + 1 for y in inputs), global_mask=is_global, layer_input=layer_input(x))
    assert_near(changed[rows], before[rows], "global rows")


@both_orders
def test_gradients_reach_all_six_projections(causal):
    T, x = 30, states(30)
    torch.manual_seed(0)
    local = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)).double()
    attention = projecting(causal)
    is_global = last_global(global_masks("longformer", T)[1])
    inputs = [y(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for y in local]
    out = attention(
        *inputs, key_masks(T)["ragged"], global_mask=is_global, layer_input=layer_input(x)
    )
    out.square().sum().backward()
    for name, parameter in [*local.named_parameters(), *attention.named_parameters()]:
        assert parameter.grad is not None, name
        # A key's bias adds the same to all scores of a row: nothing.
        drops_out = name in ("1.bias", "projections.key.bias")
        assert (parameter.grad.abs().max() < 1e-12) == drops_out, name


# What has no influence


@both_orders
@pytest.mark.parametrize("garbage", [50.0, torch.nan, torch.inf])
def test_padding_has_no_influence(garbage, causal):
    T, attention = 33, projecting(causal)
    inputs, x, ragged = qkv(T), states(T), global_masks("longformer", T)[1]
    expected, *wanted = results(attention, inputs, x, global_mask=ragged)
    for p in (1, 8, 17):
        padded = [torch.cat([y, garbage * y[:, :, :p]], 2) for y in inputs]
        longer = torch.cat([x, garbage * x[:, :p]], 1)
        masks = {
            "key_mask": (torch.arange(T + p) < T).expand(3, -1),
            # Padding is global in the caller's mask, and still has no influence.
            "global_mask": torch.cat([ragged, torch.ones(3, p, dtype=torch.bool)], 1),
        }
        assert not attention(*padded, **masks, layer_input=layer_input(longer))[:, :, T:].any()
        out, *found = results(attention, padded, longer, rows=T, **masks)
        assert_near(out, expected, f"{p} padded")
        for a, b in zip(found, wanted, strict=True):
            a = a[:, :, :T] if a.dim() == 4 else a[:, :T] if a.dim() == 3 else a
            assert_near(a, b, f"gradient, {p} padded")


@both_orders
def test_rows_of_a_batch_are_independent(causal):
    T, attention = 50, projecting(causal)
    size = torch.tensor([1.0, 4.0, 0.1], dtype=torch.float64)
    inputs = [size[:, None, None, None] * y for y in qkv(T)]
    x, ragged = size[:, None, None] * states(T), global_masks("longformer", T)[1]
    for kind, key_mask in key_masks(T).items():
        out = attention(*inputs, key_mask, global_mask=ragged, layer_input=layer_input(x))
        for b in range(3):
            row = slice(b, b + 1)
            own = None if key_mask is None else key_mask[row]
            alone = attention(
                *(y[row] for y in inputs),
                own,
                global_mask=ragged[row],
                layer_input=layer_input(x[row]),
            )
            assert_near(out[row], alone, f"row {b}, {kind}")


def test_a_causal_row_ignores_the_future_of_inputs_and_source():
    T, attention = 60, projecting(True, dilation=[1, 2, 3])
    inputs, x = qkv(T), states(T)
    for ragged in global_masks("longformer", T):
        before = attention(*inputs, global_mask=ragged, layer_input=layer_input(x))
        for t in (0, 6, 31, 58):
            future = torch.arange(T) > t
            new = [torch.where(future[:, None], 50 * y, y) for y in inputs]
            x_new = torch.where(future[:, None], 50 * x, x)
            # Which later tokens are global is of the future, too.
            mask = None if ragged is None else ragged | future
            after = attention(*new, global_mask=mask, layer_input=layer_input(x_new))
            assert_near(after[:, :, : t + 1], before[:, :, : t + 1], f"rows up to {t}")


@both_orders
def test_scores_of_any_size_stay_within_the_masks(causal):
    """Real scores of global rows far below zero, where padding (x = 0) has zero."""
    T, attention = 40, projecting(causal)
    identity = torch.eye(WIDTH, dtype=torch.float64)
    with torch.no_grad():
        attention.projections.query.weight.copy_(100 * identity)
        attention.projections.key.weight.copy_(-1000 * identity)
    x, ragged = states(T).abs(), global_masks("longformer", T)[1]
    for kind, key_mask in key_masks(T).items():
        masks = {"key_mask": key_mask, "global_mask": ragged, "layer_input": layer_input(x)}
        out = attention(*qkv(T), **masks)
        assert_near(out, slow_twin(attention)(*qkv(T), **masks), kind, 1e-8)


def test_an_all_padded_row_is_zero_with_zero_gradients():
    T, attention = 20, projecting()
    some = torch.ones(3, T, dtype=torch.bool)
    some[1] = False
    masks = {"key_mask": some, "global_mask": torch.ones_like(some)}
    out, *found = results(attention, qkv(T), states(T), **masks)
    assert not out[1].any()
    assert all(y.isfinite().all() for y in found)
    assert not any(y[1].any() for y in found[:4])


def test_no_global_token_falls_through_to_the_window():
    T, inputs, x = 300, qkv(300), states(300)
    none = torch.zeros(3, T, dtype=torch.bool)
    attention = projecting()
    with Allocations() as plain:
        expected = attention(*inputs, layer_input=layer_input(x))
    with Allocations() as masked:
        out = attention(*inputs, global_mask=none, layer_input=layer_input(x))
    assert torch.equal(out, expected)
    assert masked.total <= plain.total + 4 * none.numel()


# What it costs


class Syncs(TorchDispatchMode):
    """How often the host reads a value of a tensor, and so waits for the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"dilation": [1, 2, 3]}], ids=str)
def test_the_device_is_waited_for_once_and_only_with_ragged_tokens(options):
    for attention in (longformer(**options), projecting(**options)):
        for mask, expected in zip(global_masks("longformer", 40), (0, 1), strict=True):
            with Syncs() as syncs:
                attention(*qkv(40), global_mask=mask, layer_input=layer_input(states(40)))
            assert syncs.count == expected


def extra_flops(T, tokens):
    """What some global tokens cost beyond the window."""
    counted = []
    for mask in (None, (torch.arange(T) < tokens).expand(3, T)):
        with FlopCounterMode(display=False) as counter:
            projecting()(*qkv(T), global_mask=mask, layer_input=layer_input(states(T)))
        counted.append(counter.get_total_flops())
    return counted[1] - counted[0]


def test_few_global_tokens_project_no_other_token_and_many_do():
    T = 512
    all_tokens = 3 * 2 * 2 * T * WIDTH * WIDTH  # kg and vg of three rows of the batch
    assert extra_flops(T, 1) < all_tokens / 4
    threshold = HEAD_DIM * WIDTH // (WIDTH - HEAD_DIM)
    costs = [extra_flops(T, threshold + n) for n in (-2, -1, 0)]
    assert costs[2] - costs[1] < 1.2 * (costs[1] - costs[0]), "the forms cost the same here"
    assert costs[2] > all_tokens
    assert extra_flops(T, 4 * threshold) < 0.75 * 4 * costs[2]


@pytest.mark.parametrize("kind", ["few", "many"])
def test_memory_grows_with_the_length_alone(kind):
    seen = []
    for T in (128, 1024):
        mask = (torch.arange(T) < (2 if kind == "few" else 20)).expand(2, T)
        inputs, x = [y.requires_grad_() for y in qkv(T, B=2)], states(T, B=2).requires_grad_()
        attention = projecting()
        with Allocations() as forward:
            out = attention(*inputs, global_mask=mask, layer_input=layer_input(x))
        with Allocations() as backward:
            out.sum().backward()
        seen.append((forward.largest, forward.total, backward.largest, backward.total))
    assert all(long <= 1.1 * 8 * short for short, long in zip(*seen, strict=True))


# How it is used


@both_orders
def test_copies_of_the_local_projections_give_the_tied_form(causal):
    T, x = 40, states(40)
    torch.manual_seed(3)
    local = [nn.Linear(WIDTH, WIDTH, bias=bias).double() for bias in (True, True, False)]
    inputs = [y(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for y in local]
    attention = projecting(causal)
    attention.copy_projections(*local)
    assert not any(
        own.data_ptr() == other.data_ptr()
        for own in attention.parameters()
        for layer in local
        for other in layer.parameters()
    )
    masks = {"key_mask": key_masks(T)["holes"], "global_mask": global_masks("longformer", T)[1]}
    tied = longformer(causal, window=4)(*inputs, **masks)
    assert_near(attention(*inputs, **masks, layer_input=layer_input(x)), tied, "output")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", ["same", "float32"])
def test_lower_precision_is_near_the_float64_reference(dtype, weights):
    """Under autocast x and the projections stay in float32 while q, k and v do not."""
    wide = dtype if weights == "same" else torch.float32
    attention, T = projecting().to(wide), 64
    inputs, x = qkv(T, dtype=dtype), states(T).to(wide)
    for mask in ((torch.arange(T) < n).expand(3, T) for n in (3, 30)):
        out = attention(*inputs, global_mask=mask, layer_input=layer_input(x))
        assert out.dtype == dtype
        exact = slow_twin(attention).double()(
            *(y.double() for y in inputs), global_mask=mask, layer_input=layer_input(x.double())
        )
        assert_near(out.double(), exact, "output", TOLERANCE[dtype])


def test_autocast_and_checkpointing_change_nothing():
    attention, T = projecting().float(), 40
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


def test_a_step_needs_no_source_and_equals_the_whole():
    T, attention = 40, projecting(True, dilation=[1, 2, 3])
    inputs, outs, cache = qkv(T), [], None
    for t in range(T):
        out, cache = attention.step(*(y[:, :, t : t + 1] for y in inputs), cache)
        outs.append(out)
    assert_near(
        torch.cat(outs, 2), attention(*inputs, layer_input=layer_input(states(T))), "output"
    )


def test_a_model_trains_with_projections_and_windows_of_each_layer():
    models = pytest.importorskip("longspan.models")
    config = models.LongspanConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=24,
        max_position_embeddings=40,
        attention="longformer",
        attention_options={"window": [3, 5], "dilation": [[1] * 3, [1, 1, 2]]}
        | {"global_projections": True},
        pooling="cls",
        num_labels=3,
    )
    model = models.LongspanForSequenceClassification(config)
    out = model(torch.randint(1, 50, (3, 19)), labels=torch.tensor([0, 1, 2]))
    out.loss.backward()
    assert all(y.grad is not None and y.grad.isfinite().all() for y in model.parameters())
    first, second = (layer.attention.mechanism for layer in model.encoder.layers)
    assert (first.pattern.left, second.pattern.heads) == (3, 3)


# What is refused


def test_projections_without_a_source_or_with_another_are_refused():
    inputs = qkv(9)
    with pytest.raises(InputError, match="global_projections=True requires layer_input"):
        projecting()(*inputs)
    with pytest.raises(InputError, match=r"layer_input\.states must be 24 wide, got 16"):
        projecting()(*inputs, layer_input=layer_input(states(9)[..., :16]))
    with pytest.raises(InputError, match=r"\(B, S\) = \(3, 9\), got \(3, 8\)"):
        projecting()(*inputs, layer_input=layer_input(states(8)))
    assert (
        longformer()(*inputs).shape
        == longformer()(*inputs, layer_input=layer_input(states(9))).shape
    )


@pytest.mark.parametrize(("H", "D", "E"), [(2, 12, 12), (3, 4, 8), (3, 8, 5)])
def test_projections_of_another_shape_are_refused(H, D, E):
    message = rf"\(heads, D, E\) must be \(3, 8, 8\), as built; got \({H}, {D}, {E}\)"
    with pytest.raises(InputError, match=message):
        projecting()(*qkv(9, H=H, D=D, E=E), layer_input=layer_input(states(9)))


def test_copies_that_cannot_be_made_are_refused():
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    with pytest.raises(OptionError, match="global_projections=True"):
        longformer().copy_projections(*layers)
    attention = projecting()
    before = copy.deepcopy(attention.state_dict())
    with pytest.raises(OptionError, match=r"must have shape \(24, 24\), got \(1, 24\)"):
        attention.copy_projections(*layers[:2], nn.Linear(WIDTH, 1))
    assert all(torch.equal(y, before[n]) for n, y in attention.state_dict().items())


# Hugging Face


def theirs(kind, window):
    """A layer of Hugging Face and its six projections."""
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
        # Larger than they start: a softmax far from uniform, and biases.
        nn.init.normal_(parameter, std=0.4)
    return layer.double()


@pytest.mark.parametrize("kind", ["longformer", "led"])
@pytest.mark.parametrize("tied", [False, True], ids=["own", "tied"])
def test_it_is_the_layer_of_hugging_face(kind, tied):
    window, T = 4, 48
    layer, x = theirs(kind, window), states(T)
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
        # Theirs takes the softmax in float32 whatever the inputs.
        assert_near(out.transpose(1, 2).flatten(2)[real], expected[real], "output", 2e-6)
