import pytest

from longspan.report.numbers import duration, magnitude, memory, percent, points, significant


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (percent(0.36374), "36.37"),
        (percent(None), "–"),
        (percent(0.0), "0.00"),
        (points(18.04), "+18.0"),
        (points(-2.25), "−2.2"),
        (points(None), "–"),
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
def test_numbers_are_shown_as_people_read_them(shown, expected):
    assert shown == expected
