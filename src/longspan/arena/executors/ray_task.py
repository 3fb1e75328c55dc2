"""The other side of `Ray`: what runs in a process of a cluster."""

import functools
import socket
from typing import Any

import torch

from longspan import __version__
from longspan.arena.executors.base import Bench, Outcome, skipped
from longspan.arena.executors.events import Message, Reporter
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.run import trained


class Mailbox:
    """An actor in which runs leave news for the driver."""

    def __init__(self) -> None:
        """Empty."""
        self.messages: list[tuple[int, Message]] = []

    def post(self, number: int, message: Message) -> None:
        """Leave news of a run."""
        self.messages.append((number, message))

    def take(self) -> list[tuple[int, Message]]:
        """What has come since the last time."""
        taken, self.messages = self.messages, []
        return taken


def work(
    number: int,
    experiment: Experiment,
    paths: RunPaths,
    driver: tuple[str, str],
    threads: int,
    mailbox: Any,
) -> Outcome:
    """Train and score an experiment; its record goes back to the driver, which writes it.

    Args:
        number: of the experiment, from 0.
        experiment: what to run.
        paths: on this node.
        driver: version of longspan there, and the experiment's hash.
        threads: for this run.
        mailbox: a handle of `Mailbox`.
    """
    if (here := (__version__, experiment.hash)) != driver:
        return skipped(
            experiment,
            f"{socket.gethostname()} has another longspan ({' '.join(here)}) than the driver "
            f"({' '.join(driver)}); install the same on every node",
        )
    torch.set_num_threads(threads)
    post = functools.partial(_post, mailbox, number)
    bench = _bench(paths)
    post(("starts", (bench.device,)))
    bench.building = lambda *progress: post(("building", progress))
    return bench.attempt(experiment, Reporter(post), trained)


@functools.cache
def _bench(paths: RunPaths) -> Bench:
    """One for the process, which Ray uses for one run after the other."""
    return Bench(paths, lambda *_: None)


def _post(mailbox: Any, number: int, message: Message) -> None:
    mailbox.post.remote(number, message)
