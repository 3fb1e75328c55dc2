"""Several processes on this machine, each at one run at a time.

A process that is killed takes one run with it, not the grid: the run is started again from its
last checkpoint, and if it dies again, that is its record.
"""

import collections
import contextlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from longspan.arena.executors.base import GridCallback, Kind, Outcome, failed, view
from longspan.arena.executors.events import tell
from longspan.arena.executors.worker_process import serve
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.errors import OptionError, RunError

logger = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE = 5.0  # seconds that a process may take to end when it is asked to
KILLED = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))  # count what the kernel kills


class Workers:
    """`--workers N`: processes that share the machine's threads and GPUs."""

    def __init__(self, count: int):
        """Run so many experiments at a time.

        Raises:
            OptionError: the count is no positive whole number.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise OptionError(f"--workers takes a whole number, 1 or more, got {count!r}")
        self.count = count

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Hand them out in their order."""
        crew = _Crew(min(self.count, len(experiments)), experiments, paths, callback)
        try:
            yield from crew.work()
        finally:
            crew.end()


class _Crew:
    """The processes of one grid, and what each is at."""

    def __init__(self, count, experiments, paths, callback):
        self.experiments, self.paths, self.callback = experiments, paths, callback
        self.waiting = collections.deque(range(len(experiments)))
        self.deaths: collections.Counter[int] = collections.Counter()
        self.steps: dict[int, int] = {}
        self.threads = max(1, torch.get_num_threads() // max(1, count))
        cards = visible_gpus() if paths.device != "cpu" else []
        self.workers = [
            _Worker(paths, self.threads, cards[slot % len(cards)] if cards else None)
            for slot in range(count)
        ]

    def work(self) -> Iterator[tuple[int, Outcome]]:
        """Until every experiment has ended."""
        for worker in self.workers:
            self._hand_out(worker)
        while busy := [worker for worker in self.workers if worker.number is not None]:
            heard = wait([part for worker in busy for part in worker.parts])
            for worker in busy:
                if not any(part in heard for part in worker.parts):
                    continue
                for outcome in self._outcomes(worker):
                    yield outcome
                    self._hand_out(worker)

    def _outcomes(self, worker: "_Worker") -> Iterator[tuple[int, Outcome]]:
        """What a worker has said, and whether its run has ended with it, or with its process."""
        alive, was_at = worker.alive, worker.number
        for kind, number, value in worker.messages():
            if kind == "building":
                self.callback.on_build(*value)
            elif kind == "news":
                if step := tell(view(self.callback, number + 1), value):
                    self.steps[number] = step
            elif kind == "ready":
                worker.device = value
            elif kind == "ended":
                worker.number = None
                yield number, value
        # By now it may be at another run, in a process of its own.
        if not alive and was_at is not None and worker.number == was_at:
            worker.number = None
            yield from self._died(was_at, worker)

    def _died(self, number: int, worker: "_Worker") -> Iterator[tuple[int, Outcome]]:
        """Start a run again whose process has died, once."""
        ended_by, of_memory = worker.ended_by(), worker.killed_for_memory()
        if not any(one.device for one in self.workers):
            raise RunError(f"a process of --workers could not start ({ended_by}); see above")
        self.deaths[number] += 1
        experiment = self.experiments[number]
        what = f"its process ended without a word ({ended_by})"
        if of_memory:
            what = f"its process was killed for using too much memory ({ended_by})"
        if self.deaths[number] == 1:
            logger.warning("%s: %s; started again from its checkpoint", experiment.name, what)
            self.waiting.appendleft(number)
            self._hand_out(worker)
            return
        reason = f"{what}, twice; use fewer workers or raise train.accumulate"
        kind: Kind = "memory" if of_memory else "died"
        yield number, failed(experiment, kind, reason, self.steps.get(number), worker.device)

    def _hand_out(self, worker: "_Worker") -> None:
        if not self.waiting or worker.number is not None:
            return
        number = self.waiting.popleft()
        experiment = self.experiments[number]
        if not self.deaths[number]:
            self.callback.on_run_begin(number + 1, len(self.experiments), experiment)
        worker.give(number, experiment)

    def end(self) -> None:
        """Ask the processes to end, then make them."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join()


class _Worker:
    """A process, the pipe to it, and the number of the run that it is at."""

    pipe: Connection

    def __init__(self, paths: RunPaths, threads: int, card: str | None):
        self.paths, self.threads, self.card = paths, threads, card
        self.number: int | None = None
        self.device: str | None = None  # what its processes have told, once one was ready
        self.process: Any = None  # until there is something for it to do

    def start(self) -> None:
        """A process of its own, that sees its GPU alone before it looks for any."""
        # Forked from a server that has imported everything, unless what is imported looks at GPUs.
        method = "spawn" if self.card is not None else "forkserver"
        known = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(method if method in known else "spawn")
        if method == "forkserver":
            context.set_forkserver_preload([serve.__module__, "longspan.arena.record"])
        if self.process is not None:
            self.pipe.close()
        self.kills = _kills()
        self.pipe, theirs = context.Pipe()
        given = (theirs, self.paths, self.threads)
        self.process = context.Process(target=serve, args=given, daemon=True)
        with _environment(self.threads, self.card):
            self.process.start()
        theirs.close()

    @property
    def parts(self) -> list[Any]:
        """What can be waited for."""
        return [self.pipe, self.process.sentinel]

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process is not None and self.process.is_alive()

    def give(self, number: int, experiment: Experiment) -> None:
        """Let it run an experiment; that it dies is found out where it is waited for."""
        if not self.alive:
            self.start()
        self.number = number
        with contextlib.suppress(OSError):
            self.pipe.send((number, experiment))

    def messages(self) -> Iterator[tuple[str, int, Any]]:
        """All that it has said until now."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            # Its end of the pipe is closed: so is the process, in a moment.
            self.process.join(PATIENCE)

    def ended_by(self) -> str:
        """How the process ended, in words."""
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def killed_for_memory(self) -> bool:
        """Whether the kernel killed a process for memory while this one ran, and this one died."""
        return self.process.exitcode == -signal.SIGKILL and _kills() > self.kills

    def stop(self) -> None:
        """Ask it to end."""
        if self.process is not None:
            self.process.terminate()

    def join(self) -> None:
        """See it end, whether it wants to or not."""
        if self.process is not None:
            self.process.join(PATIENCE)
            self.process.kill()
            self.process.join()
            self.pipe.close()


@contextlib.contextmanager
def _environment(threads: int, card: str | None) -> Iterator[None]:
    """The environment that a process begins with."""
    own = {"OMP_NUM_THREADS": str(threads), **({} if card is None else {VISIBLE: card})}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def visible_gpus() -> list[str]:
    """The GPUs of this process, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = [card for card in os.environ.get(VISIBLE, "").split(",") if card]
    return (named or [str(card) for card in range(count)])[:count]


def _kills() -> int:
    """Processes that the kernel has killed for memory, in this container or on this machine."""
    for file in KILLED:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0
