"""Loading of cached data sets: first batch, memory, throughput, data wait of the training loop.

    python benchmarks/loading.py --out benchmarks/results/loading-cpu.json

Data sets are built into a temporary folder of at most 8 GB: ListOps at full size, and noise of the
size of Path-X and smaller. Building, opening and memory are each measured in a new process; *cold*
means that the files were dropped from the page cache. `RssAnon` is the anonymous memory of a
process; the system can reclaim file-backed pages at any time.
"""

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from pydantic import PositiveInt

from longspan.config import setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged, SequenceWriter
from longspan.memory import keep_freed_memory
from longspan.tasks import SPLITS, TASKS, Task
from longspan.tasks.info import TaskInfo

IMPORTED = time.time()
BATCH_SIZE, DISK_BYTES = 32, 8 * 10**9
CHUNK = 4096  # rows of noise per draw


@settings
class NoiseOptions:
    rows: PositiveInt = setting("examples of all splits together")
    length: PositiveInt = setting("bytes of an example")


class Noise(Task):
    """Task with random bytes: 80 % of the examples in train, 10 % in validation, 10 % in test."""

    Options = NoiseOptions
    info = TaskInfo(
        name="noise",
        version=1,
        title="Noise",
        summary="",
        source="random bytes",
        checksum=None,
        license="",
        sizes={},
        vocab_size=256,
        num_classes=2,
        head="sequence_classification",
        metrics=("accuracy",),
        chance=0.5,
        published=(),
    )

    @property
    def length(self) -> int:
        return self.options.length

    def build_splits(self, data, scratch, progress) -> BuildOutput:
        options = self.options
        writer, draw = SequenceWriter(scratch / "tokens", np.uint8), np.random.default_rng(0)
        for first in range(0, options.rows, CHUNK):
            shape = (min(CHUNK, options.rows - first), options.length)
            writer.add_rows(draw.integers(0, 256, shape, np.uint8))
        tokens, borders = writer.ragged(), (np.array([0, 0.8, 0.9, 1]) * options.rows).astype(int)
        splits = {
            split: Examples(
                tokens=Ragged(
                    tokens.values[first * options.length : end * options.length],
                    np.arange(end - first + 1) * options.length,
                ),
                labels=draw.integers(0, 2, end - first, np.uint8),
            )
            for split, (first, end) in zip(SPLITS, itertools.pairwise(borders), strict=True)
        }
        return BuildOutput(splits=splits, source="noise", license="none", facts={})

    def show(self, split, row) -> str:
        return ""


SETS = {
    "listops": lambda: TASKS["listops"](),
    "Path-X sized": lambda: Noise(NoiseOptions(rows=200_000, length=16_384)),
    "a thirtieth of it": lambda: Noise(NoiseOptions(rows=6_666, length=16_384)),
    "an image task": lambda: Noise(NoiseOptions(rows=60_000, length=1_024)),
}


class MemoryMonitor(threading.Thread):
    """Thread that records the initial and the peak memory of the process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.initial = self.peak = read_memory()
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.02):
            current = read_memory()
            self.peak = {name: max(x, self.peak[name]) for name, x in current.items()}

    def growth(self) -> dict[str, int]:
        self.stopped.set()
        self.join()
        return {name: x - self.initial[name] for name, x in self.peak.items()}


def read_memory() -> dict[str, int]:
    """Return the resident and the anonymous memory of the process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")}


def measure_build(name: str, cache: Path) -> dict:
    monitor, started = MemoryMonitor(), time.perf_counter()
    monitor.start()
    task = SETS[name]()
    task.open(cache)
    return {"seconds": time.perf_counter() - started, "growth": monitor.growth()}


def measure_first_batch(name: str, cache: Path) -> dict:
    started, task = time.perf_counter(), SETS[name]()
    task.open(cache)
    opened = time.perf_counter()
    next(task.batches("train", batch_size=BATCH_SIZE))
    return {
        "imports": IMPORTED - psutil.Process().create_time(),
        "open": opened - started,
        "batch": time.perf_counter() - opened,
    }


def measure_memory(name: str, cache: Path) -> dict:
    """Measure the growth of memory over opening and reading 2,000 batches of random rows."""
    monitor = MemoryMonitor()
    monitor.start()
    task = SETS[name]()
    task.open(cache)
    for _ in itertools.islice(task.batches("train", batch_size=BATCH_SIZE), 2000):
        pass
    return monitor.growth()


