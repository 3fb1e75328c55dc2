import cmath
import math

import pytest
import torch

from longspan.models.positions import rotate, rotations, sinusoids

CPU = {"device": torch.device("cpu"), "dtype": torch.float64}


@pytest.mark.parametrize("width", [1, 6, 7])
def test_sinusoids_are_those_of_the_paper(width):
    table = sinusoids(9, width, **CPU)
    for t in range(9):
        for i in range(width):
            angle = t / 10000 ** ((i - i % 2) / width)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert table[t, i].item() == pytest.approx(expected, abs=1e-12)


def test_rotation_multiplies_complex_numbers():
    x = torch.randn(1, 1, 5, 6, dtype=torch.float64)
    turned = rotate(x, rotations(5, 6, **CPU))
    for t in range(5):
        for i in range(3):
            before = complex(x[0, 0, t, i], x[0, 0, t, i + 3])
            after = before * cmath.exp(1j * t * 10000 ** (-2 * i / 6))
            assert turned[0, 0, t, i].item() == pytest.approx(after.real, abs=1e-12)
            assert turned[0, 0, t, i + 3].item() == pytest.approx(after.imag, abs=1e-12)


def test_rotated_products_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 12, 8)
    turns = rotations(12, 8, **CPU)
    products = (rotate(q, turns) @ rotate(k, turns).mT)[0, 0]
    for distance in range(-11, 12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert products[0].std() > 0.01


def test_long_positions_keep_their_precision_in_half_width():
    exact = rotations(5000, 8, **CPU)
    half = rotations(5000, 8, device=torch.device("cpu"), dtype=torch.bfloat16)
    torch.testing.assert_close(half.double(), exact, atol=1e-3, rtol=0)
    assert rotate(torch.ones(1, 1, 5000, 8).bfloat16(), half).dtype == torch.bfloat16
