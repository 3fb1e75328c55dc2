"""Runs of several processes: one launch works through a list of cases.

    torchrun --nproc-per-node 2 tests/many.py CASES.json

A case is `{"runs": ..., "cache": ..., "mechanism": ...}` and, if need be, `changes`, `parallel`,
`tokens` (the copying task) and `kill` (the step after which the main process is killed).
"""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import tiny

COPYING = {"train": 60, "validation": 10, "test": 11, "length": 20, "count": 4, "symbols": 5}
DRY = {"model.dropout": 0.0, "model.attention_dropout": 0.0}


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start(number, cases, folder, **environment):
    """One process of the interpreter for each rank, as torchrun would start them."""
    path = Path(folder) / "cases.json"
    path.write_text(json.dumps(cases))
    shared = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return [
        subprocess.Popen(
            [sys.executable, __file__, str(path)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(number)
    ]


def launch(number, cases, folder):
    """Run the cases in so many processes; what each of them printed."""
    processes = start(number, cases, folder)
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return outputs


class Killer:
    """A watcher that ends its process after a step."""

    def __init__(self, step):
        self.step = step

    def stepped(self, step, loss, tokens, seconds):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluated(self, point):
        pass


def prepared(case):
    """The experiment of a case and its open task."""
    from longspan.arena import TaskSpec
    from longspan.tasks import build

    cache = Path(case["cache"])
    made = tiny.experiment(case["mechanism"], changes={**DRY, **case.get("changes", {})})
    if not case.get("tokens"):
        return made, tiny.listops(cache)
    task = build("copying", COPYING)
    task.open(cache)
    return dataclasses.replace(made, task=TaskSpec(name="copying", options=COPYING)), task


def work(case):
    """One case in this process."""
    from longspan.arena import run
    from longspan.errors import LongspanError

    places = tiny.places(case["runs"], case["cache"])
    places = dataclasses.replace(places, parallel=case.get("parallel"))
    watcher = Killer(case["kill"]) if case.get("kill") else None
    try:
        return run(*prepared(case), places, watcher)
    except LongspanError as error:
        sys.stdout.write(f"refused: {error}\n")


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    for one in json.loads(Path(sys.argv[1]).read_text()):
        work(one)
