"""Command line: flags, help, exit codes and JSON."""

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import typer
from typer.testing import CliRunner

import longspan.cli
import synthetic
import tiny
from longspan.arena.experiment import hash_config
from longspan.arena.protocols.base import protocol_names
from longspan.attention import MECHANISMS
from longspan.config import Budget
from longspan.results import Failure, RunRecord, load_results, result_paths
from longspan.tasks import TASKS
from test_cli_errors import check_rejected

COMMON, DATA = {"--import", "--help", "--quiet", "-q"}, {"--cache", "--data"}
SHORT_RECALL = (
    *("training.steps=2", "training.warmup_steps=1", "training.evaluate_every=1"),
    *("task.train=64", "task.validation=8", "task.test=8", "model.position=none"),
)
SHARED, GROUP = {*COMMON, "--json"}, {"--help", "-h"}
RUNS = "--accept-changes --budget --device --dry-run --measure --parallel --protocol --runs --set"
RUNS, TASK = {*RUNS.split()}, {"--cache", "--protocol", "--set"}
HELD_OUT = {"--name", "--replace", "--test", "--validation"}
ROWS = {*HELD_OUT, "--delimiter", "--drop-empty", "--encoding", "--text"}
LABELS = {*ROWS, "--label", "--pair", "--separator", "--target"}
SUMMARY = {*ROWS, "--summary"}
READING = {
    "--delimiter",
    "--document",
    "--encoding",
    "--kind",
    "--limit",
    "--skip-bad",
    "--text",
    "--vocab-size",
}
FLAGS = {
    "": {*GROUP, "--debug", "--version"},
    "arena": {*RUNS, *SHARED, *DATA, "--cpus-per-run", "--gpus-per-run", "--grid", "--mechanisms",
              "--ray", "--retry-failed", "--score-trials", "--seeds", "--select", "--tasks",
              "--tune", "--workers"},
    "train": {*RUNS, *SHARED, *DATA, "MECHANISM", "TASK", "--seed"},
    "pretrain": {*RUNS, *SHARED, "CORPUS", "START", "--cache", "--extend-positions", "--mechanism",
                 "--seed"},
    "finetune": {*RUNS, *LABELS, *SUMMARY, *SHARED, *DATA, "CHECKPOINT", "TASK",
                 "--all", "--class-weights", "--compare", "--extend-positions", "--mechanism",
                 "--metric", "--seed", "--threshold"},
    "eval": {*SHARED, *DATA, "RECORDS", "--batch-size", "--device", "--examples", "--lengths",
             "--set", "--split", "--task"},
    "predict": {*SHARED, *DATA, "FILE", "RECORD", "--delimiter", "--device", "--encoding",
                "--evidence", "--id", "--output", "--pair", "--probabilities", "--text",
                "--threshold"},
    "generate": {*SHARED, *DATA, "CHECKPOINT", "--device", "--greedy", "--max-new-tokens",
                 "--prefill-chunk-size", "--prompt", "--prompt-file", "--prompt-ids", "--seed",
                 "--temperature", "--top-k", "--top-p"},
    "answers": {*SHARED, *DATA, "RECORD", "--batch-size", "--device", "--output", "--split"},
    "export": {*SHARED, *DATA, "RECORD", "--license", "--output"},
    "longify": {*SHARED, "SOURCE", "--decoder-max-length", "--drop", "--freeze", "--max-length",
                "--mechanism", "--new", "--output", "--positions", "--revision", "--seed", "--set"},
    "convert": {*SHARED, "SOURCE", "--drop", "--new", "--output", "--revision", "--seed", "--to"},
    "list": {*SHARED, "WHAT"},
    "show": {*SHARED, "NAME"},
    "protocols": GROUP,
    "protocols check": {*SHARED, "NAME", "--all", "--cache", "--tasks"},
    "protocols diff": {*SHARED, "A", "B", "--cache", "--mechanisms", "--tasks"},
    "data": GROUP,
    "data list": {*SHARED, *DATA},
    "data build": {*SHARED, *DATA, *TASK, "TASK"},
    "data import": GROUP,
    "data import TASK": {*SHARED, *TASK, "PATH", "TASK"},
    "data import texts": {*LABELS, *SHARED, *TASK, "PATH"},
    "data import summaries": {*SUMMARY, *SHARED, *TASK, "PATH"},
    "data import questions": {*HELD_OUT, *SHARED, *TASK, "PATH", "--answer", "--context",
                              "--delimiter", "--encoding", "--question"},
    "data import search": {*HELD_OUT, *SHARED, *TASK, "PATH", "--delimiter", "--document",
                           "--encoding", "--query"},
    "data import corpus": {*HELD_OUT, *READING, *SHARED, *TASK, "PATH", "--objective",
                           "--tokenizer", "--vocabulary", "--weights"},
    "data import beir": {*HELD_OUT, *SHARED, *TASK, "PATH"},
    "data import dpr": {*HELD_OUT, *SHARED, *TASK, "PATH"},
    "data tokenizer": {*READING, *COMMON, "PATH", "--lowercase", "--output"},
    "data verify": {*SHARED, "TASK", "--cache"},
    "data card": {*COMMON, *TASK, "TASK"},
    "data show": {*COMMON, *TASK, "TASK", "--count", "--output", "--row", "--split"},
    "report": {*SHARED, "PLACES", "--figure-format", "--figures", "--format", "--legend",
               "--mechanisms", "--output", "--section", "--spread", "--style", "--sweep", "--wide"},
    "analyze": {*SHARED, *DATA, "RECORDS", "--device", "--examples", "--rollout",
                "--samples", "--token"},
    "bench": {*SHARED, "SUITE", "--batch-size", "--device", "--dtypes", "--heads", "--hidden-size",
              "--layers", "--lengths", "--max-seconds", "--mechanisms", "--output", "--padding",
              "--passes", "--runs", "--scopes", "--threads", "--times", "--tokens"},
    "context": {*SHARED, *DATA, "RECORDS", "--blocks", "--device", "--max-context", "--split",
                "--tolerance"},
    "results": GROUP,
    "results list": {*SHARED, "FOLDERS"},
    "results check": {*SHARED, "PATHS", "--contribution"},
    "results export": {*SHARED, "FOLDERS", "--output"},
    "results rerun": {*SHARED, *DATA, "RECORD"},
    "results diff": {*SHARED, "A", "B"},
}  # fmt: skip


