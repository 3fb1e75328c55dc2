"""The worker process of `WorkerPoolExecutor`."""

import functools
import signal
from multiprocessing.connection import Connection

import torch

from longspan.arena.executors.events import Event, EventSender
from longspan.arena.executors.runner import ExperimentRunner
from longspan.arena.paths import RunPaths
from longspan.arena.plugins import Plugin, restore_plugins
from longspan.processes import exit_with_parent


def serve_experiments(
    pipe: Connection, paths: RunPaths, threads: int, plugins: tuple[Plugin, ...]
) -> None:
    """Load plug-ins, receive `(index, experiment)` pairs until None, and run each.

    Sends ("ready", 0, device name) first; then, of each run, any number of
    ("build", 0, progress) and ("event", index, event), and ("outcome", index, outcome) last.
    """
    # Ctrl-C reaches every process of a terminal; the parent stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    exit_with_parent()
    torch.set_num_threads(threads)
    restore_plugins(plugins, paths.cache)
    runner = ExperimentRunner(paths, lambda *progress: pipe.send(("build", 0, progress)))
    pipe.send(("ready", 0, runner.device))
    try:
        while (job := pipe.recv()) is not None:
            index, experiment = job
            sender = EventSender(functools.partial(_send_event, pipe, index))
            pipe.send(("outcome", index, runner.run(experiment, sender)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass


def _send_event(pipe: Connection, index: int, event: Event) -> None:
    pipe.send(("event", index, event))


def _interrupt(*_: object) -> None:
    # As after Ctrl-C, locks and files are released on the way out.
    raise KeyboardInterrupt
