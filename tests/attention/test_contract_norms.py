"""Large norms: float32 is as near the float64 reference as that of full attention is.

Scores of queries and keys of standard deviation 30 reach thousands, so that exponentials leave the
range of float32 unless every sum is taken relative to its largest term.
"""

import functools

import pytest
import torch
from contract import (
    build_small,
    every_mechanism,
    global_masks,
    gradients,
    key_masks,
    qkv,
    reference_copy,
    run_or_skip,
)

from longspan.attention import MECHANISMS

T, D = 100, 64
# Allowed error, relative to that of full attention; the largest of any mechanism is about 7.
FACTOR = 20


def relative_errors(attention, size, **masks):
    """Return |float32 - float64 reference| / |float64 reference| of the output and gradients."""
    results = []
    single, double = attention.float(), reference_copy(attention).double()
    for module, dtype in ((single, torch.float32), (double, torch.float64)):
        q, k, v = (x.to(dtype) for x in qkv(T, D=D, dtype=torch.float32))
        inputs = [x.requires_grad_() for x in (size * q, size * k, v)]
        out = run_or_skip(module, *inputs, **masks)
        results.append([x.double() for x in (out, *gradients(out, inputs, module)[:3])])
    return [(x - y).norm() / y.norm().clamp(min=1e-30) for x, y in zip(*results, strict=True)]


@functools.cache
def errors_of_full_attention(causal, size, kind):
    attention = build_small("full", causal, head_dim=D)
    return relative_errors(attention, size, key_mask=key_masks(T)[kind])


@every_mechanism
@pytest.mark.parametrize(("size", "kind"), [(10, "none"), (30, "holes")])
def test_error_of_large_norms_is_like_that_of_full_attention(name, causal, backend, size, kind):
    attention, key_mask = build_small(name, causal, backend, head_dim=D), key_masks(T)[kind]
    full = errors_of_full_attention(causal, size, kind)
    for global_mask in global_masks(name, T):
        masks = {"key_mask": key_mask, "global_mask": global_mask}
        errors = relative_errors(attention, size, **masks)
        for label, error, allowed in zip(("output", *"qkv"), errors, full, strict=True):
            assert error <= FACTOR * allowed, (label, global_mask is not None, float(error))


@every_mechanism
def test_rows_of_large_norms_are_not_zero(name, causal, backend):
    if MECHANISMS[name].traits.row_sums != "one":
        pytest.skip("a gate or a sink may take the whole weight (trait row_sums)")
    q, k, v = qkv(T, D=D, dtype=torch.float32)
    out = run_or_skip(build_small(name, causal, backend, head_dim=D).float(), 30 * q, 30 * k, v)
    assert out.norm(dim=-1).all()
