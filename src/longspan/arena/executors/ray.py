"""Executor for many machines: runs are tasks of a Ray cluster.

The nodes return records to the driver, which writes them: each record is written once, with or
without a file system that the nodes share. Checkpoints stay on the node that wrote them: with a
shared file system a run resumes on any node, without one on its own node.

Every node needs longspan. A driver in a working tree of longspan sends that tree to the nodes, and
every driver the files of its plug-ins; a plug-in that is a module must be installed on every node.
"""

import contextlib
import dataclasses
import functools
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from longspan import __version__
from longspan.arena.callbacks import GridCallback
from longspan.arena.executors.base import Outcomes, RunOutcome, skip_experiment
from longspan.arena.executors.runner import BUILD, Event, ExperimentRunner, RemoteGrid
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.plugins import Plugin, loaded_plugins, restore_plugins
from longspan.arena.provenance import PACKAGE, git_commit
from longspan.arena.run import save, train
from longspan.arena.run_state import hold_lock, load_checked
from longspan.errors import BusyError, LongspanError, OptionError, RunError
from longspan.results import Result

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5  # between two looks at the event queue
_CONNECT_SECONDS = 5.0  # to connect to a cluster
_CHECK_SECONDS = 2.0  # between two checks that the cluster answers
_MAX_FAILED_CHECKS = 3  # in a row, after which the cluster is considered lost
_MAX_DEATHS = {"NodeDiedError": 4}  # of a run, by Ray's error; two for all other errors
_OBJECT_STORE_BYTES = 100 << 20  # of a local cluster: records are small

Endpoint = tuple[str, int]  # host and port


