"""Compiled models of transformers without mask and cache: traced positions have no values."""

import pytest
import torch
from tiny_transformers import CAUSAL, MODELS

import longspan
import tiny
from longspan.errors import InputError


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


@torch.no_grad()
def refuse_compiled():
    """Return what a compiled model says whose mask and modules contradict each other."""
    cls, config = MODELS["llama"]
    config._attn_implementation = longspan.register_attention("local", window=3)
    model = cls(config).eval()
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    refusals = []
    for mask in (None, torch.ones(2, 20, dtype=torch.long)):
        torch.compiler.reset()
        with pytest.raises(InputError) as refusal:
            torch.compile(model, backend="eager")(
                torch.ones(2, 20, dtype=torch.long), attention_mask=mask, use_cache=False
            )
        refusals.append(str(refusal.value))
    return refusals


def test_compiled_models_compare_mask_and_call():
    for refusal in tiny.call_elsewhere(refuse_compiled):
        assert "the mask is causal, and the module's is_causal says bidirectional" in refusal


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(x, marks=pytest.mark.slow) for x in sorted(MODELS) if x != "llama")],
)
def test_compiled_models_equal_eager_ones_and_refuse_packed_sequences(name):
    assert tiny.call_elsewhere(compile_model, name) < 1e-4
