"""Recurrences of a matrix state: the engine against its formula, and mechanisms against peers."""

import importlib
import inspect

import pytest
import torch
import torch.nn.functional as F
from contract import HEAD_DIM, HEADS, assert_near, build_small, qkv
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan.attention import Inputs, LayerInput, build, recurrence
from longspan.attention.ops import recurrence as engine
from longspan.attention.ops.recurrence import mix, mix_both_ways
from longspan.errors import InputError, OptionError

T = 150  # two chunks and a part


def draw(T, decay=None, dtype=torch.float64):
    """Return q, k of length one, v, log decays (None, "head" or "channel") and step sizes."""
    q, k, v = qkv(T, E=5)
    g = torch.Generator().manual_seed(1)
    width = {None: 1, "head": 1, "channel": HEAD_DIM}[decay]
    log_decay = -3 * torch.rand(*k.shape[:3], width, generator=g, dtype=torch.float64)
    beta = torch.rand(k.shape[:3], generator=g, dtype=torch.float64)
    tensors = F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, log_decay, beta
    q, k, v, log_decay, beta = (x.to(dtype) for x in tensors)
    return q, k, v, None if decay is None else log_decay, beta


def run_formula(q, k, v, log_decay, beta, delta, state=None):
    """Apply the formula to one token after another; return outputs and the last state."""
    B, H, _, D = k.shape
    state = k.new_zeros(B, H, D, v.shape[3]) if state is None else state
    rows = []
    for t in range(k.shape[2]):
        if log_decay is not None:
            state = log_decay[:, :, t, :, None].exp() * state
        row = v[:, :, t]
        if delta:
            row = row - (state * k[:, :, t, :, None]).sum(2)
        state = state + k[:, :, t, :, None] * (beta[:, :, t, None] * row)[:, :, None]
        rows.append((q[:, :, t, :, None] * state).sum(2))
    return torch.stack(rows, 2), state


every_form = pytest.mark.parametrize("decay", [None, "head", "channel"])
every_rule = pytest.mark.parametrize("delta", [False, True], ids=["sum", "delta"])


@every_form
@every_rule
@pytest.mark.parametrize(
    ("length", "chunk"),
    [*((n, 64) for n in (1, 2, 63, 64, 65, T)), *((T, n) for n in (1, 16, 128))],
)
def test_chunks_equal_the_formula(decay, delta, length, chunk):
    inputs = draw(length, decay)
    out, state = mix(*inputs, delta=delta, chunk=chunk)
    expected, last = run_formula(*inputs, delta)
    assert_near(out, expected, "outputs", 1e-12)
    assert_near(state, last, "state", 1e-12)


@every_form
@every_rule
@pytest.mark.parametrize("piece", [1, 1 << 40], ids=["pieces", "whole"])
def test_gradients_equal_those_of_the_formula(decay, delta, piece, monkeypatch):
    """A piece has a chunk at least: those of 16 tokens are pieces of their own, and a part."""
    monkeypatch.setattr(engine, "PIECE", piece)
    calls, chunks = [], engine._mix_chunks
    monkeypatch.setattr(
        engine, "_mix_chunks", lambda *x, **y: calls.append(x[1].shape[2]) or chunks(*x, **y)
    )
    inputs = [x if x is None else x.requires_grad_() for x in draw(70, decay)]
    leaves = [x for x in inputs if x is not None]
    weight = torch.randn(3, HEADS, 70, 5, dtype=torch.float64)
    out, state = mix(*inputs, delta=delta, chunk=16)
    assert calls == ([16, 16, 16, 16, 6] if piece == 1 else [70])
    expected, last = run_formula(*inputs, delta)
    assert_near(out, expected, "outputs", 1e-12)
    assert_near(state, last, "state", 1e-12)
    got = torch.autograd.grad((out * weight).sum(), leaves)
    expected = torch.autograd.grad((run_formula(*inputs, delta)[0] * weight).sum(), leaves)
    for a, b in zip(got, expected, strict=True):
        assert_near(a, b, "gradient", 1e-11)


