"""torch.compile of the decode step: a few graphs serve all lengths.

A state that grows has new shapes in its first steps, and segments and blocks have a first and a
last token; each of these may take a graph. The length of the text may not.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "decode_compiled.py"
BOUNDED = [
    *("blockwise", "compressive", "disjoint", "linear", "local", "longformer"),
    *("performer", "position_infused", "transformer_xl"),
]
FEW, WARM_UP = 10, 48


def count_graphs(kind, backend, *names):
    """Return the number of graphs after each decoded token, by mechanism."""
    command = [sys.executable, str(SCRIPT), kind, backend, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_few(found):
    for name, counts in found.items():
        assert 1 <= counts[WARM_UP] <= FEW, (name, counts)
        assert counts[-1] == counts[WARM_UP], (name, counts)


@pytest.mark.slow
def test_steps_of_local_attention_share_few_graphs():
    assert_few(count_graphs("step", "eager", "local"))


@pytest.mark.slow
def test_steps_of_mechanisms_share_few_graphs():
    assert_few(count_graphs("step", "eager", *BOUNDED))


@pytest.mark.slow
def test_steps_of_models_share_few_graphs():
    assert_few(count_graphs("model", "aot_eager", "local", "linear", "performer", "transformer_xl"))


@pytest.mark.slow
def test_steps_of_a_model_compile_to_kernels():
    assert_few(count_graphs("model", "inductor", "local"))
