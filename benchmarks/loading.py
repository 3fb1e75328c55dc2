"""Loading from the cache: first batch, memory, speed of the loader, waiting of the training loop.

    python benchmarks/loading.py --out benchmarks/results/loading-cpu.json

Sets are built into a temporary folder (8 GB at the most are needed, and freed again): ListOps at
its full size, and noise in the shape of Path-X and of smaller sets. Building, opening and memory
are measured in a process of their own each time; *cold* means that the system was asked to forget
the files. `RssAnon` is the memory of a process that no file backs; what it maps beside it can be
taken back by the system at any time.
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

from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged, Spool
from longspan.memory import keep_freed_memory
from longspan.tasks import SPLITS, TASKS, Task
from longspan.tasks.base import TaskInfo
from longspan.tasks.sequence import SequenceTask

IMPORTED = time.time()
BATCH, NEEDED = 32, 8 * 10**9
CHUNK = 4096  # rows of noise drawn in one go


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    rows: int = dataclasses.field(metadata={"help": "examples of all splits together"})
    length: int = dataclasses.field(metadata={"help": "bytes of an example"})


class Noise(SequenceTask):
    """Random bytes, ten examples in a hundred for validation and as many for test."""

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
        vocabulary=256,
        classes=2,
        metric="accuracy",
        higher_is_better=True,
        chance=0.5,
        pair=False,
        published=(),
    )

    @property
    def length(self) -> int:
        return self.options.length

    def make(self, data, scratch, report) -> BuildOutput:
        options = self.options
        spool, draw = Spool(scratch / "tokens", np.uint8), np.random.default_rng(0)
        for first in range(0, options.rows, CHUNK):
            shape = (min(CHUNK, options.rows - first), options.length)
            spool.add_rows(draw.integers(0, 256, shape, np.uint8))
        tokens, borders = spool.ragged(), (np.array([0, 0.8, 0.9, 1]) * options.rows).astype(int)
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


class Watch(threading.Thread):
    """Notes the most memory that the process had while it was watched, and at the beginning."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first = self.most = resident()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            now = resident()
            self.most = {name: max(x, self.most[name]) for name, x in now.items()}

    def growth(self) -> dict[str, int]:
        self.ended.set()
        self.join()
        return {name: x - self.first[name] for name, x in self.most.items()}


def resident() -> dict[str, int]:
    """Bytes in memory: all, and those that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")}


def build(name: str, cache: Path) -> dict:
    watch, started = Watch(), time.perf_counter()
    watch.start()
    task = SETS[name]()
    task.open(cache)
    return {"seconds": time.perf_counter() - started, "growth": watch.growth()}


def first(name: str, cache: Path) -> dict:
    started, task = time.perf_counter(), SETS[name]()
    task.open(cache)
    opened = time.perf_counter()
    next(task.batches("train", batch=BATCH))
    return {
        "imports": IMPORTED - psutil.Process().create_time(),
        "open": opened - started,
        "batch": time.perf_counter() - opened,
    }


def memory(name: str, cache: Path) -> dict:
    """Growth over opening and reading 2,000 batches of random rows."""
    watch = Watch()
    watch.start()
    task = SETS[name]()
    task.open(cache)
    for _ in itertools.islice(task.batches("train", batch=BATCH), 2000):
        pass
    return watch.growth()


def alone(name: str, cache: Path) -> dict:
    """Batches a second by the process's own clock: of one core."""
    task = SETS[name]()
    task.open(cache)
    batches = task.batches("train", batch=BATCH)
    warm, count = 200, 2000
    tokens = sum(int(batch.key_mask.sum()) for batch in itertools.islice(batches, warm))
    started = time.process_time()
    for _ in itertools.islice(batches, count):
        pass
    seconds = time.process_time() - started
    return {
        "batches_per_second": count / seconds,
        "tokens_per_second": tokens / warm * count / seconds,
    }


PROBES = {probe.__name__: probe for probe in (build, first, memory, alone)}


def probed(probe: str, name: str, cache: Path) -> dict:
    """What a probe says in a process of its own."""
    command = [sys.executable, __file__, "--probe", probe, name, str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    print(f"{name}: {probe} {found}")
    return found


def forget(cache: Path) -> int:
    """Ask the system to drop the files of the cache from memory; their bytes."""
    total = 0
    for path in cache.rglob("*.arrow"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        total += path.stat().st_size
    return total


def loading(name: str, folder: Path, rounds: int) -> dict:
    cache = folder / name
    built = probed("build", name, cache)
    size, cold = forget(cache), probed("first", name, cache)
    warm = [probed("first", name, cache) for _ in range(rounds)]
    row = {
        "set": name,
        "bytes": size,
        "build": built,
        "cold": cold,
        "warm": {key: statistics.median(one[key] for one in warm) for key in cold},
        "memory": probed("memory", name, cache),
        "alone": probed("alone", name, cache),
    }
    return row


def waiting(name: str, mechanism: str, folder: Path, steps: int) -> dict:
    """Share of its training that a run waited, as its record would say."""
    # Here, lest the probes import them too.
    from longspan.arena import get, make_model
    from longspan.training import fit

    task: Task = SETS[name]()
    task.open(folder / name)
    experiment = get("lra-small").experiment("listops", mechanism, 0)
    train = dataclasses.replace(
        experiment.train,
        batch=BATCH,
        steps=steps,
        evaluate_every=steps,
        checkpoint_every=steps,
        evaluation_batch=BATCH,
    )
    task.batches = _without_evaluation(task)
    with tempfile.TemporaryDirectory() as runs:
        outcome = fit(
            make_model(experiment, task), task, train, seed=0, folder=Path(runs), device="cpu"
        )
    row = {
        "set": name,
        "mechanism": mechanism,
        "batch": BATCH,
        "tokens_per_example": outcome.tokens / outcome.steps / BATCH,
        "steps": steps,
        "seconds_per_step": outcome.seconds / outcome.steps,
        "waiting_seconds": outcome.waiting,
        "waiting_share": outcome.waiting / outcome.seconds,
    }
    print(row)
    return row


def _without_evaluation(task: Task):
    """The batches of a task of whose evaluation splits one batch is enough."""
    batches = task.batches

    def cut(split, **arguments):
        made = batches(split, **arguments)
        return made if split == "train" else itertools.islice(made, 1)

    return cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--folder", type=Path, help="where the sets are built, then removed")
    parser.add_argument("--rounds", type=int, default=5, help="warm starts")
    parser.add_argument("--steps", type=int, default=20, help="of training, for the waiting")
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe, name, cache = args.probe
        print(json.dumps(PROBES[probe](name, Path(cache))))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if (free := shutil.disk_usage(folder).free) < NEEDED:
            sys.exit(f"{folder} has {free / 1e9:.1f} GB free, {NEEDED / 1e9:.0f} are needed")
        keep_freed_memory()
        rows = [loading(name, Path(folder), args.rounds) for name in SETS]
        waits = [
            waiting(name, mechanism, Path(folder), args.steps)
            for name in ("listops", "an image task")
            for mechanism in ("full", "linear", "local")
        ]
    from timing import environment

    record = {"environment": environment(torch.device("cpu")), "rows": rows, "waiting": waits}
    record["environment"]["load"] = round(os.getloadavg()[1], 1)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
