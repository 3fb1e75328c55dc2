"""Like is compared with like: parameters within a tenth of full attention's."""

import dataclasses

import pytest

from longspan.results import PARAMETER_BUDGET, outside_parameter_budget, parameter_excess


@dataclasses.dataclass
class Counts:
    parameters: int
    full_parameters: int | None


@pytest.mark.parametrize(
    ("own", "full", "excess", "outside"),
    [
        (100, 100, 0.0, False),
        (109, 100, 0.09, False),
        (111, 100, 0.11, True),
        (91, 100, -0.09, False),
        (89, 100, -0.11, True),
        (100, None, None, False),
    ],
)
def test_an_excess_is_a_share_of_full_attention(own, full, excess, outside):
    counts = Counts(own, full)
    found = parameter_excess(counts)
    assert found == (None if excess is None else pytest.approx(excess))
    assert outside_parameter_budget(counts) == outside
    assert PARAMETER_BUDGET == 0.10