def flags_by_command(command, name=""):
    """Return the names of the options and arguments of every command."""
    context = typer.Context(command, **command.context_settings)
    found = set()
    for parameter in command.get_params(context):
        options = [*parameter.opts, *parameter.secondary_opts]
        named = [option for option in options if option.startswith("-")]
        found |= set(named or [parameter.name.upper()])
    flags = {name: found}
    for word, child in getattr(command, "commands", {}).items():
        flags |= flags_by_command(child, f"{name} {word}".strip())
    return flags


def test_set_of_flags_is_frozen():
    """Pin the flags: scripts depend on them, and a change belongs in the changelog."""
    assert flags_by_command(typer.main.get_command(longspan.cli.app)) == FLAGS


def stated_defaults(command, name=""):
    """Return the defaults that are documented as text, by command and parameter."""
    found = {
        f"{name} {parameter.name}": parameter.show_default
        for parameter in command.get_params(typer.Context(command))
        if isinstance(parameter.show_default, str)
    }
    for word, child in getattr(command, "commands", {}).items():
        found |= stated_defaults(child, f"{name} {word}".strip())
    return found


def test_every_command_has_help_with_every_default():
    """Detect defaults that Rich removes because it parses square brackets as markup."""
    stated = stated_defaults(typer.main.get_command(longspan.cli.app))
    assert len(stated) > 20
    for command in FLAGS:
        done = CliRunner().invoke(longspan.cli.app, [*command.split(), "-h"], terminal_width=300)
        assert done.exit_code == 0
        assert "Usage" in done.output
        text = " ".join(done.output.replace("│", " ").split())
        assert ("Examples:" in text) == (FLAGS[command] != GROUP and command != "")
        own = {name: words for name, words in stated.items() if name.rpartition(" ")[0] == command}
        for name, words in own.items():
            assert words in text, name
        assert text.count("default: ") >= len(own)
        assert not re.search(r"\w \.( |$)", text)
        if command == "generate":  # options that commands share are behind its own
            flags = ("--prompt", "--top-k", "--cache", "--json", "--import")
            places = [text.index(f" {flag} ") for flag in flags]
            assert places == sorted(places)
            assert "Most probable tokens to sample from; none: all." in text


