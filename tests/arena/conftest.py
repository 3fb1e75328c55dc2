import pytest

import tiny


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Use one thread: every model here is tiny."""


@pytest.fixture(scope="session")
def undisturbed(tiny_cache, tmp_path_factory, with_one_thread):
    """Metrics of an uninterrupted serial grid, with the thread count of workers and nodes."""
    from callbacks import Log, longer, metrics

    from longspan.arena import arena

    paths = tiny.paths(tmp_path_factory.mktemp("serial"), tiny_cache)
    with with_one_thread():
        results, failed = arena(longer(), paths, Log())
    assert failed == []
    return metrics(results)
