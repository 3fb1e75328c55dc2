"""Forgetting attention: products of gates, blocks of sums, long sums, layer input, memory."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    all_derivatives,
    assert_derivatives_near,
    assert_equals_reference,
    assert_near,
    full_and_causal,
    key_masks,
    qkv,
    reference_copy,
    run_steps,
    weights_of,
)

from longspan import build
from longspan.attention.mechanisms import forgetting as module

LONG = 300  # three blocks, of which the last is not full


def forgetting(causal=True, heads=HEADS, head_dim=HEAD_DIM, spread=20.0):
    """Build with gates that differ between tokens."""
    torch.manual_seed(0)
    attention = build("forgetting", causal=causal, heads=heads, head_dim=head_dim).double()
    with torch.no_grad():
        attention.gate.weight *= spread
    return attention


def gates_of(attention, states):
    """Return the gates of all tokens and heads (B, H, T)."""
    return attention.gate(states).sigmoid().transpose(1, 2)


@full_and_causal
def test_gates_between_two_tokens_multiply_their_weight(causal):
    """The paper's form, without logarithms."""
    attention, (q, k, _), T = forgetting(causal), qkv(12), 12
    f = gates_of(attention, k.transpose(1, 2).flatten(2))
    weights = (q @ k.mT / HEAD_DIM**0.5).exp()
    for t in range(T):
        for s in range(T):
            between = f[:, :, min(s, t) + 1 : max(s, t) + 1].prod(-1)
            weights[:, :, t, s] *= between * (s <= t or not causal)
    expected = weights / weights.sum(-1, keepdim=True)
    assert_near(weights_of(attention, q, k), expected, "weights")


@full_and_causal
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "recomputed"])
def test_blocks_equal_the_reference(causal, kind, is_fused, monkeypatch):
    if not is_fused:
        monkeypatch.setattr(module, "has_fused_kernel", lambda *_: False)
    attention, mask = forgetting(causal), key_masks(LONG)[kind]
    assert_equals_reference(attention, qkv(LONG), kind, mask=mask)
    assert_near(
        attention(*qkv(LONG, E=13), mask), reference_copy(attention)(*qkv(LONG, E=13), mask), kind
    )


@full_and_causal
def test_blocks_have_second_derivatives(causal):
    attention, mask = forgetting(causal), key_masks(LONG)["holes"]
    both = []
    for each in (attention, reference_copy(attention)):
        inputs = [*(x.requires_grad_() for x in qkv(LONG)), *each.parameters()]
        out = each(*inputs[:3], mask)
        both.append((out, *all_derivatives(out, inputs)))
    assert_derivatives_near(*both)


def test_a_long_step_in_the_middle_equals_forward():
    attention, inputs, mask = forgetting(), qkv(LONG), key_masks(LONG)["holes"]
    out, _ = run_steps(attention, inputs, (37, 1, 200, 1, 61), mask)
    assert_near(out, attention(*inputs, mask), "steps")


@full_and_causal
@pytest.mark.parametrize("bias", [4.0, 0.0, -3.0])
def test_error_does_not_grow_with_the_sum_of_the_gates(causal, bias):
    """At 2,048 tokens of gates of 0.05, one sum of float32 would be off by 5e-4."""
    T, heads, width = 2048, 1, 64
    attention = forgetting(causal, heads, width, spread=5.0).float()
    attention.gate.bias.data.fill_(bias)
    inputs = qkv(T, B=1, H=heads, D=width, dtype=torch.float32)
    exact = reference_copy(attention).double()
    with torch.no_grad():
        expected = exact(*(x.double() for x in inputs))
        assert_near(attention(*inputs).double(), expected, "float32", 1e-4)
        halves = [x.bfloat16() for x in inputs]
        expected = exact(*(x.double() for x in halves))
        assert_near(attention(*halves).double(), expected, "bfloat16", 1e-2)


@full_and_causal
def test_closed_gates_leave_the_token_itself(causal):
    attention, inputs = forgetting(causal), [x.requires_grad_() for x in qkv(LONG)]
    attention.gate.bias.data.fill_(-1e5)
    out = attention(*inputs)
    assert_near(out, inputs[2], "output")
    grads = torch.autograd.grad(out.sum(), [*inputs, *attention.parameters()])
    assert all(x.isfinite().all() for x in grads)


@full_and_causal
def test_open_gates_leave_a_softmax(causal):
    attention = forgetting(causal)
    attention.gate.bias.data.fill_(1e5)
    full = build("full", causal=causal)
    assert_near(attention(*qkv(LONG)), full(*qkv(LONG)), "output")


def test_initial_gates_halve_the_weights():
    attention = build("forgetting", heads=HEADS, head_dim=HEAD_DIM)
    gates = gates_of(attention.double(), torch.randn(3, 50, HEADS * HEAD_DIM).double())
    assert (gates - 0.5).abs().max() < 0.15
