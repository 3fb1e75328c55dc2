"""A real Ray cluster of this machine: workers die, the cluster goes, records stay."""

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
from longspan.arena.executors import ray as executor
from longspan.arena.executors.ray_task import Mailbox
from longspan.errors import OptionError, RunError
from longspan.results import load_all

# A token of these tests' own, before Ray looks for one: nobody else may talk to their clusters.
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
    """A cluster in processes of its own, of 2 cores or as told; its address, and what stops it."""
    main, client, *workers = free_ports(22)
    log = Path("/tmp") / f"longspan-ray-{os.getpid()}.log"
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
        f"--port={main}", f"--ray-client-server-port={client}",
        f"--worker-port-list={','.join(map(str, workers))}", f"--num-cpus={getattr(request, 'param', 2)}",
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


def test_a_worker_killed_in_the_middle_costs_nothing(
    cluster,
    tiny_cache,
    tmp_path,
    undisturbed,
    caplog,
):
    paths, experiments = tiny.paths(tmp_path, tiny_cache), longer()
    killer = Killer(paths, experiments, {"full": 1, "linear": 2}, note="train.json")
    with caplog.at_level(logging.WARNING):
        results, failed = arena(experiments, paths, killer, executor=RayExecutor(cluster[0]))
    assert killer.done == {"full": 1, "linear": 2}
    assert metrics(results) == {
        name: record for name, record in undisturbed.items() if not name.startswith("linear")
    }
    assert load_all([tmp_path]) == results
    assert sorted(line for line in killer.lines if "ended" in line) == [
        "ended full 0",
        "ended local 0",
    ]
    assert sum("was lost (" in message for message in caplog.messages) == 2
    assert [x.name for x in failed] == [f"{experiments[2].name} on listops"]
    assert "its process died 2 times (WorkerCrashedError)" in failed[0].reason


# One core runs one at a time, on one thread as the undisturbed grid.
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_cluster_that_disappears_is_one_line_and_the_next_command_continues(
    cluster,
    tiny_cache,
    tmp_path,
    undisturbed,
    with_one_thread,
):
    address, stop = cluster
    paths, experiments = tiny.paths(tmp_path, tiny_cache), longer()
    log = Log()
    log.ended = lambda result: stop()
    with pytest.raises(RunError, match=f"the Ray cluster at {address} is gone; what has ended is"):
        arena(experiments, paths, log, executor=RayExecutor(address))
    ray.shutdown()
    kept = load_all([tmp_path])
    # A second short run may end while the cluster is being stopped.
    assert 0 < len(kept) < len(experiments)
    with with_one_thread():
        results, failed = arena(experiments, paths, Log())
    assert failed == []
    assert metrics(results) == undisturbed
    assert all(run in results for run in kept)


def test_no_cluster_is_one_line_at_once(tiny_cache, tmp_path):
    (port,) = free_ports(1)
    paths = tiny.paths(tmp_path, tiny_cache)
    message = rf"no Ray cluster answers at 127.0.0.1:{port} \(.*refused\); start one with `ray st"
    with pytest.raises(RunError, match=message):
        arena([tiny.experiment()], paths, Log(), executor=RayExecutor(f"127.0.0.1:{port}"))
    assert not ray.is_initialized()


class Held:
    """Ray, in which a task flies until it lands with what was told."""

    exceptions = ray.exceptions

    def __init__(self, landing):
        self.landing, self.cancelled = landing, []

    def remote(self, **_):
        return lambda thing: SimpleNamespace(remote=lambda *given: self._reference(thing, given))

    def _reference(self, thing, given):
        inbox = SimpleNamespace(take=SimpleNamespace(remote=list))
        return inbox if thing is Mailbox else given[0]

    def get(self, reference, timeout=None):
        return reference if isinstance(reference, list) else self.landing[reference]

    def wait(self, references, timeout):
        return [x for x in references if x in self.landing], []

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


def held(landing):
    made = RayExecutor("auto")
    made.ray = Held(landing)
    return made


def test_a_grid_that_is_stopped_stops_what_flies_in_a_cluster_of_somebody_else(
    tiny_cache, tmp_path
):
    paths = tiny.paths(tmp_path, tiny_cache)
    made = held({0: Skipped("full", "why")})
    flight = made([tiny.experiment(seed=seed) for seed in range(3)], paths, Log())
    assert next(flight)[0] == 0
    assert made.ray.cancelled == []
    flight.close()
    assert made.ray.cancelled == [(1, True), (2, True)]


def test_what_the_driver_refuses_of_one_run_stops_no_other(tiny_cache, tmp_path, monkeypatch):
    paths = tiny.paths(tmp_path, tiny_cache)
    there, damaged, unwritten = (tiny.experiment(seed=seed) for seed in range(3))
    (result,), _ = arena([there], paths, Log())
    paths.record_file(damaged).write_text("{")

    def save(*_):
        raise RunError("the disk is full")

    monkeypatch.setattr(executor, "save", save)
    log = Log()
    ended = dict(held({2: result})([there, damaged, unwritten], paths, log))
    assert ended[0] == result
    assert ended[1].reason.startswith(f"{paths.record_file(damaged)} is not JSON")
    assert ended[2].reason == "the disk is full"
    # what another process has ended has a name of its own
    assert log.lines == ["1/3 local 0", "3/3 local 2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "here"}, "--ray takes auto, local, HOST:PORT or ray://HOST:PORT, got 'here'"),
        ({"address": "auto", "cpus_per_run": 0.0}, "--cpus-per-run is positive, got 0.0"),
        ({"address": "auto", "gpus_per_run": -0.5}, "--gpus-per-run is 0 or more, got -0.5"),
    ],
)
def test_what_cannot_be_used_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        RayExecutor(**options)


def test_without_ray_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"--ray needs Ray; pip install 'longspan\[ray\]'"):
        RayExecutor("auto")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ray", "auto", "--workers", "2"], "--ray for a cluster; give one of them"),
        (["--cpus-per-run", "2"], "--cpus-per-run and --gpus-per-run are for --ray ADDRESS"),
        (["--workers", "0"], "--workers takes a whole number, 1 or more, got 0"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(cli, flags, message):
    code, out, err = cli("arena", *flags)
    assert (code, out) == (2, "")
    assert message in err
