"""The speedrun: its rules, its record, its page, and a run to a small target."""

import json
from pathlib import Path

import pytest

from longspan.arena import get

TINY = {
    "task.train": 64,
    "task.validation": 32,
    "task.test": 32,
    "model.hidden_size": 8,
    "training.steps": 6,
    "training.warmup_steps": 1,
    "training.evaluate_every": 2,
    "training.batch_size": 4,
    "training.stop_at": 0.0,
}


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("speedrun")


@pytest.fixture(scope="module")
def tables(import_script):
    return import_script("speedrun_tables")


@pytest.fixture(scope="module")
def record(script, tmp_path_factory):
    """Record of a run that ends at its first evaluation."""
    experiments = script.experiments_of(get("speedrun"), "narrow-first", TINY)
    results = script.train(experiments, tmp_path_factory.mktemp("cache"))
    assert {x.steps for x in results} == {2}
    return script.summarize(results, "a test")


def test_recipe_keeps_the_rules(script):
    protocol = get("speedrun")
    assert (protocol.default_rows, protocol.seeds) == (["narrow-first"], script.SEEDS)
    for row in ("narrow-first", "full", "linear"):
        assert script.broken_rules(protocol.row("recall", row, 0)) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("task.pairs", 4, "task.pairs=4, expected 8"),
        ("task.seed", 1, "task.seed=1, expected 0"),
        ("task.train", 200_000, "task.train=200000, expected 100000"),
        ("training.stop_at", 0.9, "training.stop_at=0.9, expected 0.95 or more"),
        ("training.stop_at", None, "training.stop_at=None, expected 0.95 or more"),
        ("training.evaluate_every", 1, "training.evaluate_every=1, expected 25"),
    ],
)
def test_change_against_the_rules_is_named(script, name, value, expected):
    experiment = get("speedrun").row("recall", "narrow-first", 0, {name: value})
    assert script.broken_rules(experiment) == [expected]


def test_other_values_may_change(script):
    changes = {"training.stop_at": 0.96, "training.batch_size": 16, "model.num_hidden_layers": 1}
    assert script.broken_rules(get("speedrun").row("recall", "linear", 1, changes)) == []
    other = get("diagnostic").row("copying", "full", 0)
    assert "task copying, expected recall" in script.broken_rules(other)


def test_record_has_three_seeds_and_their_mean(script, record):
    assert [run["seed"] for run in record["runs"]] == [0, 1, 2]
    assert record["seconds"] == pytest.approx(sum(run["seconds"] for run in record["runs"]) / 3)
    assert json.loads(json.dumps(record)) == record
    lines = script.describe(record).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("seed 0: ")
    assert "2 steps, validation" in lines[0]
    assert lines[-1] == f"mean: {record['seconds']:.2f} s"


def test_seed_below_the_target_is_named(script, record):
    assert script.missed(record, 0.0) == []
    runs = [{**run, "validation": 0.96, "test": 0.951} for run in record["runs"]]
    assert script.missed({**record, "runs": runs}) == []
    runs[1] = {**runs[1], "test": 0.949}
    assert script.missed({**record, "runs": runs}) == ["seed 1: 94.9 % on test after 2 steps"]


def test_page_has_the_committed_records(tables):
    page = tables.PAGE.read_text()
    rendered = tables.render(tables.read_records())
    assert tables.replace_between(page, tables.OPEN, rendered) == page


def test_table_has_the_newest_record_first(tables, record):
    records = [{**record, "date": f"2026-0{month}-01", "commit": str(month) * 12}
               for month in (1, 3, 2)]  # fmt: skip
    lines = tables.render(records)
    assert [line.split(" | ")[5] for line in lines if line.startswith("| ")][1:] == [
        "`33333333`", "`22222222`", "`11111111`"
    ]  # fmt: skip
    assert tables.render([]) == ["There is no record yet."]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--record", "x", "--target", "0.5"], "--record has the target 0.95, got --target 0.5"),
        (["--protocol", "quick"], "against the rules of docs/speedrun.md"),
        (["--record", "x"], "--record needs a commit of everything; commit or remove\n M a.py"),
    ],
)
def test_command_refuses_with_a_reason(script, monkeypatch, capsys, words, expected):
    monkeypatch.setattr("sys.argv", ["speedrun.py", *words])
    monkeypatch.setattr(script, "uncommitted", lambda: " M a.py")
    monkeypatch.setattr(script, "use_cores", lambda: None)
    monkeypatch.setattr(script.os, "cpu_count", lambda: 2)
    with pytest.raises(SystemExit) as stopped:
        script.main()
    assert expected in capsys.readouterr().err + str(stopped.value)


def test_makefile_runs_the_script():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert "benchmarks/speedrun.py $(SPEEDRUN_OPTIONS)" in makefile
