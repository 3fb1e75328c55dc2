"""Many machines: runs as tasks of a Ray cluster.

Records come back to the driver as data, and the driver alone writes them: nothing is lost and
nothing is there twice, with or without a file system that the nodes share. Checkpoints stay where
they were made: with a shared file system a run continues on whatever node; without one, on its own.

Nodes have longspan installed; a driver in a working tree of longspan ships that tree to them.
"""

import collections
import contextlib
import dataclasses
import logging
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from longspan import __version__
from longspan.arena.executors.base import GridCallback, Kind, Outcome, failed, skipped, view
from longspan.arena.executors.events import Message, tell
from longspan.arena.executors.ray_task import Mailbox, work
from longspan.arena.experiment import Experiment
from longspan.arena.lock import held
from longspan.arena.paths import RunPaths
from longspan.arena.resume import checked
from longspan.arena.run import save
from longspan.errors import BusyError, LongspanError, OptionError, RunError
from longspan.results import Result

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[2]
TICK = 0.5  # seconds between two looks at the mailbox
REACHED = 5.0  # seconds to connect to a cluster
MISSED = 3  # looks in a row at a cluster that does not answer, until it is gone
LOOK = 2.0  # seconds between two of them
TRIES = {"NodeDiedError": 4}  # of a run whose node is lost; of one whose process dies: two
OBJECTS = 100 << 20  # bytes of the object store of a cluster made here: records are small


