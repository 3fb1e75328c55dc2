"""Sinusoidal and rotary position tables."""

import cmath
import math

import pytest
import torch

from longspan.models import LongspanModel
from longspan.models.positions import apply_rotary, rotary_table, sinusoidal_table

DOUBLE = {"dtype": torch.float64}


@pytest.mark.parametrize("width", [1, 6, 7])
def test_sinusoidal_table_follows_paper(width):
    table = sinusoidal_table(torch.arange(9), width, **DOUBLE)
    for t in range(9):
        for i in range(width):
            angle = t / 10000 ** ((i - i % 2) / width)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert table[t, i].item() == pytest.approx(expected, abs=1e-12)


def test_rotary_multiplies_complex_numbers():
    x = torch.randn(1, 1, 5, 6, dtype=torch.float64)
    rotated = apply_rotary(x, rotary_table(torch.arange(5)[None], 6, **DOUBLE))
    for t in range(5):
        for i in range(3):
            before = complex(x[0, 0, t, i], x[0, 0, t, i + 3])
            after = before * cmath.exp(1j * t * 10000 ** (-2 * i / 6))
            assert rotated[0, 0, t, i].item() == pytest.approx(after.real, abs=1e-12)
            assert rotated[0, 0, t, i + 3].item() == pytest.approx(after.imag, abs=1e-12)


def test_rotary_products_depend_on_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 12, 8)
    rotary = rotary_table(torch.arange(12)[None], 8, **DOUBLE)
    products = (apply_rotary(q, rotary) @ apply_rotary(k, rotary).mT)[0, 0]
    for distance in range(-11, 12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert products[0].std() > 0.01


def test_base_of_each_layer_rotates_it(small):
    """A model with two bases differs from those with one of them in the layer of the other."""
    fields = {"position": "rotary", "num_hidden_layers": 2}
    torch.manual_seed(0)
    states = LongspanModel(small(**fields)).state_dict()
    ids = torch.randint(1, 50, (1, 12))
    outputs = {}
    for base in (10_000, 50, (10_000, 50)):
        config = small(**fields, rotary_base=list(base) if isinstance(base, tuple) else base)
        model = LongspanModel(config).eval()
        model.load_state_dict(states)
        outputs[base] = model(ids, output_hidden_states=True).hidden_states
    mixed = outputs[10_000, 50]
    torch.testing.assert_close(mixed[1], outputs[10_000][1])
    assert not torch.allclose(mixed[1], outputs[50][1])
    assert not torch.allclose(mixed[2], outputs[10_000][2])


def test_rotary_table_is_precise_in_bfloat16():
    exact = rotary_table(torch.arange(5000)[None], 8, **DOUBLE)
    half = rotary_table(torch.arange(5000)[None], 8, dtype=torch.bfloat16)
    torch.testing.assert_close(half.double(), exact, atol=1e-3, rtol=0)
    assert apply_rotary(torch.ones(1, 1, 5000, 8).bfloat16(), half).dtype == torch.bfloat16
