"""Sinks: first tokens that every query attends to, and a learned logit in the denominator."""

import types

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    all_derivatives,
    assert_derivatives_near,
    assert_equals_reference,
    assert_near,
    check_contract,
    check_higher_derivatives,
    full_and_causal,
    gradients,
    qkv,
    reference_copy,
    run_in_new_process,
    run_steps,
)
from test_contract_traits import check_row_sums
from transformers.models.gpt_oss import modeling_gpt_oss

from longspan import build
from longspan.attention import MECHANISMS
from longspan.attention.patterns import Causal, FirstKeys, Window
from longspan.attention.weights import compute_weights
from longspan.errors import InputError, OptionError, UnknownNameError

T = 70
LOGITS = torch.tensor([-1.5, 0.3, 2.0], dtype=torch.float64)
TOKENS = {"sink_tokens": 3}
WITH_TOKENS = {
    "local": {"window": 5},
    "dilated": {"window": 3, "dilation": [1, 2, 3]},
    "disjoint": {"block": 8},
    "blockwise": {"block": 8},
    "longformer": {"window": 5, "first_global": 2},
}
VARIANTS = [
    ("full", {}),
    *((name, {**options, **TOKENS}) for name, options in WITH_TOKENS.items()),
    ("blockwise", {"block": 8, "neighbors": [1, 1], "circle": False}),
    ("strided_local", {"block": 6}),
    ("sparse_transformer", {"kind": "strided", "stride": 8}),
    ("sparse_transformer", {"kind": "fixed", "stride": 8, "head_patterns": "alternating"}),
]
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


