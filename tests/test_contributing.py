"""The worked example of CONTRIBUTING.md is a mechanism that passes the contract unaided."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_example_passes_contract(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    path = tmp_path / "efficient.py"
    path.write_text(block)
    contract = sorted(str(x) for x in (ROOT / "tests/attention").glob("test_contract*"))
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *contract, "--mechanism", path, "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-3000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None, finished.stdout
    assert int(passed[1]) >= 10, "the contract did not run over the new mechanism"
