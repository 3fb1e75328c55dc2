"""Worked example of CONTRIBUTING.md."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_contributing_example_passes_contract(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    for name in ("src", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "src/longspan/attention/mechanisms/efficient.py").write_text(block)
    contract = sorted(str(path) for path in (tmp_path / "tests/attention").glob("test_contract*"))
    command = [sys.executable, "-m", "pytest", "-k", "efficient", "-m", "not slow", *contract]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None, result.stdout
    assert int(passed[1]) >= 10, "the contract did not run over the new mechanism"
