"""Tiny models of transformers, saved once; each test loads them as a user does."""

import pytest
import torch
from tiny_transformers import MODELS

from longspan.interop import registration


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folders of saved models, and the class of each, by name."""
    folder = tmp_path_factory.mktemp("models")
    for name, (cls, config) in MODELS.items():
        torch.manual_seed(0)
        cls(config).save_pretrained(folder / name)
    return {name: (cls, folder / name) for name, (cls, _) in MODELS.items()}


@pytest.fixture
def load(saved):
    """Load a saved model in evaluation mode, in float64 unless `dtype` says otherwise."""

    def load_model(name, attention="sdpa", **fields):
        cls, folder = saved[name]
        fields = {"dtype": torch.float64, **fields}
        return cls.from_pretrained(folder, attn_implementation=attention, **fields).eval()

    return load_model


@pytest.fixture(autouse=True)
def _seeded_and_unregistered(monkeypatch):
    torch.manual_seed(0)
    # Names belong to the process; each test registers its own.
    monkeypatch.setattr(registration, "_REGISTERED", {})
