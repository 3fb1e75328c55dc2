"""Compiled models of transformers without mask and cache: traced positions have no values."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_transformers import MODELS

CODE = """
import json, sys, torch
from tiny_transformers import CAUSAL, MODELS
import longspan
name, found = sys.argv[1], {}
options = longspan.register_attention("local", window=3)
cls, config = MODELS[name]
config._attn_implementation = options
torch.manual_seed(0)
model = cls(config).eval()
ids, arguments = torch.randint(3, 40, (2, 20)), {"use_cache": False} if name in CAUSAL else {}
with torch.no_grad():
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend)
        difference = compiled(ids, **arguments)[0] - model(ids, **arguments)[0]
        found[backend] = float(difference.abs().max())
    if name in CAUSAL:
        positions = torch.cat([torch.arange(12), torch.arange(8)])[None]
        try:
            compiled(ids, position_ids=positions, **arguments)
            found["packed"] = ""
        except RuntimeError as refusal:
            found["packed"] = str(refusal)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(x, marks=pytest.mark.slow) for x in sorted(MODELS) if x != "llama")],
)
def test_compiled_models_equal_eager_ones_and_refuse_packed_sequences(name):
    command = [sys.executable, "-c", CODE, name]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "supports no packed sequences" in found.pop("packed", "supports no packed sequences")
    assert max(found.values()) < 1e-4, found