def test_interrupt_prints_how_to_resume(cli, tiny_cache, tmp_path, monkeypatch):
    """Send the signal of Ctrl-C in the middle of training; a process of its own: test_cli_data."""
    from longspan.training.loop import StageTrainer

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "_validate", lambda *_: signal.raise_signal(signal.SIGINT))
        code, out, err = cli(*tiny.command(tmp_path, tiny_cache))
    signal.signal(signal.SIGINT, before)
    assert code == 130
    assert out == ""
    assert err.splitlines()[-1] == "Interrupted. Run the same command to resume."
    assert "Traceback" not in err
    code, out, _ = cli(*tiny.command(tmp_path, tiny_cache))
    assert (code, "local" in out) == (0, True)


def test_train_command_equals_run_and_prints_a_table(cli, tiny_cache, tmp_path, finished):
    out, err = cli.done(*tiny.command(tmp_path, tiny_cache, "--json"))
    (table,) = json.loads(out)
    (row,) = table["rows"]
    assert (row["protocol"], row["mechanism"]) == ("smoke", "local")
    assert "step 12/12" in err
    (made,) = load_results([tmp_path])
    expected = next(result for result in load_results([finished]) if result.mechanism == "local")
    assert (made.config_hash, made.scores) == (expected.config_hash, expected.scores)


def test_quiet_command_prints_its_result_and_problems_alone(cli, tiny_cache, tmp_path):
    command = tiny.command(tmp_path, tiny_cache)
    code, _, err = cli(*command)
    (record,) = result_paths(tmp_path)
    assert code == 0
    assert f"next: longspan report {record}\n" in err
    assert f"next: longspan eval {record} --cache {tiny_cache}\n" in err
    code, out, err = cli(*command, "-q")
    assert (code, err) == (0, "")
    assert "local" in out
    code, out, err = cli("report", tmp_path / "nowhere", "-q")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_version_is_that_of_the_package(cli):
    assert cli("--version") == (0, f"longspan {longspan.__version__}\n", "")


def test_arena_command_prints_table_and_writes_page(cli, tiny_cache, tmp_path):
    out, err = cli.done(*tiny.arena_command(tmp_path, tiny_cache, "--seeds", "0,1", "--json"))
    assert len(json.loads(out)) == 1
    page = tmp_path / "smoke" / "report.html"
    assert f"report: {page}" in err
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    local = load_results([tmp_path])
    assert sorted(result.seed for result in local) == [0, 1]
    # The folder has another mechanism, for which nobody asked.
    config = dataclasses.replace(
        local[0].config, mechanism=dataclasses.replace(local[0].config.mechanism, name="full")
    )
    dataclasses.replace(
        local[0], config=config, config_hash=hash_config(config), family="dense"
    ).save(tmp_path)
    _, out, err = cli(*tiny.arena_command(tmp_path, tiny_cache, "--seeds", "0,1", "--json"))
    assert {row["mechanism"] for row in json.loads(out)[0]["rows"]} == {"local"}
    assert "1 other row is in the page alone" in err


def test_page_keeps_earlier_records_of_runs_folder(tmp_path, capsys):
    """Check that unreadable records are reported and skipped."""
    from longspan.cli.reporting import print_report

    (local, *_, linear), full = (
        list(synthetic.records("smoke", 2, [name])) for name in ("local", "full")
    )
    full[0].save(tmp_path)
    local.save(tmp_path)
    budget = Budget(kind="seconds", limit=60.0)
    config = dataclasses.replace(local.config, budget=budget)
    timed = dataclasses.replace(local, config=config, config_hash=hash_config(config), seed=7)
    timed.save(tmp_path)
    identity = {field.name: getattr(linear, field.name) for field in dataclasses.fields(RunRecord)}
    (tmp_path / "smoke/text").mkdir()
    (tmp_path / "smoke/text/foreign.failed.json").write_text("{}")
    (tmp_path / "smoke/text/odd.json").write_text("{}")
    Failure(**identity, kind="memory", reason="none left", step=1).save(tmp_path)
    print_report([local], tmp_path / "smoke", as_json=True)
    printed, errors = capsys.readouterr()
    (table,) = json.loads(printed)
    assert {row["mechanism"] for row in table["rows"]} == {"full", "local"}
    print_report([local], tmp_path / "smoke", as_json=True, rows=["local"])
    printed, notes = capsys.readouterr()
    (table,) = json.loads(printed)
    assert {row["mechanism"] for row in table["rows"]} == {"local"}
    assert "note: 1 other row is in the page alone" in notes
    page = (tmp_path / "smoke" / "report.html").read_text()
    assert "full" in page
    assert "none left" in page
    assert "equal training time" in page
    foreign, odd = (line for line in errors.splitlines() if line.startswith("left out: "))
    assert "foreign.failed.json is not a longspan record" in foreign
    assert "odd.json is not a longspan record" in odd


