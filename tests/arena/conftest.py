import pytest

import tiny


@pytest.fixture
def paths(tmp_path, tiny_cache):
    """Paths of an empty runs folder, with the cache of the tiny ListOps."""
    return tiny.paths(tmp_path, tiny_cache)


@pytest.fixture(scope="session")
def uninterrupted(tiny_cache, tmp_path_factory):
    """Reproducible fields of a serial grid, with the thread count of workers and nodes."""
    from callbacks import LogRuns, longer_experiments, reproducible_fields

    from longspan.arena import arena

    paths = tiny.paths(tmp_path_factory.mktemp("serial"), tiny_cache)
    results, failed = arena(longer_experiments(), paths, LogRuns())
    assert failed == []
    return reproducible_fields(results)


@pytest.fixture(autouse=True)
def fixed_matmul_rate(monkeypatch):
    """Let plans assume a rate of matrix products: measuring it takes a second."""
    monkeypatch.setattr("longspan.training.timing.measure_matmul_rate", lambda device: 1e11)
