"""Code of `RayExecutor` that runs in the processes of a cluster."""

import functools
import socket
from typing import Any

import torch

from longspan import __version__
from longspan.arena.executors.events import Event, EventSender
from longspan.arena.executors.outcomes import RunOutcome, skip_experiment
from longspan.arena.executors.runner import ExperimentRunner
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.plugins import Plugin, restore_plugins
from longspan.arena.run import train


class EventQueue:
    """Actor that keeps the events of all runs until the driver takes them."""

    def __init__(self) -> None:
        """Start empty."""
        self.events: list[tuple[int, Event]] = []

    def put(self, index: int, event: Event) -> None:
        """Add an event of run `index`."""
        self.events.append((index, event))

    def take(self) -> list[tuple[int, Event]]:
        """Remove and return all events."""
        taken, self.events = self.events, []
        return taken


def run_on_node(
    index: int,
    experiment: Experiment,
    paths: RunPaths,
    driver: tuple[str, str],
    plugins: tuple[Plugin, ...],
    threads: int,
    queue: Any,
) -> RunOutcome:
    """Train and score an experiment; the driver writes the record.

    Args:
        index: position of the experiment, from 0.
        experiment: the experiment to run.
        paths: paths on this node.
        driver: the driver's longspan version and hash of the experiment.
        plugins: the driver's plug-ins.
        threads: number of threads for this run.
        queue: handle of the `EventQueue`.

    Raises:
        PluginError: a plug-in cannot be loaded on this node.
    """
    restore_plugins(plugins, paths.cache)
    if (here := (__version__, experiment.hash)) != driver:
        return skip_experiment(
            experiment,
            f"{socket.gethostname()} has another longspan ({' '.join(here)}) than the driver "
            f"({' '.join(driver)}); install the same version on every node",
        )
    torch.set_num_threads(threads)
    put = functools.partial(_put_event, queue, index)
    runner = _get_runner(paths)
    put(("start", (runner.device,)))
    runner.on_build = lambda *progress: put(("build", progress))
    return runner.run(experiment, EventSender(put), train)


@functools.cache
def _get_runner(paths: RunPaths) -> ExperimentRunner:
    """Return the runner of this process, which Ray reuses for later runs."""
    return ExperimentRunner(paths, lambda *_: None)


def _put_event(queue: Any, index: int, event: Event) -> None:
    queue.put.remote(index, event)
