"""Fixtures shared by all tests that train: thread count, data set, runs, command line.

Heavy modules are imported inside fixtures: the attention tests need only torch.
"""

import gc
import importlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rounding
import shape_checks
from logged import Logged

# Nothing made until the tests are collected becomes garbage; `pytest_collection_finish` goes on.
gc.disable()
shape_checks.install()

# One thread here and in processes that tests start: rounding depends on the number of threads, and
# threads cost more than they save on tiny tensors.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# Tests start many processes, which would compile every file again without bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Add a worker to one per core: tests that wait for processes leave cores idle."""
    return (yield) + 1


def pytest_addoption(parser):
    parser.addoption(
        "--other-rounding",
        action="store_true",
        help="change products in the last digit by the layout of their operands: tests/rounding.py",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Round as another processor would, fixtures included, where the option asks for it."""
    asked = item.config.getoption("--other-rounding")
    if not asked or item.get_closest_marker("own_rounding"):
        return (yield)
    with rounding.OtherRounding():
        return (yield)


def pytest_sessionstart(session):
    """Print the processor, which pytest's own header under `-q` does not show."""
    import processor

    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        reporter.write_line(processor.describe())


def pytest_collection_finish():
    """Exempt what lives to the end, modules and tests, from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def frozen_heap():
    """Exempt what earlier tests left, for good: benchmarks collect garbage before each case."""
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="session")
def import_script():
    """Function that imports a script of benchmarks or docs together with its neighbors."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("benchmarks", "docs"):
            patch.syspath_prepend(str(Path(__file__).parents[1] / name))
        yield importlib.import_module


@pytest.fixture
def logged():
    """Return what is logged from now on."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def fixed_peaks(monkeypatch):
    """Let benchmarks measure no memory: the process that does so takes seconds to start."""
    from longspan.bench.peaks import PeakMeter

    monkeypatch.setattr(PeakMeter, "measure", lambda self, make: 2**20)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Replace the user's cache; JavaScript libraries of pages are bundled once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSPAN_CACHE", str(tmp_path_factory.mktemp("own")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Write without waiting for the disk, a third of the time of tiny runs: no power fails here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Return an empty home folder; hide the data of this machine and the hub's cache."""
    for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_imports(tmp_path):
    """Forget the imports that a test registers."""
    import own_files

    with own_files.forgotten_imports(tmp_path / "none"):
        yield


@pytest.fixture
def places(tmp_path):
    """Return the options that name the folders of runs and of data, and the processor."""
    return ("--runs", tmp_path / "runs", "--cache", tmp_path / "cache", "--device", "cpu")


@pytest.fixture(scope="session")
def tiny_cache(request, tmp_path_factory):
    """Cache with the tiny ListOps; its generator is compiled once for all workers of xdist."""
    import tiny

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if hasattr(request.config, "workerinput") else base) / "tiny"
    tiny.listops(shared)  # builds under a lock
    return shutil.copytree(shared, tmp_path_factory.mktemp("cache"), dirs_exist_ok=True)


@pytest.fixture
def listops(tiny_cache):
    import tiny

    return tiny.listops(tiny_cache)


@pytest.fixture(scope="session")
def small_mount(tmp_path_factory):
    place = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.fixture
def small_disk(small_mount):
    """Empty file system of 96 KiB."""
    yield small_mount
    for path in small_mount.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def registries(monkeypatch):
    """Remove what a test registers and the plug-ins that it loads."""
    from longspan.arena import PROTOCOLS, plugins, provenance
    from longspan.attention import MECHANISMS
    from longspan.attention.registry import KERNELS
    from longspan.metrics import METRICS
    from longspan.tasks import TASKS

    monkeypatch.setattr(plugins, "_LOADED", {})
    monkeypatch.setattr(provenance, "_LOADED", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    saved = [(x, dict(x)) for x in (MECHANISMS, TASKS, PROTOCOLS, METRICS, KERNELS)]
    modules = dict(sys.modules)
    yield
    for name in sys.modules.keys() - modules.keys():
        if getattr(sys.modules[name], "__name__", "").startswith("longspan_plugin_"):
            del sys.modules[name]
    for registry, before in saved:
        registry.clear()
        registry.update(before)


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command in this process; return its exit code, output and error output.

    `cli.done` runs a command that has to succeed; it returns both outputs.
    """
    import longspan.cli
    from longspan.cli import common

    monkeypatch.setattr(common.out, "width", 1000)  # every row of a table in one line

    def invoke(*arguments):
        monkeypatch.setattr(sys, "argv", ["longspan", *map(str, arguments)])
        code = 0
        try:
            longspan.cli.main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    def done(*arguments):
        code, out, err = invoke(*arguments)
        assert code == 0, err
        return out, err

    invoke.done = done
    return invoke


@pytest.fixture(scope="session")
def finished(tiny_cache, tmp_path_factory):
    """Folder with the records of two runs."""
    import tiny
    from longspan.arena import run

    runs = tmp_path_factory.mktemp("finished")
    for mechanism in ("local", "full"):
        paths = tiny.paths(runs, tiny_cache)
        run(tiny.experiment(mechanism), tiny.listops(tiny_cache), paths)
    return runs


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# No updates, no sync, and no sandbox inside a container.
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = filter(None, map(shutil.which, BROWSERS))
    program = os.environ.get("CHROME") or next(found, None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed and CHROME is not set")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield started
        started.close()
