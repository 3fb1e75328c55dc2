"""Runs on a local Ray cluster: killed workers, lost clusters, invalid options."""

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from callbacks import KillRuns, LogRuns, longer_experiments, reproducible_fields

import staged_protocol
import tiny
from longspan.arena import RayExecutor, arena, load_protocol
from longspan.arena.executors import Skipped
from longspan.arena.executors import ray as ray_executor
from longspan.arena.executors.ray import EventQueue
from longspan.errors import OptionError, RunError
from longspan.results import load_results

# Set before Ray is imported: only these tests may connect to their clusters.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ray = pytest.importorskip("ray")


def free_ports(count):
    with contextlib.ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]


@pytest.fixture
def cluster(request):
    """Start a cluster of 2 cores, or as parametrized; yield its address and a stop function."""
    main, client, *workers = free_ports(22)
    log = Path("/tmp") / f"longspan-ray-{os.getpid()}.log"
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
        f"--port={main}", f"--ray-client-server-port={client}",
        f"--worker-port-list={','.join(map(str, workers))}",
        f"--num-cpus={getattr(request, 'param', 2)}",
        "--include-dashboard=false", "--object-store-memory=80000000", "--disable-usage-stats",
    ]  # fmt: skip
    search_path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": search_path},
        )

    def stop():
        process.terminate()
        process.wait(60)

    for _ in range(600):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", main), 1).close()
            break
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    yield f"127.0.0.1:{main}", stop
    stop()
    ray.shutdown()
    log.unlink()


@pytest.mark.slow
def test_run_of_killed_worker_restarts(cluster, tmp_path, uninterrupted, logged, paths):
    experiments = longer_experiments()[:2]
    killer = KillRuns(paths, experiments, {"full": 1}, lock="train")
    with logged.at_level(logging.WARNING):
        results, failed = arena(experiments, paths, killer, executor=RayExecutor(cluster[0]))
    assert killer.done == {"full": 1}
    assert failed == []
    assert reproducible_fields(results) == without_linear(uninterrupted)
    assert load_results([tmp_path]) == results
    ended = sorted(line for line in killer.lines if "ended" in line)
    assert ended == ["ended full 0", "ended local 0"]
    assert sum("its process died (" in message for message in logged.messages) == 1


@pytest.mark.slow
def test_run_fails_after_two_deaths(cluster, uninterrupted, paths):
    experiments = longer_experiments()
    killer = KillRuns(paths, experiments, {"linear": 2}, lock="train")
    results, failed = arena(experiments, paths, killer, executor=RayExecutor(cluster[0]))
    assert killer.done == {"linear": 2}
    assert reproducible_fields(results) == without_linear(uninterrupted)
    assert [x.name for x in failed] == [f"{experiments[2].name} on listops"]
    assert "its process died 2 times (WorkerCrashedError)" in failed[0].reason


def without_linear(records):
    return {name: record for name, record in records.items() if not name.startswith("linear")}


# One core runs one experiment at a time, with one thread, as in the uninterrupted grid.
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_runs_resume_after_lost_cluster(cluster, tmp_path, uninterrupted, paths):
    address, stop = cluster
    experiments = longer_experiments()
    log = LogRuns()
    log.on_run_end = lambda result: stop()
    with pytest.raises(
        RunError, match=f"lost the Ray cluster at {address}; finished runs are kept"
    ):
        arena(experiments, paths, log, executor=RayExecutor(address))
    ray.shutdown()
    kept = load_results([tmp_path])
    # A second short run may finish while the cluster is being stopped.
    assert 0 < len(kept) < len(experiments)
    results, failed = arena(experiments, paths, LogRuns())
    assert failed == []
    assert reproducible_fields(results) == uninterrupted
    assert all(run in results for run in kept)


def test_absent_cluster_is_rejected_immediately(paths):
    (port,) = free_ports(1)
    message = rf"no Ray cluster answers at 127.0.0.1:{port} \(.*refused\); start one with `ray st"
    with pytest.raises(RunError, match=message):
        arena([tiny.experiment()], paths, LogRuns(), executor=RayExecutor(f"127.0.0.1:{port}"))
    assert not ray.is_initialized()


