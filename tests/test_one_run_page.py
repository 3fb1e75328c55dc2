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
import json, sys
from pathlib import Path
import longspan
from longspan.cli import main

ROOT = str(Path(longspan.__file__).parent)
moments = ["attention.base.Attention.forward", "results.record.write_record"]
carriers = []

def name(code):
    file = Path(code.co_filename).relative_to(ROOT).with_suffix("")
    return ".".join((*(x for x in file.parts if x != "__init__"), code.co_qualname))

def record(frame, event, _):
    if event != "call" or not frame.f_code.co_filename.startswith(ROOT):
        return
    if name(frame.f_code) not in moments:
        return
    moments.remove(name(frame.f_code))
    stack = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOT) and "<" not in frame.f_code.co_qualname:
            stack.append(name(frame.f_code))
        frame = frame.f_back
    carriers.extend(x for x in reversed(stack) if x not in carriers)

folder = sys.argv[1]
for seed in ("1", "2"):
    sys.argv = ["longspan", "train", "local", "needle", "--protocol", "quick", "--runs", folder]
    sys.argv += ["--set", "training.steps=2", "--set", "task.train=400", "--seed", seed, "--json"]
    sys.argv += ["--set", "task.validation=50", "--set", "task.test=50"]
    sys.setprofile(record if seed == "2" else None)
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
sys.setprofile(None)
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
