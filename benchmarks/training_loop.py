"""Overhead of the training loop over the bare training step, on the same model and batches.

    python benchmarks/training_loop.py --out benchmarks/results/training-loop-cpu.json

The bare step is forward, cross entropy, backward and AdamW on batches in memory. The loop is
`longspan.training.fit`, which also reads and pads batches, sets the learning rate, counts tokens
and calls callbacks. Their rounds alternate. A figure is the median over rounds of the seconds per
step between the first and the last step of a round, which excludes the loop's evaluation and
checkpoint at the end.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from timing import environment, write_record

from longspan.arena import get, make_model, override
from longspan.arena.experiment import Experiment
from longspan.files import cache_folder
from longspan.memory import keep_freed_memory
from longspan.tasks import Task, build
from longspan.training import Callback, fit


class Clock(Callback):
    """Callback that records the end time of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, step, loss, tokens, seconds) -> None:
        self.times.append(time.perf_counter())

    @property
    def per_step(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def time_bare_steps(experiment: Experiment, task: Task) -> float:
    training = experiment.config.training
    model = make_model(experiment, task).train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batches = task.batches("train", batch_size=training.batch_size, seed=0)
    in_memory, clock = list(itertools.islice(batches, training.steps)), Clock()
    for batch in in_memory:
        with torch.autocast("cpu", torch.bfloat16, enabled=training.precision == "bf16"):
            logits = model(
                input_ids=batch.inputs["input_ids"], attention_mask=batch.inputs["attention_mask"]
            ).logits
        torch.nn.functional.cross_entropy(logits.float(), batch.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.on_step(0, None, 0, 0.0)
    return clock.per_step


def time_loop(experiment: Experiment, task: Task) -> float:
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
    time_bare_steps(experiment, task)  # warm-up
    times = [
        (time_bare_steps(experiment, task), time_loop(experiment, task)) for _ in range(rounds)
    ]
    bare, loop = (statistics.median(x) for x in zip(*times, strict=True))
    tokens = batch * _mean_length(task)
    print(f"{mechanism} batch {batch}: bare {1e3 * bare:.1f} ms, overhead {1 - bare / loop:+.1%}")
    return {
        "mechanism": mechanism,
        "batch": batch,
        "length": task.length,
        "precision": training.precision,
        "steps": steps,
        "rounds": [{"bare": a, "loop": b} for a, b in times],
        "bare_seconds_per_step": bare,
        "loop_seconds_per_step": loop,
        "bare_tokens_per_second": tokens / bare,
        "loop_tokens_per_second": tokens / loop,
    }


def _mean_length(task: Task) -> float:
    batches = itertools.islice(task.batches("train", batch_size=32), 100)
    return statistics.mean(float(batch.inputs["attention_mask"].sum()) / 32 for batch in batches)


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
    write_record(record, args.out)


if __name__ == "__main__":
    main()
