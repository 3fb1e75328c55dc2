"""Linear recurrent unit: the published recurrence, its initial values, long and extreme inputs."""

import pytest
import torch
from contract import (
    assert_equals_reference,
    assert_near,
    build_small,
    full_and_causal,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_in_new_process,
    weights_of,
)

from longspan import build


def impulse_response(attention, length, direction=0):
    """Return Re(sum_n c_n gamma_n lambda_n^d) for d = 0 ... length - 1, (H, length)."""
    lam = torch.exp(torch.complex(-attention.nu.exp(), attention.theta.exp()))
    c = torch.complex(*attention.c[direction]) * attention.log_gamma.exp()
    return (c[..., None] * lam[..., None] ** torch.arange(length)).sum(1).real


@full_and_causal
def test_long_inputs_equal_the_reference(causal):
    attention = build_small("lru", causal)
    for mask in key_masks(200, B=2).values():
        assert_equals_reference(attention, qkv(200, B=2), "200 tokens", mask=mask)


@full_and_causal
def test_weights_are_the_impulse_response(causal):
    attention, (q, k, _) = build_small("lru", causal), qkv(150, B=1)
    weights = weights_of(attention, q, k)[0]
    forward = impulse_response(attention, 150)
    first = forward[:, 0] + attention.d
    if not causal:
        backward = impulse_response(attention, 150, 1)
        first = first + backward[:, 0]
        assert_near(weights[:, 0, 1:], backward[:, 1:], "first row")
    assert_near(weights[:, 1:, 0], forward[:, 1:], "first column")
    assert_near(weights[:, 70, 70], first, "diagonal")


def test_dense_unit_of_the_paper_is_two_heads_for_each_number():
    """Transcribe x_t = lambda x_{t-1} + gamma B u_t, y_t = Re(C x_t), with complex B and C."""
    torch.manual_seed(1)
    n, width, T = 3, 5, 90
    B, C = (torch.randn(x, dtype=torch.complex128) for x in ((n, width), (width, n)))
    attention = build("lru", heads=2 * n, states=1, causal=True).double()
    first, second = slice(0, n), slice(n, 2 * n)
    for name in ("nu", "theta", "log_gamma"):
        getattr(attention, name).data[second] = getattr(attention, name).data[first]
    attention.d.data.zero_()
    # Heads return Re(x) and Im(x) of the states of both parts of B u.
    attention.c.data[0, :, :, 0] = torch.tensor([[1.0] * n + [0.0] * n, [0.0] * n + [-1.0] * n])
    lam = torch.exp(torch.complex(-attention.nu.exp(), attention.theta.exp()))[first, 0]
    gamma = attention.log_gamma.exp()[first, 0]
    u, x, rows = torch.randn(T, width, dtype=torch.float64), torch.zeros(n, dtype=B.dtype), []
    for t in range(T):
        x = lam * x + gamma * (B @ u[t].to(B.dtype))
        rows.append((C @ x).real)
    projected = torch.stack([(u @ part.T).T for part in (B.real, B.imag)], -1)  # n T 2
    v = torch.cat([projected, projected])[None]
    real, imaginary = attention(v, v, v)[0].split(n)
    x = torch.complex(real[..., 0] - imaginary[..., 1], real[..., 1] + imaginary[..., 0])
    assert_near((C @ x).real.T, torch.stack(rows), "output")


def test_initial_values_are_those_of_the_ring():
    torch.manual_seed(0)
    attention = build("lru", heads=50, states=40, r_min=0.4, r_max=0.8)
    size, phase = torch.exp(-attention.nu.exp()), attention.theta.exp()
    assert 0.4 <= size.min() < 0.42 < 0.78 < size.max() <= 0.8
    assert (size.square().mean() - (0.4**2 + 0.8**2) / 2).abs() < 0.02, "not uniform by area"
    assert 0 < phase.min() < 0.1 < 6.2 < phase.max() < 6.2832
    assert_near(attention.log_gamma.exp(), (1 - size**2).sqrt(), "gamma", 1e-5)


@pytest.mark.parametrize("nu", [-30.0, 0.0, 8.0])
@pytest.mark.parametrize("theta", [-30.0, 3.0])
def test_any_parameter_is_stable(nu, theta):
    attention = build_small("lru", True).float()
    attention.nu.data.fill_(nu)
    attention.theta.data.fill_(theta)
    inputs = [x.requires_grad_() for x in qkv(3000, B=1, dtype=torch.float32)]
    out = attention(*inputs)
    assert out.isfinite().all()
    assert all(x.isfinite().all() for x in gradients(out, inputs, attention))


@full_and_causal
def test_error_of_float32_does_not_grow_with_the_length(causal):
    """Phases of 2,000 tokens reach thousands of radians, beyond the precision of float32."""
    torch.manual_seed(2)
    attention = build_small("lru", causal, states=16, r_min=0.9, r_max=0.9999).float()
    inputs = qkv(2000, B=1, dtype=torch.float32)
    exact = reference_copy(attention).double()(*(x.double() for x in inputs))
    error = (attention(*inputs) - exact).abs().amax((0, 1, 3)) / exact.abs().max()
    assert error.max() < 5e-7
    assert error[-500:].max() < 5 * error[:500].max()


@pytest.mark.slow
def test_compiled_calls_take_lengths_below_a_chunk():
    run_in_new_process(
        """
import torch
from contract import build_small, qkv
attention = build_small("lru", True)
compiled = torch.compile(attention, backend="eager", fullgraph=True)
for length in (40, 31):
    torch.testing.assert_close(compiled(*qkv(length)), attention(*qkv(length)))
"""
    )
