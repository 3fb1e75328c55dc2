"""Failed runs: their records, messages and retries."""

import errno
import io
import re
import resource
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from callbacks import LogRuns
from rich.console import Console

import tiny
from longspan.arena import arena
from longspan.arena.console import ConsoleCallback
from longspan.results import load_failures, load_results
from longspan.training.loop import StageTrainer

ALLOCATOR = "[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: you"


def test_diverged_run_is_recorded_and_retried_on_request_only(tmp_path, paths):
    diverging, stable = tiny.experiment("full", changes=tiny.DIVERGING), tiny.experiment()
    results, _ = arena([diverging, stable], paths, LogRuns())
    assert [result.mechanism for result in results] == ["local"]
    (record,) = load_failures([tmp_path])
    assert (record.kind, record.step, record.device) == ("diverged", 2, "cpu, 1 threads")
    assert record.reason.startswith("the training loss is nan at step 2; lower the learning rate")
    assert (record.config_hash, record.seed, record.overrides) == (
        diverging.hash,
        0,
        diverging.overrides,
    )
    assert paths.failure_file(diverging).name == record.filename
    log = LogRuns()
    assert arena([diverging, stable], paths, log)[0] == results
    ((again,),) = arena([diverging], paths, log)[1:]
    assert log.lines == []
    assert again.reason.startswith(record.reason)
    assert again.reason.endswith(f"(recorded {record.date}; --retry-failed retries it)")
    arena([diverging, stable], paths, log, retry_failed=True)
    assert log.lines == ["1/1 full 0"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(ALLOCATOR),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_out_of_memory_errors_are_recorded(tmp_path, monkeypatch, error, paths):
    monkeypatch.setattr(StageTrainer, "_step", Mock(side_effect=error))
    results, _ = arena([tiny.experiment()], paths, LogRuns())
    assert results == []
    (record,) = load_failures([tmp_path])
    assert (record.kind, record.step) == ("memory", None)
    assert re.search(r"needs more memory than .*; raise training", record.reason)


def test_later_result_replaces_the_failure(tmp_path, monkeypatch, paths):
    experiment = tiny.experiment()
    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "_step", Mock(side_effect=MemoryError))
        assert arena([experiment], paths, LogRuns())[0] == []
    assert paths.failure_file(experiment).exists()
    (result,), failed = arena([experiment], paths, LogRuns(), retry_failed=True)
    assert failed == []
    assert not paths.failure_file(experiment).exists()
    assert load_results([tmp_path]) == [result]


def test_unexpected_error_is_reported_but_not_recorded(tmp_path, monkeypatch, paths):
    broken = tiny.experiment("full")
    with monkeypatch.context() as patch:
        patch.setattr(
            StageTrainer, "_step", Mock(side_effect=RuntimeError("shape '[3]' is invalid"))
        )
        results, failed = arena([broken], paths, LogRuns())
    assert (results, [x.reason for x in failed]) == ([], ["RuntimeError: shape '[3]' is invalid"])
    assert load_failures([tmp_path]) == []
    assert len(arena([broken], paths, LogRuns())[0]) == 1


def test_progress_bars_are_removed_when_runs_end(paths):
    experiments = [tiny.experiment("full", changes=tiny.DIVERGING), tiny.experiment()]
    with ConsoleCallback(Console(file=io.StringIO()), is_parallel=True) as callback:
        results, failed = arena(experiments, paths, callback)
        assert (len(results), len(failed), callback.lines) == (1, 1, {})


def run_with_limited_memory(runs, cache):
    """Run a large model and a small one in a process with memory for the small one only."""
    torch.set_num_threads(1)
    paths = tiny.paths(runs, cache)
    large = tiny.experiment(
        "full", changes={"model.hidden_size": 8192, "model.intermediate_size": 8192}
    )
    arena([tiny.experiment("full", seed=1)], paths, LogRuns())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    arena([large, tiny.experiment()], paths, LogRuns())


@pytest.mark.slow
def test_real_memory_exhaustion_is_recorded(tiny_cache, tmp_path):
    process = tiny.server().Process(target=run_with_limited_memory, args=(tmp_path, tiny_cache))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert sorted(result.mechanism for result in load_results([tmp_path])) == ["full", "local"]
    (record,) = load_failures([tmp_path])
    assert (record.kind, record.config.model.hidden_size) == ("memory", 8192)


def test_command_prints_failed_runs_and_retry_option(cli, tiny_cache, tmp_path):
    command = tiny.arena_command(tmp_path, tiny_cache, changes=tiny.DIVERGING)
    for _ in range(2):
        code, out, err = cli(*command)
        assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("failed: local-")
    assert line.endswith("--retry-failed retries it)")
    _, _, err = cli(*command, "--retry-failed")
    assert "run 1/1  local on listops" in err
    # `train` always retries.
    code, _, err = cli(*tiny.command(tmp_path, tiny_cache, changes=tiny.DIVERGING))
    assert code == 2
    assert "run 1/1  local on listops" in err
    assert "error: the training loss is nan" in err.splitlines()[-1]
    assert err.endswith("; the same command retries it)\n")
