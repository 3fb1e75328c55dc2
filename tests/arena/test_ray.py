"""Runs on a real Ray cluster of this machine survive killed workers and a lost cluster."""

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

import pytest
from callbacks import Killer, Log, longer, metrics

import tiny
from longspan.arena import RayExecutor, arena
from longspan.arena.executors import Skipped
from longspan.arena.executors import ray as ray_executor
from longspan.arena.executors.ray_task import EventQueue
from longspan.errors import OptionError, RunError
from longspan.results import load_results

# Set before Ray is imported: only these tests may connect to their clusters.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ray = pytest.importorskip("ray")


def free_ports(count):
    with contextlib.ExitStack() as sockets:
        made = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]


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


def test_runs_of_killed_workers_restart(
    cluster,
    tiny_cache,
    tmp_path,
    undisturbed,
    caplog,
):
    paths, experiments = tiny.paths(tmp_path, tiny_cache), longer()
    killer = Killer(paths, experiments, {"full": 1, "linear": 2}, lock="train")
    with caplog.at_level(logging.WARNING):
        results, failed = arena(experiments, paths, killer, executor=RayExecutor(cluster[0]))
    assert killer.done == {"full": 1, "linear": 2}
    assert metrics(results) == {
        name: record for name, record in undisturbed.items() if not name.startswith("linear")
    }
    assert load_results([tmp_path]) == results
    assert sorted(line for line in killer.lines if "ended" in line) == [
        "ended full 0",
        "ended local 0",
    ]
    assert sum("its process died (" in message for message in caplog.messages) == 2
    assert [x.name for x in failed] == [f"{experiments[2].name} on listops"]
    assert "its process died 2 times (WorkerCrashedError)" in failed[0].reason


# One core runs one experiment at a time, with one thread like the undisturbed grid.
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_lost_cluster_raises_and_the_next_command_resumes(
    cluster,
    tiny_cache,
    tmp_path,
    undisturbed,
    with_one_thread,
):
    address, stop = cluster
    paths, experiments = tiny.paths(tmp_path, tiny_cache), longer()
    log = Log()
    log.on_run_end = lambda result: stop()
    with pytest.raises(
        RunError, match=f"lost the Ray cluster at {address}; finished runs are kept"
    ):
        arena(experiments, paths, log, executor=RayExecutor(address))
    ray.shutdown()
    kept = load_results([tmp_path])
    # A second short run may finish while the cluster is being stopped.
    assert 0 < len(kept) < len(experiments)
    with with_one_thread():
        results, failed = arena(experiments, paths, Log())
    assert failed == []
    assert metrics(results) == undisturbed
    assert all(run in results for run in kept)


def test_an_absent_cluster_raises_at_once(tiny_cache, tmp_path):
    (port,) = free_ports(1)
    paths = tiny.paths(tmp_path, tiny_cache)
    message = rf"no Ray cluster answers at 127.0.0.1:{port} \(.*refused\); start one with `ray st"
    with pytest.raises(RunError, match=message):
        arena([tiny.experiment()], paths, Log(), executor=RayExecutor(f"127.0.0.1:{port}"))
    assert not ray.is_initialized()


class FakeRay:
    """Ray with tasks that end only if an outcome is given for their index."""

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
    made = RayExecutor("auto")
    made.ray = FakeRay(outcomes)
    return made


def test_a_closed_grid_cancels_its_tasks_on_a_cluster_it_did_not_start(tiny_cache, tmp_path):
    paths = tiny.paths(tmp_path, tiny_cache)
    made = fake_executor({0: Skipped("full", "why")})
    outcomes = made([tiny.experiment(seed=seed) for seed in range(3)], paths, Log())
    assert next(outcomes)[0] == 0
    assert made.ray.cancelled == []
    outcomes.close()
    assert made.ray.cancelled == [(1, True), (2, True)]


def test_errors_of_the_driver_skip_one_run_only(tiny_cache, tmp_path, monkeypatch):
    paths = tiny.paths(tmp_path, tiny_cache)
    there, damaged, unwritten = (tiny.experiment(seed=seed) for seed in range(3))
    (result,), _ = arena([there], paths, Log())
    paths.record_file(damaged).write_text("{")

    def save(*_):
        raise RunError("the disk is full")

    monkeypatch.setattr(ray_executor, "save", save)
    log = Log()
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
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        RayExecutor(**options)


def test_a_missing_ray_names_the_remedy(monkeypatch):
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
        (["--workers", "0"], "--workers must be an integer >= 1, got 0"),
    ],
)
def test_the_command_refuses_conflicting_options(cli, flags, message):
    code, out, err = cli("arena", *flags)
    assert (code, out) == (2, "")
    assert message in err
