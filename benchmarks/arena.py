"""What the arena costs beside the training, and how long a report takes.

    python benchmarks/arena.py --out benchmarks/results/arena-cpu.json

Three figures, each of processes that are started for it and ended:

- Overhead of a run: `longspan arena` on many runs and on one, of an equal tiny recipe. The
  difference of wall times, less the difference of the time inside `fit` (training, evaluation,
  checkpoints), over the number of further runs: what the grid adds to each run. The start of the
  process (imports, opening the data, the report of the one run) is given apart.
- Resuming: the same command on the folder of a finished grid, whole process.
- Report: `longspan report` on synthetic records (benchmarks/synthetic_records.py), whole process:
  reading, statistics and page.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import synthetic_records
import torch
from timing import environment

from longspan.attention import MECHANISMS

# Runs of a fraction of a second: what is measured is all the rest.
RECIPE = {
    "task.train": 200,
    "task.validation": 40,
    "task.test": 44,
    "task.min_length": 4,
    "task.max_length": 24,
    "task.max_depth": 3,
    "task.max_args": 4,
    "model.width": 16,
    "model.layers": 1,
    "model.feed_forward": 16,
    "model.classifier": 16,
    "training.steps": 12,
    "training.batch_size": 4,
    "training.warmup_steps": 2,
    "training.evaluate_every": 6,
    "training.eval_batch_size": 16,
}
# Runs before the command line, in its process, and adds up what `fit` takes.
CLOCKED = """
import atexit, pathlib, sys, time
import longspan.training, longspan.cli
fit, spent = longspan.training.fit, []
def clocked(*parts, **more):
    began = time.perf_counter()
    try:
        return fit(*parts, **more)
    finally:
        spent.append(time.perf_counter() - began)
longspan.training.fit = clocked
place = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: place.write_text(f"{len(spent)} {sum(spent)}"))
longspan.cli.main()
"""


def timed(*command: str) -> float:
    """Wall seconds of a process that must succeed."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - began


def grid(folder: Path, mechanisms: list[str], seeds: int) -> list[str]:
    """The command of a tiny grid on ListOps."""
    changes = [part for name, value in RECIPE.items() for part in ("--set", f"{name}={value}")]
    where = ["--runs", str(folder), "--cache", str(folder.parent / "cache"), "--device", "cpu"]
    what = ["--protocol", "quick", "--tasks", "listops", "--mechanisms", ",".join(mechanisms)]
    return ["arena", *what, "--seeds", ",".join(map(str, range(seeds))), *where, *changes]


def run_grid(folder: Path, mechanisms: list[str], seeds: int) -> dict:
    """Wall time of a grid, and how much of it `fit` took."""
    spent = folder.parent / "spent.txt"
    seconds = timed("-c", CLOCKED, str(spent), *grid(folder, mechanisms, seeds))
    count, inside = spent.read_text().split()
    if int(count) != seeds * len(mechanisms):
        raise SystemExit(f"{count} runs were timed, of {seeds * len(mechanisms)}")
    return {"runs": int(count), "seconds": seconds, "fit_seconds": float(inside)}


def overhead(scratch: Path, seeds: int) -> dict:
    """What the grid adds to a run, and what resuming the finished grid takes."""
    names = sorted(MECHANISMS)
    # builds the data and compiles what is compiled once
    run_grid(scratch / "warm", names[:1], 1)
    one = run_grid(scratch / "one", names[:1], 1)
    many = run_grid(scratch / "many", names, seeds)
    added = many["seconds"] - one["seconds"] - (many["fit_seconds"] - one["fit_seconds"])
    again = [timed("-m", "longspan", *grid(scratch / "many", names, seeds)) for _ in range(3)]
    return {
        "one": one,
        "many": many,
        "overhead_seconds_per_run": added / (many["runs"] - one["runs"]),
        "start_seconds": one["seconds"] - one["fit_seconds"],
        "resumed": {"records": many["runs"], "rounds": again, "seconds": statistics.median(again)},
    }


def report(scratch: Path, seeds: int, rounds: int) -> dict:
    """Drawing a report of many records: seconds of the process, and bytes of the page."""
    folder, page = scratch / "records", scratch / "report.html"
    paths = [one.save(folder) for one in synthetic_records.records(seeds=seeds)]
    command = ("-m", "longspan", "report", str(folder), "--output", str(page))
    taken = [timed(*command) for _ in range(rounds)]
    return {
        "records": len(paths),
        "record_bytes": sum(path.stat().st_size for path in paths),
        "rounds": taken,
        "seconds": statistics.median(taken),
        "page_bytes": page.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--grid-seeds", type=int, default=2, help="of every mechanism")
    parser.add_argument("--report-seeds", type=int, default=10, help="of 20 x 5 cells")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = {
            "environment": environment(torch.device("cpu")),
            "grid": overhead(Path(folder), args.grid_seeds),
            "report": report(Path(folder), args.report_seeds, args.rounds),
        }
    record["load"] = os.getloadavg()[1]
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
