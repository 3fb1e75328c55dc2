"""Numbers with their nouns, and names of devices."""

from types import SimpleNamespace

import pytest

from longspan.report.leaderboard.grouping import hardware_of
from longspan.wording import counted, device_text, first_of


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 rows without a text were left out"),
        (1, "1 row without a text was left out"),
        (2, "2 rows without a text were left out"),
        (1_001, "1,001 rows without a text were left out"),
    ],
)
def test_words_agree_with_the_number(number, expected):
    assert counted(number, "row|rows without a text was|were left out") == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu, 1 threads", "cpu, 1 thread"),
        ("cpu, 2 threads", "cpu, 2 threads"),
        ("cpu, 11 threads", "cpu, 11 threads"),
        ("NVIDIA H100", "NVIDIA H100"),
    ],
)
def test_devices_are_named_for_readers(name, expected):
    assert device_text(name) == expected


def test_reports_name_the_hardware_of_records_for_readers():
    run = SimpleNamespace(device="cpu, 1 threads", dtype="float32", world_size=1)
    assert hardware_of(run) == "cpu, 1 thread, float32"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, ""), (1, "0"), (5, "0, 1, 2, 3, 4"), (1_006, "0, 1, 2, 3, 4 and 1,001 more")],
)
def test_first_texts_are_named_and_the_rest_counted(count, expected):
    assert first_of(map(str, range(count))) == expected
