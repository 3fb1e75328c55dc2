"""Models are comparable if their parameter counts differ by at most 10 % from `full`."""

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
def test_the_excess_is_a_share_of_the_parameters_with_full(count, full, excess, exceeds):
    counts = Counts(count, full)
    found = parameter_excess(counts)
    assert found == (None if excess is None else pytest.approx(excess))
    assert exceeds_parameter_tolerance(counts) == exceeds
    assert PARAMETER_TOLERANCE == 0.10
