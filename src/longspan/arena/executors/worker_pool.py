"""Executor for several processes of this machine.

A killed worker process loses one run at most: the run restarts from its last checkpoint in a new
process. A run whose process dies twice is recorded as failed.
"""

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from longspan.arena.callbacks import GridCallback
from longspan.arena.executors.base import Outcomes, RunOutcome
from longspan.arena.executors.runner import ExperimentRunner, RemoteGrid
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.plugins import Plugin, loaded_plugins, restore_plugins
from longspan.arena.run import run
from longspan.bounds import MOST_WORKERS, check_range
from longspan.errors import OptionError, RunError
from longspan.processes import exit_with_parent

logger = logging.getLogger(__name__)

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_EXIT_SECONDS = 5.0  # for a worker to exit by itself before it is killed
OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


class WorkerPoolExecutor:
    """Runs experiments in N worker processes that share the machine's cores and GPUs.

    GPUs are assigned round-robin. A worker process that is killed is replaced.
    """

    def __init__(self, count: int):
        """Run at most `count` experiments at a time.

        Raises:
            OptionError: the count is no integer, or out of range.
        """
        if isinstance(count, bool) or not isinstance(count, int):
            raise OptionError(f"--workers must be an integer, got {count!r}")
        check_range("--workers", count, 1, MOST_WORKERS)
        self.count = count

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Outcomes:
        """Yield the position and outcome of each experiment; see `Executor`."""
        pool = _WorkerPool(min(self.count, len(experiments)), experiments, paths, callback)
        try:
            yield from pool.run()
        finally:
            pool.stop()


