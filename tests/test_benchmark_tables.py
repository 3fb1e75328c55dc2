"""Pages of the benchmarks: current, whole, and rendered by files of a readable size."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from longspan.attention import MECHANISMS
from longspan.results import load_results

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def tables(import_script):
    return import_script("tables")


def test_committed_page_is_that_of_the_records(tables):
    assert tables.PAGE.read_text() == tables.render()


def test_every_record_has_a_section(tables):
    titles = [line for line in tables.render().splitlines() if line.startswith("## ")]
    records = [name for name in tables.SECTIONS if (tables.RESULTS / name).exists()]
    assert len(titles) == len(records) > 5


def test_overhead_of_the_loop_follows_from_the_rates_beside_it(tables):
    section = tables.render().partition("## Overhead of the training loop")[2].partition("\n## ")[0]
    rows = [line.split("|")[4:7] for line in section.splitlines() if line.startswith("| `")]
    assert rows
    for bare, loop, overhead in rows:
        lost = 1 - int(loop.replace(",", "")) / int(bare.replace(",", ""))
        assert overhead.strip() == f"{100 * lost:.1f} %"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_scripts_are_of_a_readable_size(path):
    assert len(path.read_text().splitlines()) <= 400


def test_results_have_a_short_section_for_every_protocol(import_script):
    folder = BENCHMARKS.parent / "results"
    page = (folder / "README.md").read_text()
    protocols = {path.parents[1].name for path in folder.glob("*/*/*.json")} - {"efficiency"}
    assert set(re.findall(r"^## (.*)$", page, re.M)) == protocols
    boards = import_script("result_tables").build_leaderboards(
        load_results([folder / "lra-converged"])
    )
    section = "\n".join(import_script("summaries").summaries(boards))
    assert section.rstrip() in page
    assert "| full | 37.0 | 37.5 | 62.6 (floor) |" in section
    assert "| without a model | 24.7 | 33.4 | 61.8 |" in section
    assert len(page.split()) <= 6_000


def test_table_of_ways_is_that_of_the_record(import_script):
    """A verdict counts seeds, and needs a p-value below 0.05."""
    tables = import_script("document_tables")
    rows = json.loads(tables.RECORD.read_text())["rows"]
    page = tables.PAGE.read_text()
    assert "\n".join(tables.render(rows)).strip() in page
    whole = [x for x in rows if x["set"] == "posts" and tables.way(x) == "whole, local attention"]
    assert {x["seed"] for x in whole} == {0, 1, 2}
    lost = sum(x["p_value"] < 0.05 and x["fewer_errors"][0] < x["fewer_errors"][1] for x in whole)
    assert f"worse {lost} of 3" in tables.cell(whole)
    assert tables.cell([{**x, "p_value": 0.05} for x in whole]).endswith("level")
    assert tables.cell([{**x, "fewer_errors": [9, 1], "p_value": 0.01} for x in whole]).endswith(
        "better 3 of 3"
    )


def test_recurrences_keep_their_goals_in_the_record():
    """Decay without the delta rule within 1.6 of `linear`; no rule slower than transformers'."""
    rows = json.loads((BENCHMARKS / "results" / "recurrences-cpu.json").read_text())["rows"]
    decays = [x["over_linear"] for x in rows if x["rule"] in ("ssd", "gated_linear")]
    peers = [x["over_transformers"] for x in rows if "over_transformers" in x]
    assert (len(decays), len(peers)) == (12, 10)
    assert max(decays) <= 1.6
    assert min(peers) >= 1


def test_decoding_time_of_recurrences_does_not_grow_in_the_record():
    record = json.loads((BENCHMARKS / "results" / "decoding-recent-cpu.json").read_text())
    rows = {x["mechanism"]: x for x in record["rows"]}
    constant = [name for name in rows if MECHANISMS[name].traits.state_size == "1"]
    assert len(constant) >= 9
    for name in constant:
        assert rows[name]["prefixes"][-1]["prefix"] == 100_000
        assert abs(rows[name]["growth"]) < 0.1, name


def test_pairs_alone_are_read_better_than_by_words_in_the_record(import_script):
    """The sentences under the table of ways: no way wins on documents, the whole does on pairs."""
    tables = import_script("document_tables")
    rows = [x for x in json.loads(tables.RECORD.read_text())["rows"] if "seed" in x]
    wins = {
        (x["set"], tables.way(x), x["seed"])
        for x in rows
        if x["p_value"] < tables.SIGNIFICANT and x["fewer_errors"][0] > x["fewer_errors"][1]
    }
    assert {name for name, *_ in wins} == {"citations"}
    whole = {seed for _, way, seed in wins if way == "whole, local attention"}
    assert whole == {0, 1, 2}


def test_an_hour_of_pretraining_is_no_help_in_the_record(import_script):
    """The sentence under the table of ways: below a new model that reads the same, on every set."""
    tables = import_script("document_tables")
    record = json.loads(tables.RECORD.read_text())
    accuracies = {}
    for row in record["rows"]:
        accuracies.setdefault((row["set"], tables.way(row)), []).append(row["metrics"]["accuracy"])
    same = {"pretrained whole": "whole", "pretrained head": "head"}
    titles = {tables.TITLES[a]: tables.TITLES[b] for a, b in same.items()}
    pairs = {name: titles[name[1]] for name in accuracies if name[1] in titles}
    assert len(pairs) == 6
    for (name, way), new in pairs.items():
        assert fmean(accuracies[name, way]) < fmean(accuracies[name, new]), (name, way)
    encoder, page = record["encoder"], tables.PAGE.read_text()
    said = (
        f"{encoder['seconds'] / 60:.0f} minutes of one core, perplexity {encoder['perplexity']:.0f}"
    )
    assert said in page.replace("\n", " ")


def test_kernels_for_other_processors_double_the_speed_in_the_record():
    rows = json.loads((BENCHMARKS / "results" / "intel-kernels-cpu.json").read_text())["rows"]
    installed, preloaded = ([x for x in rows if x["preloaded"] is y] for y in (False, True))
    assert len(installed) == len(preloaded) == 3
    rates = [[x["flops_per_second"] for x in part] for part in (installed, preloaded)]
    times = [[x["seconds"] for x in part] for part in (installed, preloaded)]
    assert min(rates[1]) >= 2 * max(rates[0])
    assert min(times[0]) >= 1.9 * max(times[1])


def test_shares_of_the_bound_of_whole_models_are_those_of_the_record():
    rows = json.loads((BENCHMARKS / "results" / "models-cpu.json").read_text())["rows"]
    page = (BENCHMARKS.parent / "docs" / "development" / "performance.md").read_text()
    shares = {}
    for row in rows:
        share = f"{100 * row['time_ratio'] / row['ratio_at_floor']:.0f}"
        shares.setdefault(row["model"], []).append(share)
    for model, said in {
        "LongformerModel": "{} and {} % (training, inference) for Longformer",
        "BigBirdModel": "{} and {} for BigBird",
        "ReformerModel": "{} and {} for Reformer",
        "LEDEncoder": "{} and {} for LED",
    }.items():
        assert said.format(*shares[model]) in page
    assert [f"{x} %" in page for x in shares["NystromformerModel"]] == [True, True]
