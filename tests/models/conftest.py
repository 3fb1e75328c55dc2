"""Small model configurations, and a mechanism with every kind of state."""

from collections.abc import Callable

import jaxtyping
import pytest
import torch
from torch import nn

from longspan.attention import MECHANISMS, Attention, Traits
from longspan.models import LongspanConfig

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "classifier_hidden_size": 12,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_dropout": 0.0,
    # Large enough that every part of the network affects the output.
    "initializer_range": 0.3,
}


def small_config(**fields) -> LongspanConfig:
    return LongspanConfig(**{**SMALL, **fields})


@pytest.fixture
def small() -> Callable[..., LongspanConfig]:
    return small_config


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def unchecked(monkeypatch):
    """Let malformed tensors reach the models' own checks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


class Stateful(Attention):
    """Mechanism with a parameter, a submodule, buffers of both kinds and a list of numbers."""

    name = "stateful"
    traits = Traits(paper="none", family="kernel", cost="T", exact=False, sizes=("heads", "layer"))

    def __init__(self, *, heads: int, layer: int = 0, scale: float = 1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(17 + layer)
        random = torch.randn(3, heads, 1, 1, generator=generator)
        self.gate = nn.Parameter(scale * random[0])
        self.register_buffer("saved", torch.linalg.qr(random[1].view(heads, 1))[0].view(-1, 1, 1))
        self.register_buffer("unsaved", random[2].clone(), persistent=False)
        self.plain = [float(x) for x in torch.arange(heads)]
        self.mix = nn.Conv1d(heads, heads, 1)
        nn.init.constant_(self.mix.weight, 2.0)
        nn.init.constant_(self.mix.bias, 0.5)

    def attend(self, x):
        v = x.v
        plain = v.new_tensor(self.plain).view(-1, 1, 1)
        v = v * (self.gate + self.saved + self.unsaved + plain)
        return (
            self.mix(v.transpose(0, 1).flatten(1)[None])[0]
            .view(v.shape[1], v.shape[0], *v.shape[2:])
            .transpose(0, 1)
        )


@pytest.fixture
def stateful(monkeypatch) -> str:
    monkeypatch.setitem(MECHANISMS, Stateful.name, Stateful)
    return Stateful.name


def pytest_configure(config):
    """Register the markers of transformers' common tests; see `test_transformers_common`."""
    flash = ("flash_attn_test", "flash_attn_3_test", "flash_attn_4_test")
    for name in ("accelerate_tests", "torch_compile_test", "generate", *flash):
        config.addinivalue_line("markers", f"{name}: of transformers' common tests")
