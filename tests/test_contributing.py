"""The worked example of CONTRIBUTING.md is a mechanism that passes the contract unaided."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def contributed(tmp_path_factory):
    """Return a function that runs Python in a copy of the project with the example added."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    folder = tmp_path_factory.mktemp("project")
    for name in ("src", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / "src/longspan/attention/mechanisms/efficient.py").write_text(block)

    def run_python(*arguments):
        finished = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert finished.returncode == 0, (finished.stdout + finished.stderr)[-3000:]
        return finished.stdout

    return run_python


def test_example_passes_contract(contributed):
    contract = sorted(path.name for path in (ROOT / "tests/attention").glob("test_contract*"))
    paths = [f"tests/attention/{name}" for name in contract]
    output = contributed("-m", "pytest", "-k", "efficient", "-m", "not slow", *paths)
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None, output
    assert int(passed[1]) >= 10, "the contract did not run over the new mechanism"


def test_example_is_in_every_grid_of_runs(contributed):
    code = "from longspan.arena import grid; print([x.mechanism for x in grid('quick')[0]])"
    assert "'efficient'" in contributed("-c", code)
