"""Commands of records: parsed by the command line, they name the configuration that ran."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from longspan.arena import get
from longspan.arena.experiment import replace_budget
from longspan.attention import options_of
from longspan.cli.parsing import parse_changes
from longspan.config import parse_budget
from longspan.results import TrialRecord, Tuning, load_result, load_results
from longspan.results.commands import commands_of, run_command

COMMITTED = Path(__file__).parents[2] / "results"
TASKS = ["lra-scaled/listops", "lra-small/listops"]


@pytest.fixture(scope="module")
def template():
    return load_results([COMMITTED / "lra-scaled" / "listops"])[0]


def parse(command):
    """Return the experiment that a line of `longspan train` makes."""
    words = shlex.split(command)
    assert words[:2] == ["longspan", "train"]
    (mechanism, task), options = words[2:4], list(zip(words[4::2], words[5::2], strict=True))
    named = dict(options)
    changes = parse_changes([value for name, value in options if name == "--set"])
    made = get(named["--protocol"]).row(task, mechanism, int(named["--seed"]), changes)
    return replace_budget(made, parse_budget(named["--budget"])) if "--budget" in named else made


def record_of(template, experiment):
    """Return a record of an experiment."""
    return dataclasses.replace(
        template,
        protocol=experiment.protocol,
        config=experiment.config,
        overrides=experiment.overrides,
        seed=experiment.seed,
        config_hash=experiment.hash,
    )


@pytest.mark.parametrize("folder", TASKS)
def test_commands_of_committed_records_make_their_configurations(folder):
    records = load_results([COMMITTED / folder])
    assert records
    for record in records:
        made, mechanism = parse(run_command(record)), record.config.mechanism
        # Options that are newer than the record have their defaults.
        options = options_of(mechanism.name) | mechanism.options
        mechanism = dataclasses.replace(mechanism, options=options)
        assert (made.config, made.seed, made.row_name) == (
            dataclasses.replace(record.config, mechanism=mechanism),
            record.seed,
            record.row_name,
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.steps": 7, "training.learning_rate": 3e-5},
        {"mechanism.window": [8, 32], "training.schedule": "constant"},
        {"model.pooling": "cls", "training.max_grad_norm": None},
    ],
)
def test_overrides_are_quoted_and_parsed_back(template, changes):
    made = get("smoke").row("listops", "longformer", 3, changes)
    found = parse(run_command(record_of(template, made)))
    assert found == made


def test_budget_and_named_rows_are_named(template):
    budget = parse_budget("seconds=600")
    made = replace_budget(get("smoke").row("listops", "full", 0), budget)
    assert parse(run_command(record_of(template, made))) == made
    row = get("lra-paper").named_rows[0]
    made = get("lra-paper").row(row.tasks[0], row.name, 1)
    assert parse(run_command(record_of(template, made))) == made
    made = get("xiong-ablations").row("text", "disjoint-64", 1)
    assert parse(run_command(record_of(template, made))) == made


def test_selected_values_of_a_search_are_set(template):
    made = get("smoke").row("listops", "full", 0, {"training.learning_rate": 3e-4})
    trial = TrialRecord(
        changes={}, seed=0, config_hash="0" * 10, metrics=None, loss=None, failure="died"
    )
    chosen = {"training.learning_rate": 3e-4, "seed": 0}
    tuning = Tuning(rule="mean", grid={}, chosen=chosen, trials=[trial])
    tuned = dataclasses.replace(record_of(template, made), overrides={}, tuning=tuning)
    assert parse(run_command(tuned)).config == made.config


def test_seeds_of_a_task_share_a_line(template):
    runs = [dataclasses.replace(template, seed=seed) for seed in (2, 0)]
    (line,) = commands_of(runs)
    assert line == (
        f"longspan arena --protocol lra-scaled --tasks listops --mechanisms {template.mechanism} "
        "--seeds 0,2"
    )
    assert commands_of(runs[:1]) == [run_command(runs[0])]
    assert commands_of([]) == []


@pytest.mark.parametrize("source", ["", "x", "/"])
def test_source_that_is_no_path_of_a_run_ends_in_no_traceback(source):
    path = next((COMMITTED / "xiong-small/aan_retrieval").glob("bigbird-*.json"))
    record = load_result(path)
    start = dataclasses.replace(record.start, source=source)
    overrides = {**record.overrides, "training.steps": 5}
    moved = dataclasses.replace(record, start=start, overrides=overrides)
    assert "aan_retrieval.bigbird.training.steps=5" in run_command(moved)


def test_commands_are_listed(cli, template, tmp_path):
    template.save(tmp_path)
    _, out, _ = cli("results", "list", tmp_path, "--json")
    assert json.loads(out)[0]["command"] == run_command(template)
