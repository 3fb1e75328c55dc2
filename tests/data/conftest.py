import pytest


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Let `datasets` read no network, and give it a separate cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()
