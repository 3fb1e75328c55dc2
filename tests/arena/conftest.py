import pytest

import tiny


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Everything here is tiny."""


@pytest.fixture(scope="session")
def undisturbed(tiny_cache, tmp_path_factory, with_one_thread):
    """The records of a serial grid, with the threads that workers and nodes have."""
    from callbacks import Log, longer, metrics

    from longspan.arena import arena

    paths = tiny.paths(tmp_path_factory.mktemp("serial"), tiny_cache)
    with with_one_thread():
        results, failed = arena(longer(), paths, Log())
    assert failed == []
    return metrics(results)
