import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Use one thread; the models are tiny."""
