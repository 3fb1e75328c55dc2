"""Compiled models of transformers without mask and cache: traced positions have no values."""

import pytest
import torch
from tiny_transformers import CAUSAL, MODELS

import longspan
import tiny


@torch.no_grad()
def compile_model(name):
    """Return the error of a compiled model, which must refuse packed sequences."""
    cls, config = MODELS[name]
    config._attn_implementation = longspan.register_attention("local", window=3)
    torch.manual_seed(0)
    model = cls(config).eval()
    ids, arguments = torch.randint(3, 40, (2, 20)), {"use_cache": False} if name in CAUSAL else {}
    # This backend captures what "eager" does, and the backward pass.
    compiled = torch.compile(model, backend="aot_eager")
    difference = compiled(ids, **arguments)[0] - model(ids, **arguments)[0]
    if name in CAUSAL:
        positions = torch.cat([torch.arange(12), torch.arange(8)])[None]
        with pytest.raises(RuntimeError) as refusal:
            compiled(ids, position_ids=positions, **arguments)
        assert "supports no packed sequences" in str(refusal.value)
    return float(difference.abs().max())


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(x, marks=pytest.mark.slow) for x in sorted(MODELS) if x != "llama")],
)
def test_compiled_models_equal_eager_ones_and_refuse_packed_sequences(name):
    assert tiny.call_elsewhere(compile_model, name) < 1e-4
