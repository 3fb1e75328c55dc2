"""Numbers as text."""

import pytest

from longspan.metrics import get_metric
from longspan.report.numbers import (
    count,
    duration,
    magnitude,
    memory,
    metric_name,
    p_value,
    percent,
    ratio,
    score,
    score_difference,
    signed,
    significant,
)

ACCURACY, BITS, F1 = map(get_metric, ("accuracy", "bits_per_byte", "f1"))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (percent(0.36374), "36.4"),
        (percent(None), "–"),
        (percent(0.0), "0.0"),
        (score(0.36374, ACCURACY), "36.4"),
        (score(1.23456, BITS), "1.235"),
        (score(None, BITS), "–"),
        (score_difference(0.1804, ACCURACY), "+18.0"),
        (score_difference(-0.0451, BITS), "−0.045"),
        (metric_name(ACCURACY), "accuracy, %"),
        (metric_name(F1), "F1, %"),
        (metric_name(BITS), "bits per byte"),
        (metric_name(ACCURACY, unit=False), "accuracy"),
        (signed(-2.25), "−2.2"),
        (signed(None), "–"),
        (p_value(0.0004), "< 0.001"),
        (p_value(0.0321), "0.032"),
        (ratio(2.0), "2.00 ×"),
        (ratio(None), "–"),
        (count(1, "seed"), "1 seed"),
        (count(3, "seed"), "3 seeds"),
        (magnitude(214_154), "214k"),
        (magnitude(999_600), "1.00M"),
        (magnitude(12), "12.0"),
        (magnitude(None), "–"),
        (memory(1_610_612_736), "1.50 GiB"),
        (memory(1023.7 * 2**20), "1.00 GiB"),
        (memory(512), "512 B"),
        (memory(None), "–"),
        (significant(0.0123456), "0.0123"),
        (significant(1234.5), "1234"),
        (significant(0.0), "0"),
        (significant(None), "–"),
        (duration(12.34), "12.3 s"),
        (duration(3725), "1 h 2 min"),
        (duration(3599), "1 h 0 min"),
    ],
)
def test_numbers_are_formatted(shown, expected):
    assert shown == expected
