"""Run the contract tests, and count their results by mechanism.

    python benchmarks/contract.py --out benchmarks/results/contract.json

A test belongs to the mechanism that is the first name of one in its parameters. Skipped are tests
of what a mechanism does not claim, such as causal forms and global tokens.
"""

import argparse
import collections
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch
from timing import environment, write_record

from longspan.attention import MECHANISMS

TESTS = Path(__file__).parents[1] / "tests" / "attention"


def count_results(report: Path) -> dict[str, dict[str, int]]:
    """Count passed, skipped and failed tests by mechanism in a report in the format of JUnit."""
    counts = {name: dict.fromkeys(("passed", "skipped", "failed"), 0) for name in MECHANISMS}
    for case in ElementTree.parse(report).iter("testcase"):
        words = re.split(r"[\[\]-]", case.get("name", ""))
        name = next((word for word in words if word in counts), None)
        outcomes = collections.Counter(child.tag for child in case)
        if name is not None:
            is_failure = outcomes["failure"] or outcomes["error"]
            result = "failed" if is_failure else "skipped" if outcomes["skipped"] else "passed"
            counts[name][result] += 1
    return counts


def run_tests(report: Path) -> None:
    """Run the tests of the contract, whatever they say."""
    files = sorted(str(path) for path in TESTS.glob("test_contract*.py"))
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *files]
    subprocess.run(command, cwd=TESTS.parents[1], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "contract.xml"
        run_tests(report)
        rows = [{"mechanism": name, **counts} for name, counts in count_results(report).items()]
    record = {"environment": environment(torch.device("cpu")), "rows": rows}
    write_record(record, arguments.out)


if __name__ == "__main__":
    main()