def test_runs_are_tabled_where_the_charts_of_the_page_are_not_installed(
    tmp_path, capsys, monkeypatch
):
    from longspan.cli.reporting import print_report
    from longspan.report.output import page

    def fail():
        raise PackageNotFoundError("vl-convert-python")

    monkeypatch.setattr(page, "packed_libraries", fail)
    local = next(iter(synthetic.records("smoke", 1, ["local"])))
    local.save(tmp_path)
    print_report([local], tmp_path / "smoke", as_json=True)
    printed, errors = capsys.readouterr()
    assert json.loads(printed)[0]["rows"][0]["mechanism"] == "local"
    assert "no report: the package vl-convert-python is not installed; pip install" in errors
    assert f"then longspan report {tmp_path / 'smoke'}" in errors
    assert not (tmp_path / "smoke/report.html").exists()


def test_arena_with_failed_run_reports_others_and_exits_with_1(
    cli, tiny_cache, tmp_path, monkeypatch
):
    code, *_ = cli(*tiny.arena_command(tmp_path, tiny_cache))
    assert code == 0
    record = next(tmp_path.rglob("local-*-0.json"))
    record.write_text("{}")
    code, out, err = cli(*tiny.arena_command(tmp_path, tiny_cache, "--seeds", "0,1"))
    assert code == 1
    assert "local" in out
    failed = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 1
    assert str(record) in failed[0]
    shutil.rmtree(tmp_path / "smoke")
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    code, out, err = cli(*tiny.arena_command(tmp_path, tiny_cache))
    assert (code, out) == (1, "")


def test_arena_reports_and_skips_tasks_without_data(cli, nowhere, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        longspan.cli.running, "_run", lambda made, paths, how: (seen.extend(made), ([], []))[1]
    )
    path_flags = ["--runs", tmp_path / "runs", "--cache", tmp_path / "cache"]
    code, _, err = cli("arena", "--protocol", "smoke", "--mechanisms", "local", *path_flags)
    assert {experiment.task for experiment in seen} == {"listops"}
    told = dict(line.removeprefix("left out: ").split(": ", 1) for line in err.splitlines())
    assert set(told) == {"text"}
    assert told["text"].startswith("IMDB is not here")
    # No run was executed.
    assert code == 1


def test_eval_prints_recorded_scores(cli, finished, tiny_cache):
    path = next(finished.rglob("local-*.json"))
    record = json.loads(path.read_text())
    out, _ = cli.done("eval", finished, "--cache", tiny_cache, "--device", "cpu", "--json")
    for found in json.loads(out):
        (run,) = finished.rglob(f"{found.pop('run')}.json")
        assert found.pop("inference")["examples_per_second"] > 0
        assert found == {"split": "test", **json.loads(run.read_text())["scores"]["test"]}
    out, _ = cli.done("eval", path, "--cache", tiny_cache, "--split", "validation")
    accuracy = record["scores"]["validation"]["metrics"]["accuracy"]
    assert f"{path.stem}: validation accuracy {100 * accuracy:.1f} %" in out
    assert "40 examples" in out
    out, _ = cli.done("eval", path, "--cache", tiny_cache, "--split", "train", "--examples", "30")
    assert out.startswith(f"{path.stem}: train accuracy")
    assert "30 examples" in out
    assert "examples/s" in out


