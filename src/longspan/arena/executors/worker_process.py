"""The other side of `Workers`: a process that is given experiments until it is told to end."""

import functools
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection

import torch

from longspan.arena.executors.base import Bench
from longspan.arena.executors.events import Reporter
from longspan.arena.paths import RunPaths


def serve(pipe: Connection, paths: RunPaths, threads: int) -> None:
    """Answer each `(number, experiment)` with ("ended", number, outcome), after news of it.

    The first word of all is ("ready", 0, device), the device as a record has it.
    """
    # Ctrl-C reaches every process of a terminal: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    bench = Bench(paths, lambda *progress: pipe.send(("building", 0, progress)))
    pipe.send(("ready", 0, bench.device))
    try:
        while (given := pipe.recv()) is not None:
            number, experiment = given
            reporter = Reporter(functools.partial(_news, pipe, number))
            pipe.send(("ended", number, bench.attempt(experiment, reporter)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass


def _news(pipe: Connection, number: int, message: object) -> None:
    pipe.send(("news", number, message))


def _stop(*_: object) -> None:
    # What is held is let go of, as after Ctrl-C in one process.
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """A parent that was killed leaves no process behind that trains on."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
