"""Runs of several processes: one launch works through a list of cases.

A case is `{"runs": ..., "cache": ..., "mechanism": ...}` and, if need be, `changes`, `parallel`,
`tokens` (the copying task), `kill` (the step at which the main process is killed) and `blind` (the
others find no cache).
"""

import dataclasses
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


def start(server, number, cases, folder):
    """Processes of `tiny.server()` told what torchrun would tell them, and their output files."""
    port, started = str(free_port()), []
    for rank in range(number):
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(number)}
        told = {**shared, "LOCAL_WORLD_SIZE": str(number), "OMP_NUM_THREADS": "1"}
        told |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        log = Path(folder) / f"{port}-{rank}.log"
        process = server.Process(target=main, args=(told, cases, str(log)))
        process.start()
        started.append((process, log))
    return started


def ended(started):
    """Exit codes and outputs, once all have ended."""
    for process, _ in started:
        process.join(240)
    return [process.exitcode for process, _ in started], [log.read_text() for _, log in started]


def launch(server, number, cases, folder):
    """Run the cases in so many processes; what each of them printed."""
    codes, outputs = ended(start(server, number, cases, folder))
    assert not any(codes), "\n".join(outputs)
    return outputs


def torchrun(number, command):
    """The launcher of torch around a command."""
    port = ["--master-addr", "localhost", "--master-port", str(free_port())]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *port,
        "--nproc-per-node",
        str(number),
        *command,
    ]


def popen(command):
    """Start a command whose output is read at its end."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill_child(process):
    """Kill one of the processes that a launcher has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)


class Killer:
    """A callback that ends its process after a step."""

    def __init__(self, step):
        self.step = step

    def on_train_begin(self, steps): ...

    def on_step(self, step, loss, tokens, seconds):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_evaluate(self, point):
        pass

    def on_alarm(self, alarm):
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


def grid(changes, paths):
    """A grid in this process; every process but the main one lists it the other way round."""
    from callbacks import Quiet

    from longspan.arena import arena

    made = [tiny.experiment(changes={**DRY, **x}) for x in changes]
    results, failed = arena(made[:: 1 if os.environ["RANK"] == "0" else -1], paths, Quiet())
    for result in results:
        sys.stdout.write(f"ended {result.filename}\n")
    for item in failed:
        sys.stdout.write(f"failed {item.name}: {item.reason}\n")


def work(case):
    """One case in this process."""
    from longspan.arena import run
    from longspan.errors import LongspanError

    paths = tiny.paths(case["runs"], case["cache"])
    paths = dataclasses.replace(paths, parallel=case.get("parallel"))
    if case.get("blind") and os.environ["RANK"] != "0":
        paths = dataclasses.replace(paths, cache=Path(__file__) / "no folder")
    if "grid" in case:
        grid(case["grid"], paths)
        return None
    callback = Killer(case["kill"]) if case.get("kill") else None
    try:
        return run(*prepared(case), paths, callback)
    except LongspanError as error:
        sys.stdout.write(f"refused: {error}\n")


def tell_of_writing(event, arguments):
    """Print what this process changes below a folder of runs."""
    writes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
    writes |= event == "open" and bool(set("wax+") & set(str(arguments[1] or "")))
    if writes and "/runs/" in str(arguments[0]):
        sys.stdout.write(f"wrote: {arguments[0]}\n")


def main(told, cases, log):
    """Work through the cases in a started process."""
    import torch

    os.environ.update(told)
    torch.set_num_threads(1)
    with Path(log).open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    if told["RANK"] != "0":
        sys.addaudithook(tell_of_writing)
    for case in cases:
        work(case)
        sys.stdout.flush()