def test_lengths_of_several_runs_name_those_that_cannot(cli, finished, tiny_cache):
    paths = sorted(finished.rglob("l*.json"))
    where = ("--cache", tiny_cache, "--device", "cpu")
    code, out, err = cli("eval", finished, "--lengths", "16,32", *where, "--json")
    assert (code, json.loads(out)) == (1, [])
    for path in [x for x in paths if "work" not in x.parts]:
        assert f"failed: {path.stem}: no option of task 'listops' called 'length'" in err


def test_several_evaluations_of_one_run_hide_no_failure_of_another(cli, tmp_path, tiny_cache):
    """The exit code counts runs, not evaluations."""
    runs = tmp_path / "runs"
    where = ("--cache", tiny_cache, "--device", "cpu")
    short = [x for name in SHORT_RECALL for x in ("--set", name)]
    for name in ("local", "linformer"):  # one has parameters for the length of its training
        cli.done("train", name, "recall", "--protocol", "quick", "--runs", runs, *short, *where)
    code, out, err = cli("eval", runs, "--lengths", "64,128", *where, "--json")
    assert code == 1
    assert [one["mechanism"] for one in json.loads(out)] == ["local", "local"]
    assert "failed: linformer" in err


def test_report_sweeps_an_option(cli, finished, tmp_path):
    out, _ = cli.done("report", finished, "--sweep", "mechanism.window", "--json")
    (line,) = json.loads(out)[0]["rows"]
    assert "local" in line.values()
    found = cli("report", finished, "--sweep", "mechanism.windw")
    check_rejected(found, "did you mean mechanism.window")


@pytest.mark.parametrize(("what", "names"), [
    ("mechanisms", MECHANISMS), ("tasks", TASKS), ("protocols", protocol_names()),
])  # fmt: skip
def test_list_prints_every_name(cli, what, names):
    out, _ = cli.done("list", what, "--json")
    assert {row["name"] for row in json.loads(out)} == set(names)
    out, _ = cli.done("list", what)
    assert all(name in out for name in names)


@pytest.mark.parametrize("name", [*MECHANISMS, *TASKS, *protocol_names()])
def test_show_describes_every_name(cli, name):
    out, _ = cli.done("show", name, "--json")
    described = json.loads(out)
    out, _ = cli.done("show", name)
    parts = {x for x in described if name in protocol_names() and x.endswith(")")}
    assert all(title in out for title in described.keys() - parts)


def test_recipe_of_a_protocol_is_a_table_of_what_is_no_default(cli):
    _, out, _ = cli("show", "quick")
    rows = {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}
    assert rows["field"] == ["needle", "recall"]
    assert rows["training.learning_rate"] == ["0.002", "0.003"]
    assert rows["task.pairs"] == ["–", "8"]
    assert rows["model.position"] == ["'none'", "'learned'"]
    assert "model.adaptive_factor" not in out  # 4, the default
    assert len(out.splitlines()) < 80


def test_show_prints_pattern_of_mechanism(cli):
    _, out, _ = cli("show", "local", "--json")
    described = json.loads(out)
    (title,) = (title for title in described if title.startswith("weights"))
    rows = described[title].splitlines()
    assert len(rows) == len(rows[0]) == 48
    assert all(row[i] != "·" for i, row in enumerate(rows))
    assert rows[0][-1] == rows[-1][0] == "·"


def test_report_prints_formats_and_writes_page(cli, finished, tmp_path):
    page = tmp_path / "page" / "report.html"
    outputs = {}
    for format in ("terminal", "markdown", "csv"):
        code, outputs[format], err = cli("report", finished, "--output", page, "--format", format)
        assert code == 0
        assert err == f"report: {page}\n"
        assert "local" in page.read_text()
    assert "| local" in outputs["markdown"]
    rows = list(csv.reader(io.StringIO(outputs["csv"])))
    assert len({len(row) for row in rows}) == 1
    code, out, _ = cli("report", finished, "--output", page, "--json")
    assert len(json.loads(out)[0]["rows"]) >= 2


