import pytest

import tiny


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Use one thread; the models are tiny."""


@pytest.fixture(scope="session")
def uninterrupted(tiny_cache, tmp_path_factory, with_one_thread):
    """Reproducible fields of a serial grid, with the thread count of workers and nodes."""
    from callbacks import LogRuns, longer_experiments, reproducible_fields

    from longspan.arena import arena

    paths = tiny.paths(tmp_path_factory.mktemp("serial"), tiny_cache)
    with with_one_thread():
        results, failed = arena(longer_experiments(), paths, LogRuns())
    assert failed == []
    return reproducible_fields(results)
