"""The worked example of CONTRIBUTING.md is a mechanism that passes the contract unaided."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_example_passes_contract(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    for name in ("src", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "src/longspan/attention/mechanisms/efficient.py").write_text(block)
    contract = sorted(str(path) for path in (tmp_path / "tests/attention").glob("test_contract*"))
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-k", "efficient", "-m", "not slow", *contract],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-3000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None, finished.stdout
    assert int(passed[1]) >= 10, "the contract did not run over the new mechanism"