def test_report_writes_a_table_for_a_paper(cli, finished, tmp_path):
    shown = ["report", finished, "--style", "paper", "--mechanisms", "local"]
    code, out, err = cli(*shown)
    assert (code, err) == (0, "")
    assert "\\toprule" in out
    assert not (tmp_path / "report.html").exists()
    table, figures = tmp_path / "x.tex", tmp_path / "figures"
    written = ["--output", table, "--figures", figures, "--figure-format", "pdf"]
    code, printed, err = cli(*shown, *written)
    assert (code, printed) == (0, "")
    assert table.read_text() == out
    assert err.startswith(f"table: {table}")
    assert {path.suffix for path in figures.iterdir()} == {".pdf"}


def test_report_shows_chosen_mechanisms_only(cli, finished, tmp_path):
    page = ["--output", tmp_path / "report.html", "--format", "csv"]
    _, out, _ = cli("report", finished, *page)
    _, chosen, _ = cli("report", finished, *page, "--mechanisms", "local")
    every, found = (
        {row["mechanism"] for row in csv.DictReader(io.StringIO(text))} for text in (out, chosen)
    )
    assert found == {"local"} < every


def test_report_of_a_record_is_a_page_of_the_run(cli, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = next(path for path in result_paths(finished) if path.name.startswith("local"))
    out, err = cli.done("report", record, "--format", "csv")
    page = tmp_path / f"{record.stem}.html"
    assert err == f"report: {page.name}\n"
    assert "longspan train local listops" in page.read_text()
    assert next(csv.DictReader(io.StringIO(out)))["split"] == "test"


def test_arena_tune_option_runs_search(cli, tiny_cache, tmp_path):
    command = tiny.arena_command(tmp_path, tiny_cache, "--json", "--tune", "--seeds", "0,3")
    rate = command.index("training.learning_rate=0.01")
    del command[rate - 1 : rate + 1]
    out, err = cli.done(*command, "--grid", "training.learning_rate=1e-12,0.01")
    assert json.loads(out)
    assert "run 3/4  local on listops, learning_rate=0.01: validation" in err
    assert err.count(": test ") == 2
    records = load_results([tmp_path])
    assert [record.seed for record in records] == [0, 3]
    assert records[0].tuning.grid == {"training.learning_rate": [1e-12, 0.01], "seed": [0, 3]}
    assert len(list(tmp_path.glob("smoke/listops/trials/*.json"))) == 4
    _, err = cli.done(
        *command, "--grid", "training.learning_rate=0.01,0.02", "--select", "best-run"
    )
    assert "moved: local-" in err
    assert len(load_results([tmp_path])) == 1


def test_grid_values_are_parsed_as_json_or_words():
    from longspan.cli.parsing import parse_grid

    pairs = [
        "training.schedule=linear, cosine",
        "training.max_grad_norm=null,1",
        "training.adam_betas=[0.9,0.99],[0.8,1]",
    ]
    assert parse_grid(pairs) == {
        "training.schedule": ["linear", "cosine"],
        "training.max_grad_norm": [None, 1],
        "training.adam_betas": [[0.9, 0.99], [0.8, 1]],
    }
    assert parse_grid(None) == {}


def test_terminal_without_unicode_gets_every_output(finished, tmp_path):
    """Print a report, which has dashes and arrows."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    report = ["report", finished, "--format", "markdown", "--output", tmp_path / "x.html"]
    command = [sys.executable, "-m", "longspan", *report]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert len(done.stdout) > 200


def test_long_argument_is_cut_in_the_error(cli):
    code, _, err = cli("show", "x" * 20_000)
    assert code == 2
    assert "no mechanism, task or protocol called 'xxxx" in err
    assert "there are: aan_retrieval" in err
    assert len(err) < 2000


def test_unknown_parallelism_is_rejected_before_data_is_built(cli, tmp_path):
    found = cli("train", "full", "listops", "--parallel", "/dev/null", "--cache", tmp_path)
    check_rejected(found, "no parallelism called '/dev/null'; there are: context, ddp, fsdp")
    assert not list(tmp_path.iterdir())


def test_parallelism_of_one_process_is_named_as_ignored(cli, tmp_path):
    """It was ignored without a word."""
    missing = ("--data", tmp_path / "none")  # ends the command early
    _, _, err = cli("train", "full", "listops", "--parallel", "fsdp", *missing)
    assert "ignored: --parallel; start processes with torchrun or accelerate" in err
