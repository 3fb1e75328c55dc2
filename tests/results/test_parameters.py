"""Parameter excess over `full` and its tolerance of 10 %."""

import dataclasses

import pytest

from longspan.results import PARAMETER_TOLERANCE, exceeds_parameter_tolerance, parameter_excess


@dataclasses.dataclass
class Counts:
    num_parameters: int
    full_num_parameters: int | None


@pytest.mark.parametrize(
    ("count", "full", "excess", "exceeds"),
    [
        (100, 100, 0.0, False),
        (109, 100, 0.09, False),
        (111, 100, 0.11, True),
        (91, 100, -0.09, False),
        (89, 100, -0.11, True),
        (100, None, None, False),
    ],
)
def test_excess_is_relative_to_parameters_of_full(count, full, excess, exceeds):
    counts = Counts(count, full)
    found = parameter_excess(counts)
    assert found == (None if excess is None else pytest.approx(excess))
    assert exceeds_parameter_tolerance(counts) == exceeds
    assert PARAMETER_TOLERANCE == 0.10
