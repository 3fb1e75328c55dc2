"""What it costs that every batch has a width of its own.

    python benchmarks/batch_widths.py --out benchmarks/results/batch-widths-cpu.json

Runs of ListOps under `lra-small`, with batches as wide as their longest expression, rounded up to
multiples of some number of tokens (1: not rounded). Each run is a process of its own, as memory
that libraries keep for each width stays until the end. Seconds per step are the median of all but
the first steps, the peak is of resident pages beyond those before training.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from timing import environment
from training_loop import Clock

from longspan.arena import get, make_model, override
from longspan.files import cache_folder
from longspan.memory import keep_freed_memory
from longspan.tasks import build, sequence
from longspan.training import fit

FIRST = 10  # steps that are not timed
MIB = 2**20


def per_step(times: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times[FIRST:]))


def one(mechanism: str, grain: int, steps: int) -> dict:
    """A run in this process."""
    keep_freed_memory()
    sequence.PAD_TO_MULTIPLE_OF = grain
    experiment = get("lra-small").experiment("listops", mechanism, 0)
    pace = {"steps": steps, "evaluate_every": steps, "checkpoint_every": steps}
    sizes = {"task.validation": 32, "task.test": 32}
    experiment = override(experiment, {**sizes, **{f"training.{k}": x for k, x in pace.items()}})
    training = experiment.config.training
    task = build("listops", experiment.config.task.options)
    task.open(cache_folder())
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        outcome = fit(
            make_model(experiment, task),
            task,
            training,
            seed=0,
            folder=Path(folder),
            device="cpu",
            callback=clock,
        )
    return {
        "mechanism": mechanism,
        "grain": grain,
        "precision": training.precision,
        "batch": training.batch_size,
        "steps": steps,
        "seconds_per_step": per_step(clock.times),
        "peak_bytes": outcome.peak_memory,
    }


def apart(mechanism: str, grain: int, steps: int) -> dict:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "--one", mechanism, str(grain), str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{mechanism}, multiples of {grain}: {1e3 * row['seconds_per_step']:.0f} ms a step, "
        f"{row['peak_bytes'] / MIB:,.0f} MiB"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--mechanisms", nargs="+", default=["local", "linformer"])
    parser.add_argument("--grains", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one[0], int(args.one[1]), int(args.one[2]))))
        return
    rows = [apart(name, grain, args.steps) for name in args.mechanisms for grain in args.grains]
    record = {"environment": environment(torch.device("cpu")), "rows": rows}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