@every_form
@every_rule
def test_parts_that_continue_the_state_equal_the_whole(decay, delta):
    inputs, rows, state = draw(T, decay), [], None
    for part in (slice(0, 70), slice(70, 71), slice(71, T)):
        tokens = [x if x is None else x[:, :, part] for x in inputs]
        out, state = mix(*tokens, delta=delta, state=state)
        rows.append(out)
    expected, last = mix(*inputs, delta=delta)
    assert_near(torch.cat(rows, 2), expected, "outputs", 1e-12)
    assert_near(state, last, "state", 1e-12)


@every_form
def test_both_directions_count_a_token_once(decay):
    q, k, v, g, beta = draw(T, decay)
    c = torch.zeros_like(k) if g is None else g.expand_as(k)
    onward, backward = c.cumsum(2), c.flip(2).cumsum(2).flip(2)
    t = torch.arange(T)
    # The decay of a pair is that of the tokens from the earlier one, without it, to the later.
    later = (t[:, None] >= t)[..., None]
    between = torch.where(
        later,
        onward[:, :, :, None] - onward[:, :, None],
        backward[:, :, :, None] - backward[:, :, None],
    )
    weights = torch.einsum("bhtd,bhsd,bhtsd->bhts", q, k, between.exp())
    expected = weights @ (v * beta[..., None])
    assert_near(mix_both_ways(q, k, v, g, beta), expected, "outputs", 1e-11)


@pytest.mark.parametrize("decay", ["head", "channel"])
@every_rule
@pytest.mark.parametrize("largest", [60.0, 1e4, 1e30])
def test_float32_is_exact_under_rare_and_extreme_decays(decay, delta, largest):
    q, k, v, g, beta = draw(T, decay)
    rare = torch.rand(g.shape, generator=torch.Generator().manual_seed(2)) < 0.1
    g = torch.where(rare, -largest, 0.01 * g)
    expected, _ = run_formula(q, k, v, g, beta, delta)
    inputs = [x.float().requires_grad_() for x in (q, k, v, g, beta)]
    out, _ = mix(*inputs, delta=delta)
    assert_near(out.double(), expected, "outputs", 3e-6)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)


@every_rule
@pytest.mark.parametrize("size", [1, 2, 4, 32, 64])
def test_float32_is_exact_in_blocks_of_every_size(size, delta):
    """Decays are those that just fit a block: twice as many tokens exceed its range."""
    q, k, v, g, beta = draw(T, "channel")
    g = (0.1 * torch.rand_like(g) - 1) * engine.RANGE / size
    assert engine._block_size(g[:, :, :128].unflatten(2, (-1, 64))) == size
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    singles = [x.detach().float().requires_grad_() for x in inputs]
    expected, _ = run_formula(*inputs, delta)
    out, _ = mix(*singles, delta=delta)
    assert_near(out.double(), expected, "outputs", 3e-6)
    got = torch.autograd.grad(out.sum(), singles)
    for a, b in zip(got, torch.autograd.grad(expected.sum(), inputs), strict=True):
        assert_near(a.double(), b, "gradient", 1e-5)


def test_decays_that_cannot_be_read_have_blocks_of_one_token():
    """A graph of operators must not depend on values; a chunk of extreme decays cannot."""
    g = torch.full((2, 64, 4), -1e-3)
    assert engine._block_size(g) == 64
    with FakeTensorMode() as fake:
        assert engine._block_size(fake.from_tensor(g)) == 1
    assert torch.func.vmap(lambda x: x + engine._block_size(x))(g).allclose(g + 1)
    assert engine._block_size(torch.full((2, 64, 4), torch.nan)) == 1


@pytest.mark.parametrize("decay", [[0.5], [0.5, 0.0, 0.5], [0.5, 1.1, 0.5], [0.5, -1.0, 0.5]])
def test_decays_out_of_range_are_refused(decay):
    with pytest.raises(OptionError, match="3 numbers above 0 and at most 1"):
        build("retention", heads=3, decay=decay)


@pytest.mark.parametrize("name", ["ssd", "gated_delta"])
def test_decays_are_scaled_at_first(name):
    """With the same draws, every log decay is a factor of that without the option."""
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    decays = []
    for scale in (1.0, 0.25):
        torch.manual_seed(1)
        attention = build(name, heads=2, head_dim=4, width=8, decay_scale=scale)
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        source = LayerInput(states=x, query=lambda p: p, key=lambda p: p)
        decays.append(attention.gates(Inputs(q, q, q, layer_input=source))[0])
    torch.testing.assert_close(decays[1], 0.25 * decays[0])
    with pytest.raises(OptionError, match=f"{name}: option decay_scale must be > 0"):
        build(name, heads=2, head_dim=4, width=8, decay_scale=0.0)


