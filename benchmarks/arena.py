"""Overhead of the arena over training, and the time of a report.

    python benchmarks/arena.py --out benchmarks/results/arena-cpu.json

Three measurements, each of whole processes:

- Overhead of a run: `longspan arena` on many runs and on one run of the same tiny recipe. The
  overhead is the difference of their wall times, minus the difference of their time in `fit`
  (training, evaluation, checkpoints), per additional run. The start-up of the process (imports,
  opening the data, the report of one run) is recorded separately.
- Resuming: the same command on the folder of a finished grid.
- Report: `longspan report` on synthetic records (benchmarks/synthetic_records.py): reading,
  statistics and page.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import synthetic_records
import torch
from timing import environment, write_record

from longspan.attention import MECHANISMS

# Runs take a fraction of a second, so that the overhead dominates.
RECIPE = {
    "task.train": 200,
    "task.validation": 40,
    "task.test": 44,
    "task.min_length": 4,
    "task.max_length": 24,
    "task.max_depth": 3,
    "task.max_args": 4,
    "model.hidden_size": 16,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 16,
    "model.classifier_hidden_size": 16,
    "training.steps": 12,
    "training.batch_size": 4,
    "training.warmup_steps": 2,
    "training.evaluate_every": 6,
    "training.eval_batch_size": 16,
}
# Replaces `fit` by a function that adds up its time, then runs the command line.
TIMED_CLI = """
import atexit, pathlib, sys, time
import longspan.training, longspan.cli
fit, seconds = longspan.training.fit, []
def timed_fit(*args, **kwargs):
    started = time.perf_counter()
    try:
        return fit(*args, **kwargs)
    finally:
        seconds.append(time.perf_counter() - started)
longspan.training.fit = timed_fit
path = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: path.write_text(f"{len(seconds)} {sum(seconds)}"))
longspan.cli.main()
"""


def time_process(*command: str) -> float:
    """Return the wall-clock seconds of a process that must succeed."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command[:4])} exited with code {done.returncode}:\n{done.stderr}"
        )
    return time.perf_counter() - started


def grid_command(folder: Path, mechanisms: list[str], seeds: int) -> list[str]:
    """Return the command of a tiny grid on ListOps."""
    changes = [part for name, value in RECIPE.items() for part in ("--set", f"{name}={value}")]
    where = ["--runs", str(folder), "--cache", str(folder.parent / "cache"), "--device", "cpu"]
    what = ["--protocol", "smoke", "--tasks", "listops", "--mechanisms", ",".join(mechanisms)]
    return ["arena", *what, "--seeds", ",".join(map(str, range(seeds))), *where, *changes]


def run_grid(folder: Path, mechanisms: list[str], seeds: int) -> dict:
    """Return the wall time of a grid, and its time in `fit`."""
    fit_seconds = folder.parent / "fit_seconds.txt"
    seconds = time_process(
        "-c", TIMED_CLI, str(fit_seconds), *grid_command(folder, mechanisms, seeds)
    )
    count, in_fit = fit_seconds.read_text().split()
    if int(count) != seeds * len(mechanisms):
        raise SystemExit(f"{count} runs were timed, expected {seeds * len(mechanisms)}")
    return {"runs": int(count), "seconds": seconds, "fit_seconds": float(in_fit)}


def measure_overhead(scratch: Path, seeds: int) -> dict:
    """Measure the overhead per run, and the time to resume a finished grid."""
    names = sorted(MECHANISMS)
    # Builds the data set and compiles cached functions.
    run_grid(scratch / "warm", names[:1], 1)
    one = run_grid(scratch / "one", names[:1], 1)
    many = run_grid(scratch / "many", names, seeds)
    added = many["seconds"] - one["seconds"] - (many["fit_seconds"] - one["fit_seconds"])
    resumed = [
        time_process("-m", "longspan", *grid_command(scratch / "many", names, seeds))
        for _ in range(3)
    ]
    return {
        "one": one,
        "many": many,
        "overhead_seconds_per_run": added / (many["runs"] - one["runs"]),
        "start_seconds": one["seconds"] - one["fit_seconds"],
        "resumed": {
            "records": many["runs"],
            "rounds": resumed,
            "seconds": statistics.median(resumed),
        },
    }


def measure_report(scratch: Path, seeds: int, rounds: int) -> dict:
    """Measure the report of many records: time of the process and size of the page."""
    folder, page = scratch / "records", scratch / "report.html"
    paths = [one.save(folder) for one in synthetic_records.records(seeds=seeds)]
    command = ("-m", "longspan", "report", str(folder), "--output", str(page))
    times = [time_process(*command) for _ in range(rounds)]
    return {
        "records": len(paths),
        "record_bytes": sum(path.stat().st_size for path in paths),
        "rounds": times,
        "seconds": statistics.median(times),
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
            "grid": measure_overhead(Path(folder), args.grid_seeds),
            "report": measure_report(Path(folder), args.report_seeds, args.rounds),
        }
    record["load"] = os.getloadavg()[1]
    write_record(record, args.out)


if __name__ == "__main__":
    main()
