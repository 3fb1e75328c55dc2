"""Time and memory of training when every batch has its own padded length.

    python benchmarks/batch_widths.py --out benchmarks/results/batch-widths-cpu.json

Runs of ListOps under `lra-small`. Batches are padded to their longest expression, rounded up to a
multiple of some number of tokens (1: not rounded). Each run has its own process, because libraries
keep memory for each length until the process ends. Seconds per step are the median over all but the
first steps; the peak is of resident memory above that before training.
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
from timing import environment, write_record
from training_loop import Clock

from longspan.arena import get, make_model, override
from longspan.files import cache_folder
from longspan.memory import keep_freed_memory
from longspan.tasks import batching, build
from longspan.training import fit

WARMUP_STEPS = 10  # not timed
MIB = 2**20


def seconds_per_step(times: list[float]) -> float:
    """Return the median time of the steps after the warm-up."""
    return statistics.median(b - a for a, b in itertools.pairwise(times[WARMUP_STEPS:]))


def measure(mechanism: str, multiple: int, steps: int) -> dict:
    """Measure a run in this process."""
    keep_freed_memory()
    batching.PAD_TO_MULTIPLE_OF = multiple
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
        "grain": multiple,
        "precision": training.precision,
        "batch": training.batch_size,
        "steps": steps,
        "seconds_per_step": seconds_per_step(clock.times),
        "peak_bytes": outcome.peak_memory,
    }


def measure_in_process(mechanism: str, multiple: int, steps: int) -> dict:
    """Measure a run in a new process."""
    command = [sys.executable, __file__, "--measure", mechanism, str(multiple), str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{mechanism}, multiples of {multiple}: {1e3 * row['seconds_per_step']:.0f} ms a step, "
        f"{row['peak_bytes'] / MIB:,.0f} MiB"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--mechanisms", nargs="+", default=["local", "linformer"])
    parser.add_argument("--multiples", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[0], int(args.measure[1]), int(args.measure[2]))))
        return
    rows = [
        measure_in_process(name, multiple, args.steps)
        for name in args.mechanisms
        for multiple in args.multiples
    ]
    record = {"environment": environment(torch.device("cpu")), "rows": rows}
    write_record(record, args.out)


if __name__ == "__main__":
    main()
