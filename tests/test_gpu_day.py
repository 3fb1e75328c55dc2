"""The day on a GPU: parts end as they should, are not repeated, and can be rehearsed."""

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
COUNT = "import pathlib; p = pathlib.Path(r'{out}/calls'); p.open('a').write('x')"


@pytest.fixture(scope="module")
def gpu_day(import_script):
    return import_script("gpu_day")


@pytest.fixture
def part(gpu_day):
    """Function that makes a part of Python code."""

    def make(name, code, limit=60.0):
        command = (sys.executable, "-c", code)
        return gpu_day.Part(name, limit, command, command)

    return make


def options(out, **changes):
    fields = {"out": out, "seconds": None, "rehearse": False}
    return argparse.Namespace(**{**fields, **changes})


def test_finished_parts_are_not_run_again_and_others_are(gpu_day, part, tmp_path):
    parts = [part("good", COUNT), part("bad", COUNT + "; raise SystemExit(3)")]
    for _ in range(2):
        states = gpu_day.run_parts(parts, options(tmp_path))
        assert states == {"good": "done", "bad": "failed"}
    assert (tmp_path / "calls").read_text() == "xxx"
    saved = json.loads((tmp_path / gpu_day.STATE).read_text())
    assert (saved["good"]["code"], saved["bad"]["code"]) == (0, 3)


def test_a_rehearsal_does_not_count_as_the_day(gpu_day, tmp_path):
    command, rehearsal = ((sys.executable, "-c", COUNT + x) for x in ("", " # rehearsal"))
    part = gpu_day.Part("both", 60.0, command, rehearsal)
    for rehearse in (True, True, False, False):
        assert gpu_day.run_parts([part], options(tmp_path, rehearse=rehearse)) == {"both": "done"}
    assert (tmp_path / "calls").read_text() == "xx"


def test_parts_are_interrupted_at_their_limit(gpu_day, part, tmp_path):
    waits = (
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved')"
    )
    states = gpu_day.run_parts([part("long", waits, 3.0)], options(tmp_path))
    assert states == {"long": "unfinished"}
    assert (tmp_path / "long.log").read_text() == "ready\nsaved\n"


def test_no_part_begins_after_the_time_for_all(gpu_day, part, tmp_path):
    states = gpu_day.run_parts([part("late", COUNT)], options(tmp_path, seconds=1e-9))
    assert states == {"late": "unfinished"}
    assert not (tmp_path / "calls").exists()


def test_archives_hold_records_without_data_and_checkpoints(gpu_day, tmp_path):
    folder = tmp_path / "day"
    for name in ("parts.json", "runs/quick/a.json", "cache/data.bin", "runs/quick/work/last.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    gpu_day.archive(folder, tmp_path / "day.tar.gz")
    with tarfile.open(tmp_path / "day.tar.gz") as file:
        assert sorted(file.getnames()) == ["parts.json", "runs/quick/a.json"]


def test_every_part_ends_within_ten_minutes(gpu_day):
    assert all(0 < x.limit + gpu_day.GRACE / 2 <= 600 for x in gpu_day.PARTS)


def test_kernels_that_fail_do_not_stop_other_shapes(import_script, monkeypatch):
    script = import_script("linear_kernels")

    def fail(*_):
        raise TypeError("only arrays\nsecond line")

    monkeypatch.setattr(script, "deviation_of", fail)
    (row,) = script.measure("linear", False, torch.float32, (1, 8, 20, 8), 1, torch.device("cpu"))
    assert (row["failed"], row["length"]) == ("TypeError: only arrays", 20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_part_can_be_rehearsed(gpu_day, tmp_path):
    command = [sys.executable, "benchmarks/gpu_day.py", "--rehearse", "--out", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    assert found.stdout.split() == [w for x in gpu_day.PARTS for w in (x.name, "done")]