class _WorkerPool(RemoteGrid):
    """The worker processes of one grid and the runs assigned to them."""

    def __init__(self, count, experiments, paths, callback):
        super().__init__(experiments, callback)
        threads = max(1, torch.get_num_threads() // max(1, count))
        gpus = list_visible_gpus() if paths.device != "cpu" else []
        self.workers = [
            _Worker(paths, threads, gpus[slot % len(gpus)] if gpus else None)
            for slot in range(count)
        ]

    def run(self) -> Iterator[tuple[int, RunOutcome]]:
        """Yield outcomes until every experiment has one."""
        for worker in self.workers:
            self._assign(worker)
        while busy := [worker for worker in self.workers if worker.index is not None]:
            ready = wait([source for worker in busy for source in worker.sources])
            for worker in busy:
                if not any(source in ready for source in worker.sources):
                    continue
                for outcome in self._receive(worker):
                    yield outcome
                    self._assign(worker)

    def _receive(self, worker: "_Worker") -> Iterator[tuple[int, RunOutcome]]:
        """Handle a worker's messages, and its death; yield the outcomes among them."""
        was_alive, assigned = worker.is_alive, worker.index
        for index, message in worker.receive():
            if isinstance(message, tuple):
                self.handle(index, message)
            else:
                worker.index = None
                yield index, message
        # After an outcome the worker may have a new run, in a new process.
        if not was_alive and assigned is not None and worker.index == assigned:
            worker.index = None
            yield from self._handle_death(assigned, worker)

    def _handle_death(self, index: int, worker: "_Worker") -> Iterator[tuple[int, RunOutcome]]:
        """Restart a run whose process died; after a second death, yield a failure."""
        exit_reason, is_memory = worker.describe_exit(), worker.was_killed_for_memory()
        if not self.devices:
            raise RunError(
                f"a worker process could not start ({exit_reason}); its error is printed above"
            )
        cause = f"its process died unexpectedly ({exit_reason})"
        if is_memory:
            cause = f"its process was killed for using too much memory ({exit_reason})"
        if self.restart(index):
            name = self.experiments[index].name
            logger.warning("%s: %s; restarted from its checkpoint", name, cause)
            self._assign(worker)
            return
        reason = f"{cause}, twice; use fewer workers or raise training.gradient_accumulation_steps"
        yield index, self.fail(index, reason, is_memory=is_memory)

    def _assign(self, worker: "_Worker") -> None:
        """Give the next run to a worker that has none."""
        if worker.index is not None or not self.pending:
            return
        index = self.pending.popleft()
        self.begin(index)
        worker.submit(index, self.experiments[index])

    def stop(self) -> None:
        """Stop all worker processes."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.join()


class _Worker:
    """A worker process, the pipe to it, and the index of its run."""

    pipe: Connection

    def __init__(self, paths: RunPaths, threads: int, gpu: str | None):
        self.paths, self.threads, self.gpu = paths, threads, gpu
        self.index: int | None = None
        self.process: Any = None  # started with the first run

    def start(self) -> None:
        """Start a process that sees its own GPU only."""
        # The forkserver has imported everything. With a GPU, each process must see its
        # environment before it imports torch.
        method = "spawn" if self.gpu is not None else "forkserver"
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(method if method in methods else "spawn")
        if method == "forkserver":
            preload = [serve_experiments.__module__, "longspan.arena.record"]
            context.set_forkserver_preload(preload)
        if self.process is not None:
            self.pipe.close()
        self.oom_kills = _count_oom_kills()
        self.pipe, child_pipe = context.Pipe()
        arguments = (child_pipe, self.paths, self.threads, loaded_plugins())
        self.process = context.Process(target=serve_experiments, args=arguments, daemon=True)
        with _worker_environment(self.threads, self.gpu):
            self.process.start()
        child_pipe.close()

    @property
    def sources(self) -> list[Any]:
        """Objects to wait for: the pipe and the end of the process."""
        return [self.pipe, self.process.sentinel]

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self.process is not None and self.process.is_alive()

    def submit(self, index: int, experiment: Experiment) -> None:
        """Send an experiment to the process, which is started if necessary."""
        if not self.is_alive:
            self.start()
        self.index = index
        # A process that has died meanwhile is noticed by whatever waits for it.
        with contextlib.suppress(OSError):
            self.pipe.send((index, experiment))

    def receive(self) -> Iterator[tuple[int, Any]]:
        """Yield the messages that have arrived."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            # The process closed its end of the pipe, so it is about to exit.
            self.process.join(_EXIT_SECONDS)

    def describe_exit(self) -> str:
        """Return the signal or exit code that the process ended with."""
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def was_killed_for_memory(self) -> bool:
        """Return whether the kernel killed a process for memory, and probably this one."""
        killed = self.process.exitcode == -signal.SIGKILL
        return killed and _count_oom_kills() > self.oom_kills

    def terminate(self) -> None:
        """Ask the process to exit."""
        if self.process is not None:
            self.process.terminate()

    def join(self) -> None:
        """Wait for the process to exit; kill it after a few seconds."""
        if self.process is not None:
            self.process.join(_EXIT_SECONDS)
            self.process.kill()
            self.process.join()
            self.pipe.close()


@contextlib.contextmanager
def _worker_environment(threads: int, gpu: str | None) -> Iterator[None]:
    """Set the environment variables that a worker process inherits."""
    changes = {"OMP_NUM_THREADS": str(threads), **({} if gpu is None else {_VISIBLE_GPUS: gpu})}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def list_visible_gpus() -> list[str]:
    """Return the GPUs of this process, named as in `CUDA_VISIBLE_DEVICES`."""
    count = torch.cuda.device_count()
    gpus = [gpu for gpu in os.environ.get(_VISIBLE_GPUS, "").split(",") if gpu]
    return (gpus or [str(gpu) for gpu in range(count)])[:count]


def _count_oom_kills() -> int:
    """Return how many processes the kernel has killed for memory, in this container or machine."""
    for file in OOM_COUNTERS:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def serve_experiments(
    pipe: Connection, paths: RunPaths, threads: int, plugins: tuple[Plugin, ...]
) -> None:
    """Load plug-ins, receive `(index, experiment)` pairs until None, and run each.

    Sends `(index, event)` for each event of a run, and `(index, outcome)` last.
    """
    # Ctrl-C reaches every process of a terminal; the parent stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    exit_with_parent()
    torch.set_num_threads(threads)
    restore_plugins(plugins, paths.cache)
    runner = ExperimentRunner(paths, lambda *_: None)
    try:
        while (job := pipe.recv()) is not None:
            index, experiment = job
            outcome = runner.serve(experiment, functools.partial(_send, pipe, index), run)
            _send(pipe, index, outcome)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass


def _send(pipe: Connection, *message: object) -> None:
    pipe.send(message)


def _interrupt(*_: object) -> None:
    # As after Ctrl-C, locks and files are released on the way out.
    raise KeyboardInterrupt