def test_temperature_must_be_positive():
    with pytest.raises(OptionError, match="temperature must be > 0, got 0"):
        build("gated_linear", heads=2, head_dim=4, temperature=0.0)


@pytest.mark.parametrize("name", ["delta", "gated_delta", "kimi_delta"])
def test_a_key_that_comes_again_has_its_last_value(name):
    attention = build_small(name, causal=True)
    k = F.one_hot(torch.tensor([0, 1, 0, 1]), HEAD_DIM).double().expand(3, HEADS, 4, -1)
    v = qkv(4)[2]
    attention.gates = lambda x: (None, torch.ones(k.shape[:3], dtype=k.dtype))
    out = attention(k, k, v) * HEAD_DIM**0.5
    assert_near(out, v, "values", 1e-5)


@every_form
@every_rule
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_function_leaves_padding_out(decay, delta, causal):
    inputs, mask = draw(40, decay), torch.rand(3, 40, generator=torch.Generator()) < 0.6
    hidden = ~mask[:, None, :, None]
    padded = [
        x if x is None else x.masked_fill(hidden if x.dim() == 4 else hidden[..., 0], torch.nan)
        for x in inputs
    ]
    out, _ = recurrence(*padded, delta=delta, causal=causal, mask=mask)
    assert (out.masked_select(hidden) == 0).all()
    for row in range(3):
        alone = [x if x is None else x[row : row + 1, :, mask[row]] for x in inputs]
        expected, _ = recurrence(*alone, delta=delta, causal=causal)
        assert_near(out[row, :, mask[row]], expected[0], f"row {row}")


@every_form
@every_rule
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_stay_in_float32_under_autocast(decay, delta, causal, dtype):
    """In half precision they would round, and the decays of a block of channels overflow."""
    inputs = draw(T, decay, torch.float32)
    plain, _ = recurrence(*inputs, delta=delta, causal=causal, chunk=64)
    with torch.autocast("cpu", dtype=dtype):
        out, _ = recurrence(*inputs, delta=delta, causal=causal, chunk=64)
    assert_near(out, plain, "outputs under autocast", 1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log_decay": torch.full((3, 3, 9, 1), 0.1)}, "log_decay must be at most 0.*got 0.1"),
        ({"log_decay": torch.full((3, 3, 9, 1), torch.nan)}, "log_decay must be at most 0.*nan"),
        ({"log_decay": torch.zeros(3, 3, 9)}, r"must be \(3, 3, 9, 1\) or \(3, 3, 9, 8\), got"),
        ({"log_decay": torch.zeros(3, 3, 9, 1).long()}, "log_decay must be floating"),
        ({"beta": torch.zeros(3, 3, 8)}, r"beta must be \(3, 3, 9\), got \(3, 3, 8\)"),
        ({"state": torch.zeros(3, 3, 8, 8)}, r"state must be \(3, 3, 8, 5\)"),
        ({"state": torch.zeros(3, 3, 8, 5), "causal": False}, "state requires causal=True"),
        ({"chunk": 0}, "chunk must be a power of two, got 0"),
        ({"chunk": 48}, "chunk must be a power of two, got 48"),
        ({"mask": torch.ones(3, 9)}, "mask must be boolean"),
        ({"k": torch.zeros(3, 1, 9, 8)}, "q and k must have one shape"),
    ],
)
def test_gates_that_do_not_fit_are_refused(changes, reason):
    q, k, v = qkv(9, E=5, dtype=torch.float32)
    inputs = {"q": q, "k": k, "v": v, **changes}
    if "k" in changes:
        inputs["v"] = v[:, :1]
    with pytest.raises(InputError, match=reason):
        inspect.unwrap(recurrence)(**inputs)


def transposed(*tensors):
    """Exchange heads and tokens, as transformers has them."""
    return [x.transpose(1, 2) for x in tensors]


def peer(name):
    """Return a module of transformers."""
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def layer_states(width=HEADS * HEAD_DIM):
    """Return a layer input for T tokens."""
    states = torch.randn(3, T, width, generator=torch.Generator().manual_seed(4))
    return states, LayerInput(states, lambda p: p, lambda p: p)


