"""Costs of layers on all pages: the figures of their record, with its date."""

import json
import re
from pathlib import Path

import pytest

from longspan.attention import MECHANISMS
from longspan.report.tables.efficiency import memory_over_baseline, over_baseline
from longspan.results import load_efficiency

ROOT = Path(__file__).parents[1]
RECORDS = [
    load_efficiency(ROOT / "results" / "efficiency" / name)
    for name in ("layer.json", "layer-recent.json")
]
LAYERS, DATES, SOURCES = {}, {}, {}
for record in RECORDS:
    found = {
        (x.mechanism, x.length): x
        for x in record.measurements
        if x.precision == "float32" and x.median is not None and x.mechanism not in DATES
    }
    LAYERS |= found
    DATES |= {name: record.date[:10] for name, _ in found}
    SOURCES |= {name: record.measurements for name, _ in found}
LONGEST = 16_384  # at which `full` was measured
DATE = RECORDS[0].date[:10]


def ratios(mechanism, length):
    """Return speed and memory over those of `full` as pages print them; None: not measured."""
    one = LAYERS.get((mechanism, length))
    if one is None or over_baseline(one, SOURCES[mechanism]) is None:
        return None
    measured = over_baseline(one, SOURCES[mechanism]), memory_over_baseline(one, SOURCES[mechanism])
    return tuple(f"{value:.1f}" for value in measured)


def test_one_quantity_has_one_record():
    """The second record has `full` for its ratios, and else what the first lacks."""
    first, second = ({x.mechanism for x in record.measurements} for record in RECORDS)
    assert first & second == {"full"}
    assert set(MECHANISMS) <= first | second


def table_of(text, first):
    """Return the cells of each row of the table whose heading begins with `first`."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def name_of(cell):
    return re.search(r"`(\w+)`", cell).group(1)


def test_readme_has_the_figures_of_the_record():
    part = (ROOT / "README.md").read_text().partition("<!-- rendered")[2].partition("<!-- end")[0]
    head, *rows = table_of(part, "mechanism")
    lengths = {head.index(f"{length:,} tokens"): length for length in (4_096, 16_384)}
    assert len(rows) == 8
    for row in rows:
        for at, length in lengths.items():
            expected = ratios(name_of(row[0]), length)
            shown = "–" if expected is None else "{} x, {} x".format(*expected)
            assert row[at] == shown, (row[0], length)
    assert f"layers of {DATE}" in part


def test_choosing_has_the_figures_of_the_record():
    text = (ROOT / "docs" / "choosing.md").read_text()
    costs = text.partition("## Time and memory")[2]
    head, *rows = table_of(costs, "mechanism")
    speed, memory = head.index("speed"), head.index("memory, MiB")
    for row in rows:
        one = LAYERS[name_of(row[0]), LONGEST]
        assert row[speed] == f"{ratios(one.mechanism, LONGEST)[0]} x"
        assert row[memory] == f"{one.peak_memory / 2**20:,.0f}"
    assert len(rows) == sum(length == LONGEST and name in MECHANISMS for name, length in LAYERS)
    assert all(record.date[:10] in costs and record.device in costs for record in RECORDS)
    # The answers of the questions are among these.
    shown = {(name_of(row[0]), row[speed]) for row in rows}
    answers = [x for _, taken in table_of(text, "question")[1:] for x in taken.split("; ")]
    assert {(name_of(x), x.rpartition(", ")[2]) for x in answers} <= shown


@pytest.mark.parametrize("name", sorted({name for name, _ in LAYERS} & set(MECHANISMS)))
def test_mechanism_page_has_the_figures_of_the_record(name):
    text = (ROOT / "docs" / "mechanisms" / f"{name}.md").read_text()
    cost = text.partition("## Cost")[2].partition("## Relatives")[0]
    assert f"`longspan bench`, {DATES[name]}" in cost
    _, *rows = table_of(cost.partition("A training step")[2], "tokens")
    lengths = sorted(length for other, length in LAYERS if other == name)
    assert [row[0] for row in rows] == [f"{length:,}" for length in lengths]
    for row, length in zip(rows, lengths, strict=True):
        assert row[1] == f"{1e3 * LAYERS[name, length].median:,.0f}"
        assert tuple(row[2:4]) == (ratios(name, length) or ("–", "–"))


def test_no_page_reads_another_record_of_these_layers():
    """Records of benchmarks hold layers in bfloat16 alone for a page to read."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    section = page.partition("## One layer of every mechanism")[2].partition("\n## ")[0]
    assert section.startswith(" in bfloat16\n")
    rows = json.loads((ROOT / "benchmarks" / "results" / "layer-cpu.json").read_text())["rows"]
    full = next(x for x in rows if (x["mechanism"], x["dtype"]) == ("full", "float32"))
    assert full["length"] == 1024
    _, *shown = table_of(section, "mechanism | T = 1,024: ms")
    bfloat16 = {x["mechanism"]: x for x in rows if x["dtype"] == "bfloat16" and x["length"] == 1024}
    assert {name_of(x[0]): x[1] for x in shown} == {
        name: f"{1e3 * x['median']:,.0f}" for name, x in bfloat16.items()
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    naming = {path.name for path in pages if "layer-cpu" in path.read_text()}
    assert naming <= {"performance.md"}  # its figures in bfloat16
