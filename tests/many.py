"""Runs in several processes; one launch executes a list of cases.

A case is `{"runs": ..., "cache": ..., "mechanism": ...}` and optionally `changes`, `parallel`,
`tokens` (use the copying task), `stream` (name of a toy stream) with its `options`, `toy` (class of
`toy_heads`), `kill` (step at which the main process is killed) and `blind` (other processes find no
cache).
"""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import tiny
from longspan.training import Callback

COPYING = {"train": 60, "validation": 10, "test": 11, "length": 20, "count": 4, "symbols": 5}
NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_dropout": 0.0}


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start(server, number, cases, folder):
    """Start processes with torchrun's environment; return them with their output files."""
    port, started = str(free_port()), []
    for rank in range(number):
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(number)}
        environment = {**shared, "LOCAL_WORLD_SIZE": str(number), "OMP_NUM_THREADS": "1"}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        log = Path(folder) / f"{port}-{rank}.log"
        process = server.Process(target=main, args=(environment, cases, str(log)))
        process.start()
        started.append((process, log))
    return started


def join(started):
    """Wait for all processes; return their exit codes and outputs."""
    for process, _ in started:
        process.join(240)
    return [process.exitcode for process, _ in started], [log.read_text() for _, log in started]


def launch(server, number, cases, folder):
    """Run the cases in several processes; return their outputs."""
    codes, outputs = join(start(server, number, cases, folder))
    assert not any(codes), "\n".join(outputs)
    return outputs


def torchrun(number, command):
    """Return a torchrun command line."""
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
    """Start a command and capture its output."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill_child(process):
    """Kill one of the child processes of torchrun."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)


class KillAtStep(Callback):
    """Callback that kills its own process at a step."""

    def __init__(self, step):
        self.step = step

    def on_step(self, step, loss, tokens, seconds):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def prepare(case):
    """Return the experiment of a case and its open task."""
    from longspan.tasks import build, configure

    cache = Path(case["cache"])
    experiment = tiny.experiment(
        case["mechanism"], changes={**NO_DROPOUT, **case.get("changes", {})}
    )
    if "stream" in case:
        return prepare_stream(experiment, cache, case["stream"], case.get("options", {}))
    if "toy" in case:
        return prepare_toy(experiment, cache, case["toy"])
    if not case.get("tokens"):
        return experiment, tiny.listops(cache)
    task = build("copying", COPYING)
    task.open(cache)
    config = dataclasses.replace(experiment.config, task=configure("copying", COPYING))
    return dataclasses.replace(experiment, config=config), task


def prepare_stream(experiment, cache, name, options):
    """Return the experiment on a toy stream, and the open task, which is registered."""
    from longspan.tasks import TASKS, build, configure
    from toy_streams import STREAMS

    TASKS.setdefault(name, STREAMS[name])
    task = build(name, options)
    task.open(cache)
    config = dataclasses.replace(experiment.config, task=configure(name, options))
    return dataclasses.replace(experiment, config=config), task


def prepare_toy(experiment, cache, name):
    """Return the experiment on the small task of a head, and the open task, which is registered."""
    import toy_heads
    from longspan.tasks import TASKS, build, configure

    cls = getattr(toy_heads, name)
    TASKS.setdefault(cls.info.name, cls)
    task = build(cls.info.name, {})
    task.open(cache)
    config = dataclasses.replace(experiment.config, task=configure(cls.info.name, {}))
    return dataclasses.replace(experiment, config=config), task


def run_grid(changes, paths):
    """Run a grid; every process but the main one lists it in reverse order."""
    from longspan.arena import arena
    from longspan.arena.callbacks import GridCallback

    experiments = [tiny.experiment(changes={**NO_DROPOUT, **x}) for x in changes]
    results, failed = arena(
        experiments[:: 1 if os.environ["RANK"] == "0" else -1], paths, GridCallback()
    )
    for result in results:
        sys.stdout.write(f"ended {result.filename}\n")
    for item in failed:
        sys.stdout.write(f"failed {item.name}: {item.reason}\n")


def run_case(case):
    """Run one case in this process."""
    from longspan.arena import run
    from longspan.errors import LongspanError

    paths = tiny.paths(case["runs"], case["cache"])
    paths = dataclasses.replace(paths, parallel=case.get("parallel"))
    if case.get("blind") and os.environ["RANK"] != "0":
        paths = dataclasses.replace(paths, cache=Path(__file__) / "no folder")
    if "grid" in case:
        run_grid(case["grid"], paths)
        return None
    callback = KillAtStep(case["kill"]) if case.get("kill") else None
    try:
        return run(*prepare(case), paths, callback)
    except LongspanError as error:
        sys.stdout.write(f"rejected: {error}\n")


def print_write(event, arguments):
    """Print every change that this process makes in a runs folder."""
    writes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
    writes |= event == "open" and bool(set("wax+") & set(str(arguments[1] or "")))
    if writes and "/runs/" in str(arguments[0]):
        sys.stdout.write(f"wrote: {arguments[0]}\n")


def main(environment, cases, log):
    """Run the cases in a started process."""
    import torch

    os.environ.update(environment)
    torch.set_num_threads(1)
    with Path(log).open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    if environment["RANK"] != "0":
        sys.addaudithook(print_write)
    for case in cases:
        run_case(case)
        sys.stdout.flush()
