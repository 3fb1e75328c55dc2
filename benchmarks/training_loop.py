"""Measure the overhead of the training loop over the bare step of the same model and batches.

    python benchmarks/training_loop.py --out benchmarks/results/training-loop-cpu.json

The bare step is forward, cross entropy, backward and AdamW, on batches in memory. The loop is
`longspan.training.fit`, which also reads and pads batches, sets the learning rate, counts and calls
callbacks. Both run alternately; a figure is the median over rounds of seconds per step between the
first and the last step of a round, so the loop's final evaluation and checkpoint are excluded.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from timing import environment

from longspan.arena import get, make_model, override
from longspan.arena.experiment import Experiment
from longspan.files import cache_folder
from longspan.memory import keep_freed_memory
from longspan.tasks import Task, build
from longspan.training import Callback, fit


class Clock(Callback):
    """Record when steps end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, step, loss, tokens, seconds) -> None:
        self.times.append(time.perf_counter())

    @property
    def per_step(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def bare(experiment: Experiment, task: Task) -> float:
    training = experiment.config.training
    model = make_model(experiment, task).train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ready = task.batches("train", batch_size=training.batch_size, seed=0)
    batches, clock = list(itertools.islice(ready, training.steps)), Clock()
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=training.precision == "bf16"):
            logits = model(input_ids=batch.inputs, attention_mask=batch.key_mask).logits
        torch.nn.functional.cross_entropy(logits.float(), batch.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.on_step(0, None, 0, 0.0)
    return clock.per_step


def loop(experiment: Experiment, task: Task) -> float:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        fit(
            make_model(experiment, task),
            task,
            experiment.config.training,
            seed=0,
            folder=Path(folder),
            device="cpu",
            callback=clock,
        )
    return clock.per_step


def measure(mechanism: str, batch: int, steps: int, rounds: int) -> dict:
    experiment = get("lra-small").experiment("listops", mechanism, 0)
    pace = {"steps": steps, "evaluate_every": steps, "checkpoint_every": steps}
    # Evaluation is not timed, so few examples suffice.
    sizes = {"task.validation": 8, "task.test": 8, "training.batch_size": batch}
    experiment = override(experiment, {**sizes, **{f"training.{k}": x for k, x in pace.items()}})
    training = experiment.config.training
    task = build("listops", experiment.config.task.options)
    task.open(cache_folder())
    bare(experiment, task)
    taken = [(bare(experiment, task), loop(experiment, task)) for _ in range(rounds)]
    step, whole = (statistics.median(x) for x in zip(*taken, strict=True))
    overhead = statistics.median(b / a for a, b in taken) - 1
    tokens = batch * _mean_length(task)
    print(f"{mechanism} batch {batch}: bare {1e3 * step:.1f} ms, overhead {100 * overhead:+.1f} %")
    return {
        "mechanism": mechanism,
        "batch": batch,
        "length": task.length,
        "precision": training.precision,
        "steps": steps,
        "rounds": [{"bare": a, "loop": b} for a, b in taken],
        "bare_seconds_per_step": step,
        "loop_seconds_per_step": whole,
        "bare_tokens_per_second": tokens / step,
        "loop_tokens_per_second": tokens / whole,
        "overhead": overhead,
    }


def _mean_length(task: Task) -> float:
    batches = itertools.islice(task.batches("train", batch_size=32), 100)
    return statistics.mean(float(batch.key_mask.sum()) / 32 for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--mechanisms", nargs="+", default=["full", "blockwise", "linear"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    keep_freed_memory()
    rows = []
    for mechanism in args.mechanisms:
        rows.append(measure(mechanism, 32, 6, args.rounds))
        rows.append(measure(mechanism, 2, 60, args.rounds))
    record = {"environment": environment(torch.device("cpu")), "rows": rows}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
