"""The worked example of CONTRIBUTING.md is a mechanism that passes the contract unaided."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_example_passes_the_contract_when_it_is_saved_as_one_file(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    for name in ("src", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "src/longspan/attention/mechanisms/efficient.py").write_text(block)
    contract = sorted(str(path) for path in (tmp_path / "tests/attention").glob("test_contract*"))
    command = [sys.executable, "-m", "pytest", "-k", "efficient", "-m", "not slow", *contract]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None, ran.stdout
    assert int(passed[1]) >= 10, "the contract did not run over the new mechanism"