def test_gated_delta_equals_qwen3_next():
    attention = build("gated_delta", heads=HEADS, head_dim=HEAD_DIM, causal=True)
    q, k, v = qkv(T, dtype=torch.float32)
    states, source = layer_states()
    with torch.no_grad():
        beta = (states @ attention.step_size.weight.T).sigmoid()
        forget = states @ attention.forget.weight.T
        g = -attention.log_rate.exp() * F.softplus(forget + attention.forget_bias)
        expected, _ = peer("qwen3_next").torch_chunk_gated_delta_rule(
            *transposed(q, k, v), g, beta, use_qk_l2norm_in_kernel=True
        )
        out = attention(q, k, v, layer_input=source)
    assert_near(out, expected.transpose(1, 2), "qwen3_next", 1e-5)


def test_kimi_delta_equals_kimi_linear():
    module = peer("kimi_linear")
    config = module.KimiLinearConfig(
        hidden_size=HEADS * HEAD_DIM, linear_num_heads=HEADS, linear_head_dim=HEAD_DIM
    )
    attention = build("kimi_delta", heads=HEADS, head_dim=HEAD_DIM, causal=True)
    gate = module.KimiLinearForgetGate(config)
    with torch.no_grad():
        gate.f_a_proj.weight.copy_(attention.forget[0].weight)
        gate.f_b_proj.weight.copy_(attention.forget[1].weight)
        gate.dt_bias.copy_(attention.forget_bias)
        gate.A_log.copy_(attention.log_rate.view(1, 1, -1, 1))
        q, k, v = qkv(T, dtype=torch.float32)
        states, source = layer_states()
        beta = (states @ attention.step_size.weight.T).sigmoid()
        expected, _ = module.recurrent_kimi_delta_attention(
            *transposed(q, k, v), gate(states), beta, None, False, use_qk_l2norm_in_kernel=True
        )
        out = attention(q, k, v, layer_input=source)
    assert_near(out, expected.transpose(1, 2), "kimi_linear", 1e-5)


def test_ssd_equals_mamba2():
    attention = build("ssd", heads=HEADS, head_dim=HEAD_DIM, causal=True)
    q, k, v = qkv(T, dtype=torch.float32)
    states, source = layer_states()
    with torch.no_grad():
        steps = states @ attention.step_size.weight.T
        x, B, C = transposed(v, k, q)
        expected = peer("mamba2").mamba2_chunk_scan(
            x,
            steps,
            -attention.log_rate.exp(),
            B,
            C,
            chunk_size=32,
            dt_bias=attention.step_bias,
            dt_softplus=True,
        )
        out = attention(q, k, v, layer_input=source, scale=1.0)
    expected = expected[0] if isinstance(expected, tuple) else expected
    assert_near(out, expected.transpose(1, 2), "mamba2", 1e-5)


def test_retention_equals_the_lightning_attention_of_minimax():
    module = peer("minimax")
    config = module.MiniMaxConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        num_hidden_layers=4,
        block_size=16,
    )
    layer = module.MiniMaxLightningAttention(config, layer_idx=1)
    layer.norm = layer.out_proj = torch.nn.Identity()
    layer.output_gate.weight.data.zero_()  # a sigmoid of one half
    decay = (-layer.slope_rate.flatten()).exp().tolist()
    attention = build("retention", heads=HEADS, decay=decay, causal=True)
    states, _ = layer_states()
    with torch.no_grad():
        heads = F.silu(layer.qkv_proj(states)).view(3, T, HEADS, 3 * HEAD_DIM).transpose(1, 2)
        q, k, v = heads.split(HEAD_DIM, -1)
        expected = layer(states, None, None)[0]
        out = attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2)
    assert_near(out, 2 * expected, "minimax", 2e-5)


def test_retention_has_the_published_rates():
    attention = build("retention", heads=2)
    k, v = torch.ones(1, 2, 2, 1), torch.tensor([1.0, 0.0])[None, None, :, None].expand(1, 2, 2, 1)
    out = attention(k, k, v)[0, :, 1, 0]
    assert_near(out, torch.tensor([1 - 2.0**-5, 1 - 2.0**-6]), "rates", 1e-6)
