"""The line that names the processor, at the start of tests and of continuous integration."""

from pathlib import Path
from types import SimpleNamespace

import torch

import processor

ROOT = Path(__file__).parents[1]


def test_processor_is_named_with_its_vectors_and_torch():
    found = processor.describe()
    assert torch.__version__ in found
    assert torch.backends.cpu.get_cpu_capability() in found
    assert f"threads {torch.get_num_threads()}," in found


def test_test_runs_and_continuous_integration_begin_with_the_processor(pytestconfig):
    written = []
    reporter = SimpleNamespace(write_line=written.append)
    plugins = SimpleNamespace(getplugin={"terminalreporter": reporter}.get)
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    conftest.pytest_sessionstart(SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins)))
    assert written == [processor.describe()]
    steps = (ROOT / ".ci/run").read_text()
    assert 0 < steps.index("tests/processor.py") < steps.index("make lint")