def make(name, causal=False, backend="torch", dtype=torch.float64, logits=LOGITS, **options):
    """Build a mechanism, with logits in its denominators unless they are None."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 128}
    options = {"sink_logit": logits is not None, **sizes, **options}
    attention = build(name, causal=causal, backend=backend, **options)
    if logits is not None:
        attention.sink_logits.data = logits.clone()
    return attention.to(dtype)


def published(q, k, v, mask, logits, groups=1):
    """Compute attention by gpt-oss of transformers; the mask is True at allowed pairs."""
    module = types.SimpleNamespace(sinks=logits, num_key_value_groups=groups, training=False)
    bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -1e300)
    run = modeling_gpt_oss.eager_attention_forward
    return run(module, q, k, v, bias, q.shape[3] ** -0.5)[0].transpose(1, 2)


@every_variant
@full_and_causal
def test_variants_obey_the_contract(name, options, causal):
    if causal and not MECHANISMS[name].traits.causal:
        pytest.skip("no causal form")
    attention = make(name, causal, **options)
    assert attention.traits.row_sums == "at most one"
    check_contract(attention, lengths=(1, 9, 33))
    check_row_sums(attention)


def test_blocks_on_a_circle_have_logits():
    attention = make("blockwise", block=8, neighbors=[1, 1])
    for length in (1, 9, 33):
        assert_equals_reference(attention, qkv(length), f"T={length}")


@pytest.mark.parametrize(("name", "options"), VARIANTS[1:6])
@full_and_causal
def test_first_tokens_alone_obey_the_contract(name, options, causal):
    check_contract(make(name, causal, logits=None, **options), lengths=(1, 2, 33))


@full_and_causal
@pytest.mark.parametrize("name", ["full", "local"])
@pytest.mark.parametrize("length", [9, 80])
def test_equals_gpt_oss_of_transformers(name, causal, length):
    options = {"window": 40} if name == "local" else {}
    attention, inputs = make(name, causal, **options), [x.requires_grad_() for x in qkv(length)]
    pattern = Window(40, 0 if causal else 40) if name == "local" else Window(length)
    mask = (pattern & Causal() if causal else pattern).dense(length)[None]
    expected = published(*inputs, mask, attention.sink_logits)
    out = attention(*inputs)
    assert_near(out, expected, "output")
    assert_near(gradients(out, inputs, attention), gradients(expected, inputs, attention), "grad")


@torch.no_grad()
def test_grouped_heads_equal_gpt_oss_of_transformers():
    q, k, v = qkv(40)
    k, v = k[:, :1], v[:, :1]
    expected = published(q, k, v, torch.ones(1, 40, 40, dtype=torch.bool), LOGITS, HEADS)
    assert_near(make("full")(q, k, v), expected, "output")


@full_and_causal
@pytest.mark.parametrize("name", ["local", "dilated", "sparse_transformer"])
def test_pieces_have_the_derivatives_of_the_reference(name, causal):
    options = {"sparse_transformer": {"kind": "fixed", "stride": 40}}
    attention = make(name, causal, **options.get(name, {"window": 40, **TOKENS}))
    mask = torch.arange(100) < torch.tensor([[100], [81]])
    found = []
    for module in (attention, reference_copy(attention)):
        inputs = [x.requires_grad_() for x in qkv(100, B=2)]
        out = module(*inputs, mask)
        found.append((out, *all_derivatives(out, [*inputs, module.sink_logits])))
    assert_derivatives_near(*found)
    check_higher_derivatives(attention, None)


@full_and_causal
@pytest.mark.parametrize("name", list(WITH_TOKENS)[:4])
def test_queries_attend_to_the_first_keys_and_their_own(name, causal):
    attention, plain = (
        make(name, causal, logits=None, **WITH_TOKENS[name], sink_tokens=n) for n in (3, 0)
    )
    first = (torch.arange(T) < 3).expand(T, T)
    expected = plain.pattern.dense(T) | (first.tril() if causal else first)
    assert torch.equal(attention.pattern.dense(T), expected)
    counts = tuple(expected.sum((1, 2)).tolist())
    assert attention.pairs(T) == (counts if len(counts) > 1 else counts[0])
    # First tokens attend as before: only their keys are seen by all.
    rows = slice(0, 3)
    if name != "dilated":
        inputs = qkv(T)
        assert_near(attention(*inputs)[:, :, rows], plain(*inputs)[:, :, rows], "first tokens")


def test_first_tokens_anchor_a_document():
    for name, options in WITH_TOKENS.items():
        traits = make(name, **options, **TOKENS).traits
        assert traits.anchored, name
        assert not traits.packed, name


def test_causal_first_tokens_are_global():
    inputs = qkv(T)
    sinks, global_ = (
        make("longformer", True, logits=None, window=5, **option)
        for option in ({"sink_tokens": 4}, {"first_global": 4})
    )
    assert_near(sinks(*inputs), global_(*inputs), "output")


def test_first_tokens_may_be_global_too():
    attention = make("longformer", logits=None, window=5, first_global=2, sink_tokens=4)
    mask = attention.pattern.dense(T)[0]
    assert mask[:2].all()
    assert mask[:, :4].all()
    assert not mask[2:4].all(1).any()
    assert attention.pattern.layout.full_rows == (0, 1)


@pytest.mark.parametrize("name", ["local", "disjoint"])
def test_state_is_the_window_and_the_first_tokens(name):
    attention, sizes = make(name, True, **WITH_TOKENS[name], **TOKENS), []
    inputs, cache = qkv(64), None
    out, cache = run_steps(attention, inputs, (1,) * 64)
    assert_near(out, attention(*inputs), "steps")
    for _ in range(30):
        _, cache = attention.step(*(x[:, :, :1] for x in inputs), cache)
        sizes.append(cache.state["k"].shape[2])
    assert max(sizes) <= 8 + 3
    assert_near(cache.state["k"][:, :, :3], inputs[1][:, :, :3], "first keys stay")


def test_padded_first_tokens_are_no_sinks():
    attention = make("local", True, logits=None, window=5, **TOKENS)
    mask = (torch.arange(T) >= 3).expand(3, -1)
    inputs = [x.masked_fill(~mask[:, None, :, None], torch.nan) for x in qkv(T)]
    plain = make("local", True, logits=None, window=5)
    assert_near(attention(*inputs, mask), plain(*inputs, mask), "output")


@every_variant
def test_extreme_logits(name, options):
    none, inputs = make(name, logits=None, **options), [x.requires_grad_() for x in qkv(33)]
    mask = (torch.arange(33) < 20).expand(3, -1).clone()
    mask[1] = False
    for value, expected in (
        (-1e4, none(*inputs, mask)),
        (1e4, torch.zeros((), dtype=torch.float64)),
    ):
        attention = make(name, logits=torch.full((HEADS,), value), **options)
        for module in (attention, reference_copy(attention)):
            out = module(*inputs, mask)
            assert_near(out, expected.expand_as(out), f"logit {value}")
            assert not out[1].any()
            assert all(x.isfinite().all() for x in gradients(out, inputs, module))


@pytest.mark.parametrize("name", ["full", "local"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_large_logits(name, dtype):
    """In bfloat16 a logit of 24.7 would be rounded by 0.05, and weights change by 2.5 percent."""
    options = {} if name == "full" else {"window": 40}
    attention = make(name, dtype=dtype, **options)
    attention.sink_logits.data = logits = torch.full((HEADS,), 24.7)
    q, k, v = (x.to(dtype) for x in qkv(80, D=16))
    q, k = (F.pad(x[..., 1:] / 10, (1, 0), value=9.0) for x in (q, k))
    expected = make(name, logits=logits.double(), backend="reference", **options)
    expected = expected(*(x.double() for x in (q, k, v)))
    error = (attention(q, k, v).double() - expected).norm() / expected.norm()
    assert error < 0.01


@torch.no_grad()
@pytest.mark.parametrize("logit", [-6e4, 6e4])
def test_extreme_logits_of_half_precision_are_finite(logit):
    inputs = qkv(80, D=64, dtype=torch.float16)
    for name, options in (("full", {}), ("local", {"window": 40})):
        logits = torch.full((HEADS,), logit)
        out = make(name, dtype=torch.float16, logits=logits, **options)(*inputs)
        plain = make(name, dtype=torch.float16, logits=None, **options)(*inputs)
        assert_near(out, plain if logit < 0 else torch.zeros_like(out), name, 2e-3)


@torch.no_grad()
def test_weights_leave_the_share_of_the_sink():
    (q, k, _), attention = qkv(20), make("full")
    weights = compute_weights(attention, q, k)
    scores = F.pad(q @ k.mT * HEAD_DIM**-0.5, (0, 1))
    scores[..., -1] = LOGITS[:, None]
    assert_near(weights, scores.softmax(-1)[..., :-1], "weights")
    call = compute_weights(make("full", logits=None), q, k, sink_logits=LOGITS)
    assert_near(call, weights, "weights of a call")


@every_variant
def test_logits_of_a_call_equal_those_of_the_mechanism(name, options):
    one, other = make(name, **options), make(name, logits=None, **options)
    inputs, logits = qkv(40), LOGITS.clone().requires_grad_()
    out, expected = other(*inputs, sink_logits=logits), one(*inputs)
    assert_near(out, expected, "output")
    found, parameter = (
        torch.autograd.grad(x.square().sum(), y)
        for x, y in ((out, logits), (expected, one.sink_logits))
    )
    assert_near(found, parameter, "gradient")
    assert found[0].abs().min() > 1e-3


def test_logits_of_a_step_and_of_packed_documents():
    attention, inputs = make("local", True, logits=None, window=5), qkv(40)
    out, _ = run_steps(attention, inputs, (30, 10), sink_logits=lambda _: LOGITS)
    assert_near(out, attention(*inputs, sink_logits=LOGITS), "steps")
    rows, bounds = [x[0].transpose(0, 1) for x in inputs], torch.tensor([0, 7, 40])
    for options in ({}, TOKENS):
        one = make("local", True, logits=None, window=5, **options)
        packed = one.packed(*rows, bounds, sink_logits=LOGITS).transpose(0, 1)
        for piece in (slice(0, 7), slice(7, 40)):
            document = one(*(x[:1, :, piece] for x in inputs), sink_logits=LOGITS)[0]
            assert_near(packed[:, piece], document, f"document {piece}, {options}")


def test_rollback_repeats_the_logits():
    attention, inputs = make("local", True, logits=None, window=5, **TOKENS), qkv(12)
    first = [x[:, :, :8] for x in inputs]
    _, cache = attention.step(*first, record=True, sink_logits=LOGITS)
    out, _ = attention.step(*(x[:, :, 6:] for x in inputs), cache.rollback(2), sink_logits=LOGITS)
    assert_near(out, attention(*inputs, sink_logits=LOGITS)[:, :, 6:], "output")


@pytest.mark.parametrize("name", ["full", "local"])
def test_dropped_weights_are_those_of_keys(name):
    """The expectation of the rows stays: weights of keys are dropped after the softmax."""
    options = {} if name == "full" else {"window": 5}
    attention = make(name, weight_dropout=0.5, **options).train()
    q, k, _ = (x[:1] for x in qkv(12))
    identity = torch.eye(12).double().expand(1, HEADS, 12, 12)
    torch.manual_seed(0)
    weights = attention(*(x.expand(400, -1, -1, -1) for x in (q, k, identity)))
    expected = reference_copy(attention).eval()(q, k, identity)
    assert_near(weights.mean(0), expected[0], "mean", 0.1)
    kept = torch.where(weights > 0, weights, 2 * expected)
    assert_near(kept, 2 * expected.expand_as(kept), "weights")


def test_compiled_rows_equal_the_formula():
    run_in_new_process(
        """
