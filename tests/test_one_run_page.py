"""The page that follows one run names the functions that carry it, in order."""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/development/one-run.md"
MOST = 25  # functions to read
# A second run is followed: the first one builds the data set. The functions on the stack when a
# layer attends for the first time, in training, and when the record is written carry the run.
# Decorators, lambdas and other functions inside functions are left out.
TRACE = """
import inspect, json, sys
from pathlib import Path
import longspan
from longspan.cli import main

ROOT = str(Path(longspan.__file__).parent)
folder, carriers = sys.argv[1], []

def name(code):
    file = Path(code.co_filename).relative_to(ROOT).with_suffix("")
    return ".".join((*(x for x in file.parts if x != "__init__"), code.co_qualname))

def record(frame, event, _):
    if event != "call" or not any(frame.f_code is x for x in moments):
        return
    moments.remove(frame.f_code)
    stack = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOT) and "<" not in frame.f_code.co_qualname:
            stack.append(name(frame.f_code))
        frame = frame.f_back
    carriers.extend(x for x in reversed(stack) if x not in carriers)

def run(seed):
    changes = {"training.steps": 2, "task.train": 400, "task.validation": 50, "task.test": 50}
    sys.argv = ["longspan", "train", "local", "needle", "--protocol", "quick", "--seed", seed]
    sys.argv += [x for name, y in changes.items() for x in ("--set", f"{name}={y}")]
    sys.argv += ["--runs", folder, "--json"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code

run("1")
from longspan.attention.base import Attention
from longspan.results.record import write_record

moments = [inspect.unwrap(x).__code__ for x in (Attention.forward, write_record)]
sys.setprofile(record)
run("2")
sys.setprofile(None)
assert not moments
sys.stderr.write("\\n" + json.dumps(carriers))
"""


def test_page_names_every_function_that_carries_a_run(tmp_path):
    command = [sys.executable, "-c", TRACE, str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    carriers = json.loads(done.stderr.splitlines()[-1])
    described = re.findall(r"^\d+\. `([\w.]+)`", PAGE.read_text("utf-8"), re.MULTILINE)
    assert described == carriers
    assert len(described) <= MOST
