"""The line that names the processor, at the start of tests and of continuous integration."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import processor

ROOT = Path(__file__).parents[1]


def test_processor_is_named_with_its_vectors_and_torch():
    found = processor.describe()
    assert torch.__version__ in found
    assert torch.backends.cpu.get_cpu_capability() in found
    assert f"threads {torch.get_num_threads()}," in found


def test_test_runs_and_continuous_integration_begin_with_the_processor():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "tests/test_processor.py"],
        cwd=ROOT,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("processor ")
    assert "vectors DEFAULT" in done.stdout.splitlines()[0]
    steps = (ROOT / ".ci/run").read_text()
    assert 0 < steps.index("tests/processor.py") < steps.index("make lint")
