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
    limited = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": "src"}
    command = [sys.executable, "tests/processor.py"]
    done = subprocess.run(
        command, cwd=ROOT, env=limited, capture_output=True, text=True, check=True
    )
    assert "vectors DEFAULT" in done.stdout


def test_test_runs_and_continuous_integration_begin_with_the_processor():
    command = [sys.executable, "-m", "pytest", "--collect-only", "tests/test_processor.py"]
    environment = {**os.environ, "PYTHONPATH": "src"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("processor ")
    steps = (ROOT / ".ci/run").read_text()
    assert 0 < steps.index("tests/processor.py") < steps.index("make lint")