import torch
from test_sinks import TOKENS, make, qkv, reference_copy
for name, options in (("full", {}), ("local", {"window": 40, **TOKENS})):
    attention = make(name, True, **options)
    out = torch.compile(attention, backend="eager", fullgraph=True)(*qkv(80))
    torch.testing.assert_close(out, reference_copy(attention)(*qkv(80)))
"""
    )


def test_mechanisms_without_sinks_refuse_them():
    with pytest.raises(UnknownNameError, match="no option of 'linear' called 'sink_logit'"):
        build("linear", sink_logit=True)
    with pytest.raises(UnknownNameError, match="no option of 'full' called 'sink_tokens'"):
        build("full", sink_tokens=4)
    for name in ("linear", "bigbird"):
        attention = build(name, heads=HEADS, max_length=64).double()
        with pytest.raises(InputError, match=r"sink_logits is not supported \(traits.sink_logits"):
            attention(*qkv(9), sink_logits=LOGITS)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (LOGITS[:2], r"must have shape \(3,\), one per head, got \(2,\)"),
        (LOGITS.long(), "must be floating"),
        (2.0, "sink_logits must be a tensor"),
    ],
)
def test_invalid_logits_are_refused(logits, message):
    attention = make("full", logits=None)
    with pytest.raises(InputError, match=message):
        attention.forward.__wrapped__(attention, *qkv(9), sink_logits=logits)


def test_two_sets_of_logits_are_refused():
    with pytest.raises(InputError, match="logits of its own; call without sink_logits"):
        make("local", window=5)(*qkv(9), sink_logits=LOGITS)


@pytest.mark.parametrize("backend", ["diagonals", "flex", "varlen"])
def test_kernels_refuse_sinks_by_name(backend):
    inputs = qkv(33, D=16, dtype=torch.float32)
    with torch.no_grad(), pytest.raises(InputError, match="a sink logit in the denominator"):
        make("local", backend=backend, window=5)(*inputs)
    if backend != "flex":
        with pytest.raises(InputError, match="sink tokens are no window"):
            make("local", backend=backend, logits=None, window=5, **TOKENS)(*qkv(33))


def test_dense_kernel_of_short_inputs_has_sinks():
    attention = make("local", True, "dense", window=40, **TOKENS)
    assert_near(attention(*qkv(60)), reference_copy(attention)(*qkv(60)), "output")


def test_pattern_of_first_keys():
    with pytest.raises(OptionError, match="must be >= 1, got 0"):
        FirstKeys(0)
    pattern = Window(2, 0) | FirstKeys(2)
    assert pattern.earliest(50) == 48
    assert pattern.layout.globals == (0, 1)
    assert pattern.layout.full_rows == ()
    assert pattern.pairs(10) == int(pattern.dense(10).sum())
