"""Speedrun: training time to 95 % of recall of eight pairs, with three seeds on two cores.

    python benchmarks/speedrun.py
    python benchmarks/speedrun.py --record "a window of one key in the first layer"

Rules and records: docs/speedrun.md. Each seed is trained from random initialization in a new
folder, one after another; time is that of the training steps, without evaluations. The exit code is
1 if a seed misses the target on validation or test. `--record` writes a record, which `python
benchmarks/tables.py` adds to the page.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from timing import environment, write_record

from longspan.arena import Experiment, GridCallback, Protocol, RunPaths, arena, get, load_protocol
from longspan.cli.common import console_callback
from longspan.errors import LongspanError
from longspan.results import Result

ROOT = Path(__file__).parents[1]
RECORDS = Path(__file__).parent / "results" / "speedrun"
TARGET, SEEDS, CORES = 0.95, (0, 1, 2), 2
TASK = {
    "length": 64,
    "pairs": 8,
    "queries": 8,
    "vocabulary": 64,
    "power": 1.0,
    "noise": False,
    "train": 100_000,
    "validation": 3_000,
    "test": 3_000,
    "seed": 0,
}
EVALUATE_EVERY = 25  # evaluations are not timed, so more of them would stop earlier at no cost


def use_cores() -> None:
    """Compute on two cores with as many threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(CORES)


def broken_rules(experiment: Experiment) -> list[str]:
    """Return what a configuration changes against the rules."""
    config, training = experiment.config, experiment.config.training
    options = {name: config.task.options.get(name) for name in TASK}
    differing = [f"task.{x}={y}, expected {TASK[x]}" for x, y in options.items() if y != TASK[x]]
    checks = {
        f"task {config.task.name}, expected recall": config.task.name == "recall",
        f"training.stop_at={training.stop_at}, expected {TARGET} or more": (
            training.stop_at is not None and training.stop_at >= TARGET
        ),
        f"training.evaluate_every={training.evaluate_every}, expected {EVALUATE_EVERY}": (
            training.evaluate_every == EVALUATE_EVERY
        ),
        f"a start from {config.start}, expected random initialization": config.start is None,
        f"a budget of {config.budget}, expected steps": config.budget.kind == "steps",
    }
    return [*differing, *(rule for rule, holds in checks.items() if not holds)]


def experiments_of(
    protocol: Protocol, row: str, changes: Mapping[str, Any], seeds: Sequence[int] = SEEDS
) -> list[Experiment]:
    """Return the experiments of a row, one for each seed."""
    return [protocol.row(protocol.tasks[0], row, seed, changes) for seed in seeds]


def train(
    experiments: Sequence[Experiment], cache: Path, callback: GridCallback | None = None
) -> list[Result]:
    """Train experiments one after another in a new folder, on the processor."""
    with tempfile.TemporaryDirectory() as folder:
        paths = RunPaths(runs=Path(folder), cache=cache, device="cpu")
        results, failed = arena(experiments, paths, callback or GridCallback())
    if failed:
        raise SystemExit(f"error: {failed[0].name}: {failed[0].reason}")
    return sorted(results, key=lambda result: result.seed)


def summarize(results: Sequence[Result], change: str = "") -> dict[str, Any]:
    """Return the record of a speedrun."""
    first = results[0]
    runs = [
        {
            "seed": x.seed,
            "seconds": x.seconds,
            "steps": x.steps,
            **{split: x.scores[split].metrics[x.metric] for split in ("validation", "test")},
        }
        for x in results
    ]
    return {
        "environment": environment(torch.device("cpu")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": first.git_commit,
        "change": change,
        "row": first.row_name,
        "parameters": first.num_parameters,
        "seconds": statistics.fmean(x.seconds for x in results),
        "runs": runs,
    }


def missed(record: Mapping[str, Any], target: float = TARGET) -> list[str]:
    """Return the seeds and splits that are below the target, with their scores."""
    return [
        f"seed {run['seed']}: {100 * run[split]:.1f} % on {split} after {run['steps']:,} steps"
        for run in record["runs"]
        for split in ("validation", "test")
        if run[split] < target
    ]


def describe(record: Mapping[str, Any]) -> str:
    """Return the runs and their mean time as lines."""
    lines = [
        f"seed {run['seed']}: {run['seconds']:.2f} s, {run['steps']:,} steps, "
        f"validation {100 * run['validation']:.1f} %, test {100 * run['test']:.1f} %"
        for run in record["runs"]
    ]
    return "\n".join([*lines, f"mean: {record['seconds']:.2f} s"])


def uncommitted() -> str:
    """Return the files that differ from the commit."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; refuse what contradicts the rules of a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", default="speedrun", help="protocol, or its file")
    parser.add_argument("--row", help="row of the protocol; default: its first one")
    parser.add_argument("--cache", type=Path, default=RunPaths().cache, help="built data sets")
    parser.add_argument("--target", type=float, help="another target, for trials of the command")
    parser.add_argument("--record", metavar="CHANGE", help="write a record; one line on the change")
    args = parser.parse_args()
    if args.record is not None and args.target is not None:
        parser.error(f"--record has the target {TARGET}, got --target {args.target}; omit one")
    if args.record is not None and (files := uncommitted()):
        parser.error(f"--record needs a commit of everything; commit or remove\n{files}")
    if (cores := os.cpu_count() or 1) < CORES:
        parser.error(f"the speedrun takes {CORES} cores, and this machine has {cores}")
    return args


def main() -> None:
    args = parse_arguments()
    use_cores()
    is_file = args.protocol.endswith((".toml", ".py"))
    protocol = load_protocol(args.protocol) if is_file else get(args.protocol)
    row = args.row or protocol.default_rows[0]
    changes = {} if args.target is None else {"training.stop_at": args.target}
    experiments = experiments_of(protocol, row, changes)
    if args.target is None and (rules := broken_rules(experiments[0])):
        raise SystemExit(f"error: against the rules of docs/speedrun.md: {'; '.join(rules)}")
    with console_callback() as callback:
        record = summarize(train(experiments, args.cache, callback), args.record or "")
    print(describe(record))
    if seeds := missed(record, TARGET if args.target is None else args.target):
        raise SystemExit("missed the target: " + "; ".join(seeds))
    if args.record is not None:
        path = RECORDS / f"{record['date']}-{record['commit'][:8]}.json"
        write_record(record, path)
        print(f"wrote {path}; add it to the page: python benchmarks/tables.py")


if __name__ == "__main__":
    try:
        main()
    except LongspanError as error:
        sys.exit(f"error: {error}")
