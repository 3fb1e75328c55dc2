import pytest

import tiny


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Everything here is tiny."""


@pytest.fixture(scope="session")
def undisturbed(tiny_cache, tmp_path_factory):
    """The records of a serial grid."""
    from watchers import Log, longer, metrics

    from longspan.arena import arena

    results, failed = arena(
        longer(), tiny.places(tmp_path_factory.mktemp("serial"), tiny_cache), Log()
    )
    assert failed == []
    return metrics(results)