def measure_throughput(name: str, cache: Path) -> dict:
    """Measure batches and tokens per second of CPU time."""
    task = SETS[name]()
    task.open(cache)
    batches = task.batches("train", batch_size=BATCH_SIZE)
    warm, count = 200, 2000
    tokens = sum(
        int(batch.inputs["attention_mask"].sum()) for batch in itertools.islice(batches, warm)
    )
    started = time.process_time()
    for _ in itertools.islice(batches, count):
        pass
    seconds = time.process_time() - started
    return {
        "batches_per_second": count / seconds,
        "tokens_per_second": tokens / warm * count / seconds,
    }


PROBES = {
    "build": measure_build,
    "first": measure_first_batch,
    "memory": measure_memory,
    "alone": measure_throughput,
}


def run_probe(probe: str, name: str, cache: Path) -> dict:
    """Run a probe in a new process and return its measurements."""
    command = [sys.executable, __file__, "--probe", probe, name, str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    print(f"{name}: {probe} {found}")
    return found


def drop_page_cache(cache: Path) -> int:
    """Drop the files of a cache folder from the page cache and return their size in bytes."""
    total = 0
    for path in cache.rglob("*.arrow"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        total += path.stat().st_size
    return total


def measure_loading(name: str, folder: Path, rounds: int) -> dict:
    cache = folder / name
    built = run_probe("build", name, cache)
    size, cold = drop_page_cache(cache), run_probe("first", name, cache)
    warm = [run_probe("first", name, cache) for _ in range(rounds)]
    row = {
        "set": name,
        "bytes": size,
        "build": built,
        "cold": cold,
        "warm": {key: statistics.median(one[key] for one in warm) for key in cold},
        "memory": run_probe("memory", name, cache),
        "alone": run_probe("alone", name, cache),
    }
    return row


def measure_data_wait(name: str, mechanism: str, folder: Path, steps: int) -> dict:
    """Measure the share of training time spent waiting for batches."""
    # Imported here because the probes measure import time and memory without them.
    from longspan.arena import get, make_model
    from longspan.training import fit

    task: Task = SETS[name]()
    task.open(folder / name)
    experiment = get("lra-small").experiment("listops", mechanism, 0)
    training = dataclasses.replace(
        experiment.config.training,
        batch_size=BATCH_SIZE,
        steps=steps,
        evaluate_every=steps,
        checkpoint_every=steps,
        eval_batch_size=BATCH_SIZE,
    )
    task.batches = without_evaluation(task)
    with tempfile.TemporaryDirectory() as runs:
        outcome = fit(
            make_model(experiment, task), task, training, seed=0, folder=Path(runs), device="cpu"
        )
    row = {
        "set": name,
        "mechanism": mechanism,
        "batch": BATCH_SIZE,
        "tokens_per_example": outcome.tokens / outcome.steps / BATCH_SIZE,
        "steps": steps,
        "seconds_per_step": outcome.seconds / outcome.steps,
        "waiting_seconds": outcome.data_wait_seconds,
        "waiting_share": outcome.data_wait_seconds / outcome.seconds,
    }
    print(row)
    return row


def without_evaluation(task: Task):
    """Return the batches of a task, with one batch for each evaluation split."""
    batches = task.batches

    def limited(split, **options):
        iterator = batches(split, **options)
        return iterator if split == "train" else itertools.islice(iterator, 1)

    return limited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--folder", type=Path, help="folder for the temporary data sets")
    parser.add_argument("--rounds", type=int, default=5, help="warm starts")
    parser.add_argument("--steps", type=int, default=20, help="training steps of the data wait")
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe, name, cache = args.probe
        print(json.dumps(PROBES[probe](name, Path(cache))))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if (free := shutil.disk_usage(folder).free) < DISK_BYTES:
            needed = f"{DISK_BYTES / 1e9:.0f} GB are needed"
            sys.exit(f"{folder}: {needed}, {free / 1e9:.1f} GB are free; choose another --folder")
        keep_freed_memory()
        rows = [measure_loading(name, Path(folder), args.rounds) for name in SETS]
        waits = [
            measure_data_wait(name, mechanism, Path(folder), args.steps)
            for name in ("listops", "an image task")
            for mechanism in ("full", "linear", "local")
        ]
    from timing import environment, write_record

    record = {"environment": environment(torch.device("cpu")), "rows": rows, "waiting": waits}
    record["environment"]["load"] = round(os.getloadavg()[1], 1)
    write_record(record, args.out)


if __name__ == "__main__":
    main()