class Ray:
    """`--ray ADDRESS`: an existing cluster, or ("local") one made of this machine."""

    def __init__(
        self, address: str, *, cpus_per_run: float = 1.0, gpus_per_run: float | None = None
    ):
        """Use the cluster at an address; nothing is contacted yet.

        Args:
            address: "auto" (the one started here), "local", HOST:PORT or ray://HOST:PORT.
            cpus_per_run: CPUs that a run takes, and its threads.
            gpus_per_run: GPUs, or a fraction of one; None: one where there are some.

        Raises:
            OptionError: Ray is not installed, or a value cannot be used.
        """
        try:
            import ray
        except ImportError as error:
            raise OptionError("--ray needs Ray; pip install 'longspan[ray]'") from error
        if cpus_per_run <= 0:
            raise OptionError(f"--cpus-per-run is positive, got {cpus_per_run}")
        if gpus_per_run is not None and gpus_per_run < 0:
            raise OptionError(f"--gpus-per-run is 0 or more, got {gpus_per_run}")
        self.ray, self.address = ray, address
        self.cpus, self.gpus = cpus_per_run, gpus_per_run
        self.door = _door(address)

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Submit them in their order, a few more than fit at a time."""
        mine = not self.ray.is_initialized()
        if mine:
            self._connect()
        gone = False
        try:
            flight = _Flight(self, experiments, paths, callback)
            try:
                yield from flight.work()
            finally:
                flight.release()
                gone = flight.gone
        finally:
            if mine and not gone:
                self.ray.shutdown()

    def _connect(self) -> None:
        local = self.address == "local"
        own: dict[str, Any] = {"object_store_memory": OBJECTS, "include_dashboard": False}
        try:
            if self.door is not None:
                _knock(self.door, REACHED)
            self.ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(own if local else {"runtime_env": _shipped()}),
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise RunError(
                f"no Ray cluster answers at {self.address} ({reason}); start one with `ray start "
                "--head`, or use --ray local; one with tokens wants RAY_AUTH_MODE=token"
            ) from error


class _Flight:
    """The runs of one grid on a cluster."""

    def __init__(self, executor, experiments, paths, callback):
        self.ray, self.address = executor.ray, executor.address
        self.experiments, self.paths, self.callback = experiments, paths, callback
        self.cpus, self.gpus = executor.cpus, self._gpus(executor.gpus)
        self.door = executor.door or _door(self.ray.get_runtime_context().gcs_address)
        self.waiting = collections.deque(range(len(experiments)))
        self.flying: dict[Any, int] = {}
        self.locks: dict[int, contextlib.ExitStack] = {}
        self.deaths: collections.Counter[int] = collections.Counter()
        self.started: set[int] = set()
        self.steps: dict[int, int] = {}
        self.devices: dict[int, str] = {}
        self.missed, self.looked, self.gone = 0, time.monotonic(), False
        self.mailbox = self.ray.remote(num_cpus=0, max_restarts=-1)(Mailbox).remote()
        self.remote = self.ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(work)
        # Where the driver is has no meaning on a node.
        self.there = dataclasses.replace(
            paths,
            runs=paths.runs.absolute(),
            cache=paths.cache.absolute(),
            data=paths.data and paths.data.absolute(),
        )

    def work(self) -> Iterator[tuple[int, Outcome]]:
        """Until every experiment has ended, or the cluster has."""
        room = 2 * self._slots() + 2
        while self.waiting or self.flying:
            while self.waiting and len(self.flying) < room:
                yield from self._submit(self.waiting.popleft())
            landed, _ = self.ray.wait(list(self.flying), timeout=TICK) if self.flying else ([], [])
            self._check()
            self._hear()
            for reference in landed:
                yield from self._landed(reference, self.flying.pop(reference))

    def release(self) -> None:
        """Let go of what has not ended: whoever made the cluster may keep it."""
        for reference in () if self.gone else self.flying:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(reference, force=True)
        for lock in self.locks.values():
            lock.close()
        self.locks.clear()

    def _submit(self, number: int) -> Iterator[tuple[int, Outcome]]:
        """Submit a run, once it is this process's."""
        experiment = self.experiments[number]
        path = self.paths.record_file(experiment)
        try:
            if number not in self.locks:
                lock = contextlib.ExitStack()
                lock.enter_context(held(self.paths.run_dir(experiment), "run"))
                self.locks[number] = lock
            # Another process may have ended it in the meantime.
            there = checked(experiment, None, path) if path.exists() else None
        except LongspanError as error:
            yield self._ended(number, self._left_out(number, error))
            return
        if there is not None:
            self._starts(number)
            yield self._ended(number, there)
            return
        driver = __version__, experiment.hash
        threads = max(1, int(self.cpus))
        reference = self.remote.remote(
            number, experiment, self.there, driver, threads, self.mailbox
        )
        self.flying[reference] = number

    def _landed(self, reference: Any, number: int) -> Iterator[tuple[int, Outcome]]:
        """What a task has returned: an outcome, or that it is lost."""
        experiment, errors = self.experiments[number], self.ray.exceptions
        try:
            outcome = self.ray.get(reference)
        except errors.RayTaskError as error:
            reason = str(error.cause or error).splitlines()[-1]
            raise RunError(f"a node of {self.address} cannot run longspan: {reason}") from error
        except errors.RayError as error:
            yield from self._lost(number, error)
            return
        self._starts(number)
        if isinstance(outcome, Result):
            try:
                save(experiment, outcome, self.paths)
            except LongspanError as error:
                outcome = self._left_out(number, error)
        yield self._ended(number, outcome)

    def _lost(self, number: int, error: Exception) -> Iterator[tuple[int, Outcome]]:
        """Start a run again whose process or node has died, a few times."""
        experiment, kind = self.experiments[number], type(error).__name__
        if isinstance(error, self.ray.exceptions.LocalRayletDiedError):
            # This machine's part of the cluster has ended, whatever becomes of the rest.
            raise self._farewell() from error
        self.deaths[number] += 1
        if self.deaths[number] < TRIES.get(kind, 2):
            logger.warning("%s was lost (%s); started again", experiment.name, kind)
            self.waiting.appendleft(number)
            return
        of_memory = isinstance(error, self.ray.exceptions.OutOfMemoryError)
        reason = (
            f"its process died {self.deaths[number]} times ({kind}); give it more of a node with "
            "--cpus-per-run and --gpus-per-run, or raise train.accumulate"
        )
        what: Kind = "memory" if of_memory else "died"
        step, device = self.steps.get(number), self.devices.get(number)
        yield self._ended(number, failed(experiment, what, reason, step, device))

    def _left_out(self, number: int, error: LongspanError) -> Outcome:
        """A run that cannot be begun here, or written down; the others go on."""
        busy = isinstance(error, BusyError)
        return skipped(self.experiments[number], str(error), busy=busy)

    def _ended(self, number: int, outcome: Outcome) -> tuple[int, Outcome]:
        if number in self.locks:
            self.locks.pop(number).close()
        return number, outcome

    def _hear(self) -> None:
        """News, as far as there is any: what is lost of it is no loss."""
        try:
            messages = self.ray.get(self.mailbox.take.remote(), timeout=REACHED)
        except (self.ray.exceptions.RayError, TimeoutError):
            return
        flying = set(self.flying.values())
        for number, message in messages:
            if message[0] == "building":
                self.callback.on_build(*message[1])
            elif number in flying:
                self._starts(number)
                self._tell(number, message)

    def _tell(self, number: int, message: Message) -> None:
        if message[0] == "starts":
            (self.devices[number],) = message[1]
        elif step := tell(view(self.callback, number + 1), message):
            self.steps[number] = step

    def _starts(self, number: int) -> None:
        if number not in self.started:
            self.started.add(number)
            self.callback.on_run_begin(number + 1, len(self.experiments), self.experiments[number])

    def _check(self) -> None:
        """Look whether the cluster is there: Ray waits a minute, and then ends the process."""
        now = time.monotonic()
        if self.door is None or now - self.looked < LOOK:
            return
        self.looked = now
        try:
            _knock(self.door, LOOK)
            self.missed = 0
        except OSError as error:
            self.missed += 1
            if self.missed == MISSED:
                raise self._farewell() from error

    def _farewell(self) -> RunError:
        self.gone = True
        return RunError(
            f"the Ray cluster at {self.address} is gone; what has ended is kept, and the same "
            "command continues once there is a cluster"
        )

    def _gpus(self, wanted: float | None) -> float:
        if wanted is not None or self.paths.device == "cpu":
            return wanted or 0.0
        return 1.0 if self.ray.cluster_resources().get("GPU") else 0.0

    def _slots(self) -> int:
        """Runs that the cluster has room for at a time."""
        slots = 0
        for node in self.ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            fits = int(has.get("CPU", 0) // self.cpus)
            slots += min(fits, int(has.get("GPU", 0) // self.gpus)) if self.gpus else fits
        if not slots:
            logger.warning(
                "no node of the Ray cluster has %g CPUs and %g GPUs; waiting for one that has",
                self.cpus,
                self.gpus,
            )
        return slots


def _door(address: str) -> tuple[str, int] | None:
    """Host and port of an address; None for one that Ray finds itself.

    Raises:
        OptionError: it is no address.
    """
    if address in ("auto", "local"):
        return None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(f"--ray takes auto, local, HOST:PORT or ray://HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)


def _knock(door: tuple[str, int], seconds: float) -> None:
    socket.create_connection(door, timeout=seconds).close()


def _shipped() -> dict[str, Any]:
    """The package itself, when it is a working tree: an installed one is on the nodes."""
    from longspan.arena.record import git_commit

    return {"py_modules": [str(PACKAGE)]} if git_commit() else {}