class RayExecutor:
    """Runs experiments on an existing Ray cluster, or on one started on this machine."""

    def __init__(
        self, address: str, *, cpus_per_run: float = 1.0, gpus_per_run: float | None = None
    ):
        """Store the address of the cluster; the first call connects to it.

        Args:
            address: "auto" (the cluster of this machine), "local" (start one), HOST:PORT or
                ray://HOST:PORT.
            cpus_per_run: number of CPUs, and of threads, of a run.
            gpus_per_run: number of GPUs of a run, or a fraction; None: 1 if the cluster has GPUs.

        Raises:
            OptionError: Ray is not installed, or a value is invalid.
        """
        try:
            import ray
        except ImportError as error:
            raise OptionError("--ray needs Ray; pip install 'longspan[ray]'") from error
        if cpus_per_run <= 0:
            raise OptionError(f"--cpus-per-run must be > 0, got {cpus_per_run}")
        if gpus_per_run is not None and gpus_per_run < 0:
            raise OptionError(f"--gpus-per-run must be >= 0, got {gpus_per_run}")
        self.ray, self.address = ray, address
        self.cpus, self.gpus = cpus_per_run, gpus_per_run
        self.endpoint = _parse_address(address)

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Outcomes:
        """Yield the position and outcome of each experiment; see `Executor`."""
        owns_connection = not self.ray.is_initialized()
        if owns_connection:
            self._connect()
        is_lost = False
        try:
            grid = _RayGrid(self, experiments, paths, callback)
            try:
                yield from grid.run()
            finally:
                grid.release()
                is_lost = grid.is_lost
        finally:
            if owns_connection and not is_lost:
                self.ray.shutdown()

    def _connect(self) -> None:
        settings: dict[str, Any] = {
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        if self.address != "local":  # the nodes get the working tree, if this is one
            settings = {"runtime_env": {"py_modules": [str(PACKAGE)]} if git_commit() else {}}
        try:
            if self.endpoint is not None:
                _check_endpoint(self.endpoint, _CONNECT_SECONDS)
            self.ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **settings,
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise RunError(
                f"no Ray cluster answers at {self.address} ({reason}); start one with `ray start "
                "--head`, use --ray local, or set RAY_AUTH_MODE=token if the cluster needs tokens"
            ) from error


class _RayGrid(RemoteGrid):
    """The runs of one grid on a cluster."""

    def __init__(self, executor, experiments, paths, callback):
        super().__init__(experiments, callback)
        self.ray, self.address, self.paths = executor.ray, executor.address, paths
        self.cpus, self.gpus = executor.cpus, self._resolve_gpus(executor.gpus)
        context = self.ray.get_runtime_context()
        self.endpoint = executor.endpoint or _parse_address(context.gcs_address)
        self.submitted: dict[Any, int] = {}
        self.locks: dict[int, contextlib.ExitStack] = {}
        self.failed_checks, self.last_check, self.is_lost = 0, time.monotonic(), False
        self.queue = self.ray.remote(num_cpus=0, max_restarts=-1)(EventQueue).remote()
        resources = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        self.task = self.ray.remote(**resources, max_retries=0)(run_on_node)
        # A node has another working directory than the driver.
        self.node_paths = dataclasses.replace(
            paths,
            runs=paths.runs.absolute(),
            cache=paths.cache.absolute(),
            data=paths.data and paths.data.absolute(),
        )

    def run(self) -> Iterator[tuple[int, RunOutcome]]:
        """Yield outcomes until every experiment has one, or the cluster is lost."""
        # A few more tasks than fit keep the nodes busy.
        limit = 2 * self._count_slots() + 2
        while self.pending or self.submitted:
            while len(self.submitted) < limit and self.pending:
                yield from self._submit(self.pending.popleft())
            done = []
            if self.submitted:
                done, _ = self.ray.wait(list(self.submitted), timeout=_POLL_SECONDS)
            self._check_cluster()
            self._dispatch_events()
            for reference in done:
                yield from self._collect(reference, self.submitted.pop(reference))

    def release(self) -> None:
        """Cancel the tasks that have not ended: the cluster may outlive this grid."""
        for reference in () if self.is_lost else self.submitted:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(reference, force=True)
        for lock in self.locks.values():
            lock.close()
        self.locks.clear()

    def _submit(self, index: int) -> Iterator[tuple[int, RunOutcome]]:
        """Lock a run and submit it, unless it has a record or cannot be locked."""
        experiment = self.experiments[index]
        path = self.paths.record_file(experiment)
        try:
            if index not in self.locks:
                lock = contextlib.ExitStack()
                lock.enter_context(hold_lock(self.paths.run_dir(experiment), "run"))
                self.locks[index] = lock
            # Another process may have finished the run before it released the lock.
            result = load_checked(experiment, None, path) if path.exists() else None
        except LongspanError as error:
            yield self._end(index, self._skip(index, error))
            return
        if result is not None:
            self.begin(index)
            yield self._end(index, result)
            return
        driver = __version__, experiment.hash
        threads = max(1, int(self.cpus))
        where = self.node_paths, driver, loaded_plugins(), threads, self.queue
        reference = self.task.remote(index, experiment, *where)
        self.submitted[reference] = index

    def _collect(self, reference: Any, index: int) -> Iterator[tuple[int, RunOutcome]]:
        """Yield the outcome of a finished task and write its result."""
        experiment, errors = self.experiments[index], self.ray.exceptions
        try:
            outcome = self.ray.get(reference)
        except errors.RayTaskError as error:
            reason = str(error.cause or error).splitlines()[-1]
            raise RunError(f"a node of {self.address} cannot run longspan: {reason}") from error
        except errors.RayError as error:
            yield from self._handle_death(index, error)
            return
        self.begin(index)
        if isinstance(outcome, Result):
            try:
                save(experiment, outcome, self.paths)
            except LongspanError as error:
                outcome = self._skip(index, error)
        yield self._end(index, outcome)

    def _handle_death(self, index: int, error: Exception) -> Iterator[tuple[int, RunOutcome]]:
        """Restart a run whose process or node died; after too many deaths, yield a failure."""
        name = type(error).__name__
        if isinstance(error, self.ray.exceptions.LocalRayletDiedError):
            # The driver reaches the cluster through the Ray process of its own machine.
            raise self._lose_cluster() from error
        if self.restart(index, _MAX_DEATHS.get(name, 2)):
            experiment = self.experiments[index]
            logger.warning("%s: its process died (%s); restarted", experiment.name, name)
            return
        is_memory = isinstance(error, self.ray.exceptions.OutOfMemoryError)
        reason = (
            f"its process died {self.deaths[index]} times ({name}); give a run more resources with "
            "--cpus-per-run and --gpus-per-run, or raise training.gradient_accumulation_steps"
        )
        yield self._end(index, self.fail(index, reason, is_memory=is_memory))

    def _skip(self, index: int, error: LongspanError) -> RunOutcome:
        """Return the outcome of a run that the driver cannot lock, check or write."""
        is_locked = isinstance(error, BusyError)
        return skip_experiment(self.experiments[index], str(error), is_locked=is_locked)

    def _end(self, index: int, outcome: RunOutcome) -> tuple[int, RunOutcome]:
        """Release a run's lock and return its outcome."""
        if index in self.locks:
            self.locks.pop(index).close()
        return index, outcome

    def _dispatch_events(self) -> None:
        """Pass new events to the callback; events that are lost with a node are not needed."""
        try:
            events = self.ray.get(self.queue.take.remote(), timeout=_CONNECT_SECONDS)
        except (self.ray.exceptions.RayError, TimeoutError):
            return
        running = set(self.submitted.values())
        for index, event in events:
            if event[0] == BUILD or index in running:
                self.handle(index, event)

    def _check_cluster(self) -> None:
        """Check that the cluster answers; Ray itself waits a minute, then ends the process."""
        now = time.monotonic()
        if self.endpoint is None or now - self.last_check < _CHECK_SECONDS:
            return
        self.last_check = now
        try:
            _check_endpoint(self.endpoint, _CHECK_SECONDS)
            self.failed_checks = 0
        except OSError as error:
            self.failed_checks += 1
            if self.failed_checks == _MAX_FAILED_CHECKS:
                raise self._lose_cluster() from error

    def _lose_cluster(self) -> RunError:
        """Mark the cluster as lost and return the error to raise."""
        self.is_lost = True
        return RunError(
            f"lost the Ray cluster at {self.address}; finished runs are kept. Start a cluster and "
            "run the same command to resume."
        )

    def _resolve_gpus(self, gpus: float | None) -> float:
        if gpus is not None or self.paths.device == "cpu":
            return gpus or 0.0
        return 1.0 if self.ray.cluster_resources().get("GPU") else 0.0

    def _count_slots(self) -> int:
        """Return how many runs the cluster can execute at the same time."""
        slots = 0
        for node in self.ray.nodes():
            resources = node["Resources"] if node["Alive"] else {}
            fits = int(resources.get("CPU", 0) // self.cpus)
            slots += min(fits, int(resources.get("GPU", 0) // self.gpus)) if self.gpus else fits
        if not slots:
            logger.warning(
                "no node of the Ray cluster has %g CPUs and %g GPUs; waiting for one",
                self.cpus,
                self.gpus,
            )
        return slots


def _parse_address(address: str) -> Endpoint | None:
    """Return host and port of an address; None for an address that Ray resolves itself."""
    if address in ("auto", "local"):
        return None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(
            f"--ray must be auto, local, HOST:PORT or ray://HOST:PORT, got {address!r}"
        )
    return host.strip("[]"), int(port)


def _check_endpoint(endpoint: Endpoint, timeout: float) -> None:
    """Raise OSError unless the endpoint accepts connections."""
    socket.create_connection(endpoint, timeout=timeout).close()


class EventQueue:
    """Actor of a cluster that keeps the events of all runs until the driver takes them."""

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
    return _get_runner(paths).serve(experiment, functools.partial(queue.put.remote, index), train)


@functools.cache
def _get_runner(paths: RunPaths) -> ExperimentRunner:
    """Return the runner of this process, which Ray reuses for later runs."""
    return ExperimentRunner(paths, lambda *_: None)
