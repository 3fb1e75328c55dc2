"""Tables of efficiency, from measurements that follow known laws."""

import dataclasses

import pytest
from report_records import efficiency, measurement, published

from longspan.report.tables.efficiency import efficiency_tables

LENGTHS = (1_024, 2_048, 4_096)


def measured(mechanism, length, seconds, memory):
    return measurement(
        mechanism,
        length,
        backend="torch",
        median=seconds,
        minimum=0.9 * seconds,
        maximum=2 * seconds,
        runs=3,
        peak_memory=memory,
        flops=1_000,
        executed_flops=1_500,
        least_seconds=seconds / 4,
    )


def lost(mechanism, length):
    reason = "needs 9 GiB, and 8 GiB may be used"
    return measurement(mechanism, length, state="out of memory", reason=reason)


RECORD = efficiency([
    *(measured("linear", n, n * 1e-3, 2**20 * n) for n in LENGTHS),
    *(measured("full", n, n**2 * 1e-6, 2**9 * n**2) for n in LENGTHS),
    lost("synthesizer", 4_096),
])  # fmt: skip


def figure(mechanism, quantity, value, length=1_000, condition="a device"):
    about = {"task": "text", "source": "A paper", "length": length, "condition": condition}
    return published(mechanism=mechanism, quantity=quantity, value=value, **about)


FIGURES = (
    figure("full", "steps_per_second", 8.0),
    figure("linear", "steps_per_second", 10.0),
    figure("linear", "steps_per_second", 99.0, condition="as printed, probably a misprint"),
    figure("full", "memory", 4.0, 4_000),
    figure("linear", "memory", 1.0, 4_000),
    figure("performer", "memory", 1.0, 4_000),
    figure("linear", "accuracy", 0.5),
)


def cells(table, column):
    place = [x.name for x in table.columns].index(column)
    return [row[place].text for row in table.rows]


def test_rows_are_ordered_by_length_with_full_first():
    measurements, growth = efficiency_tables([RECORD])
    assert measurements.title == "model, training, float32"
    assert cells(measurements, "Mechanism") == [*["full", "linear"] * 3, "synthesizer"]
    assert cells(measurements, "Length") == [*["1,024"] * 2, *["2,048"] * 2, *["4,096"] * 3]
    assert cells(measurements, "Time")[:2] == ["1.05 s", "1.02 s"]
    assert cells(measurements, "Times full")[1::2] == ["1.02 ×", "2.05 ×", "4.10 ×"]
    assert cells(measurements, "Memory")[1] == "1.00 GiB"
    assert cells(measurements, "Memory over full")[1::2] == ["2.00 ×", "1.00 ×", "0.500 ×"]
    assert set(cells(measurements, "Of the limit, %")[:6]) == {"25.0"}
    assert cells(measurements, "Executed")[0] == "1.50 ×"
    (note,) = measurements.notes
    assert "A processor, 2 threads, torch 2.13.0; 4 heads of 16" in note
    assert "products 100 GFLOP/s, copies 10 GB/s" in note
    assert cells(growth, "Growth")[:2] == ["T^2.00", "T^1.00"]


def test_what_was_not_measured_says_why():
    table = efficiency_tables([RECORD])[0]
    entry = table.rows[-1][[x.name for x in table.columns].index("Time")]
    assert (entry.value, entry.text) == (None, "out of memory")
    assert entry.detail == "needs 9 GiB, and 8 GiB may be used"


def test_models_have_steps_or_examples_per_second():
    assert cells(efficiency_tables([RECORD])[0], "Steps/s")[:2] == ["0.954", "0.977"]
    rows = [dataclasses.replace(x, work="inference", batch_size=32) for x in RECORD.measurements]
    inference = efficiency_tables([dataclasses.replace(RECORD, measurements=rows)])[0]
    assert cells(inference, "Examples/s")[:2] == ["30.5", "31.2"]
    assert cells(inference, "Examples/s")[-1] == "–"
    layers = [dataclasses.replace(x, scope="layer") for x in RECORD.measurements]
    (measured, _) = efficiency_tables([dataclasses.replace(RECORD, measurements=layers)])
    assert not {"Steps/s", "Examples/s"} & {x.name for x in measured.columns}


def test_growth_names_the_length_from_which_a_mechanism_pays_off():
    growth = efficiency_tables([RECORD])[1]
    # Linear is faster above 1,000 tokens, so at every measured length.
    assert cells(growth, "Pays off") == ["–", "at every length", "–"]
    assert cells(growth, "Longest") == ["4,096", "4,096", "–"]


def test_published_ratios_stand_beside_ours():
    published = efficiency_tables([RECORD], FIGURES)[2]
    assert cells(published, "Mechanism") == ["linear", "linear"]
    assert cells(published, "Published") == ["1.25 ×", "0.250 ×"]
    assert cells(published, "Here") == ["1.02 ×", "0.500 ×"]


def test_other_models_are_not_compared_with_published_ones():
    assert len(efficiency_tables([dataclasses.replace(RECORD, suite="scopes")], FIGURES)) == 2


def test_a_mechanism_beyond_the_memory_of_full_says_so():
    slow = [measured("linear", n, n**2 * 2e-6, 1) for n in (*LENGTHS, 8_192)]
    full = [x for x in RECORD.measurements if x.mechanism == "full"]
    record = dataclasses.replace(RECORD, measurements=[*full, *slow])
    assert (
        cells(efficiency_tables([record])[1], "Pays off")[1] == "not up to 4,096, where full ends"
    )


@pytest.mark.parametrize("scope", ["layer", "operator"])
def test_layers_are_not_compared_with_published_models(scope):
    changed = [dataclasses.replace(x, scope=scope) for x in RECORD.measurements]
    record = dataclasses.replace(RECORD, measurements=changed)
    assert len(efficiency_tables([record], FIGURES)) == 2