class FakeRay:
    """Ray whose tasks end only if their index has an outcome."""

    exceptions = ray.exceptions

    def __init__(self, outcomes):
        self.outcomes, self.cancelled = outcomes, []

    def remote(self, **_):
        return lambda thing: SimpleNamespace(remote=lambda *given: self._reference(thing, given))

    def _reference(self, thing, given):
        queue = SimpleNamespace(take=SimpleNamespace(remote=list))
        return queue if thing is EventQueue else given[0]

    def get(self, reference, timeout=None):
        return reference if isinstance(reference, list) else self.outcomes[reference]

    def wait(self, references, timeout):
        return [x for x in references if x in self.outcomes], []

    def cancel(self, reference, force):
        self.cancelled.append((reference, force))

    def cluster_resources(self):
        return {}

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 1}}]

    def is_initialized(self):
        return True

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="auto")


def fake_executor(outcomes):
    executor = RayExecutor("auto")
    executor.ray = FakeRay(outcomes)
    return executor


def test_closing_grid_cancels_tasks_on_external_cluster(paths):
    executor = fake_executor({0: Skipped("full", "why")})
    outcomes = executor([tiny.experiment(seed=seed) for seed in range(3)], paths, LogRuns())
    assert next(outcomes)[0] == 0
    assert executor.ray.cancelled == []
    outcomes.close()
    assert executor.ray.cancelled == [(1, True), (2, True)]


def test_driver_error_skips_single_run(monkeypatch, paths):
    there, damaged, unwritten = (tiny.experiment(seed=seed) for seed in range(3))
    (result,), _ = arena([there], paths, LogRuns())
    paths.record_file(damaged).write_text("{")

    monkeypatch.setattr(ray_executor, "save", Mock(side_effect=RunError("the disk is full")))
    log = LogRuns()
    ended = dict(fake_executor({2: result})([there, damaged, unwritten], paths, log))
    assert ended[0] == result
    assert ended[1].reason.startswith(f"{paths.record_file(damaged)} is not JSON")
    assert ended[2].reason == "the disk is full"
    assert log.lines == ["1/3 local 0", "3/3 local 2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"address": "here"},
            "--ray must be auto, local, HOST:PORT or ray://HOST:PORT, got 'here'",
        ),
        ({"address": "auto", "cpus_per_run": 0.0}, "--cpus-per-run must be > 0, got 0.0"),
        ({"address": "auto", "gpus_per_run": -0.5}, "--gpus-per-run must be >= 0, got -0.5"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(OptionError, match=message):
        RayExecutor(**options)


def test_missing_ray_error_gives_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"--ray needs Ray; pip install 'longspan\[ray\]'"):
        RayExecutor("auto")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--ray", "auto", "--workers", "2"],
            "--workers (this machine) and --ray (a cluster) exclude each other",
        ),
        (["--cpus-per-run", "2"], "--cpus-per-run and --gpus-per-run need --ray ADDRESS"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
    ],
)
def test_conflicting_command_options_are_rejected(cli, flags, message):
    code, out, err = cli("arena", *flags)
    assert (code, out) == (2, "")
    assert message in err


@pytest.fixture
def with_tests(monkeypatch):
    """Let nodes import the helpers of these tests; requested before the cluster."""
    folders = [str(Path(tiny.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))


@pytest.mark.slow
def test_runs_wait_for_those_that_they_start_from(with_tests, registries, cluster, tmp_path):
    file = tmp_path / "stages.py"
    file.write_text(staged_protocol.FILE)
    staged, paths = load_protocol(str(file)), tiny.paths(tmp_path / "runs", tmp_path / "cache")
    experiments = [staged.row(task, "local", 0) for task in staged.tasks[::-1]]
    results, failed = arena(experiments, paths, LogRuns(), executor=RayExecutor(cluster[0]))
    assert failed == []
    assert [x.start is None for x in results] == [False, False, True]
