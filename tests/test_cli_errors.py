"""Rejected input, foreign files and full disks: single-line errors and no partial files."""

import dataclasses
import os
import shutil
import subprocess
import sys

import pytest

import tiny
from longspan.arena import PROTOCOLS, get
from longspan.files import read_json, write_json
from longspan.tasks import TASKS


def check_rejected(result, *parts, code=2):
    """Check that a command failed with one line that contains these parts."""
    exit_code, out, err = result
    assert exit_code == code, err
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert str(part) in lines[0]
    assert "Traceback" not in err


TRAIN = ("train", "local", "listops")
INVALID = {
    "corpus": (
        ["arena", "--protocol", "xiong-small", "--dry-run"],
        "needs long_documents, which is not imported; run longspan data import corpus ",
    ),
    "mechanism": (
        ["train", "locl", "listops"],
        "no mechanism or reference row called 'locl'; did you mean local?",
    ),
    "task": (["train", "local", "listop"], "no task of protocol 'lra-small' called 'listop'; did"),
    "protocol": ([*TRAIN, "--protocol", "quik"], "no protocol called 'quik'"),
    "no folder": ([*TRAIN, "--runs", ""], "--runs is empty; give a value, or omit it"),
    "no cache": ([*TRAIN, "--cache="], "--cache is empty; give a value, or omit it"),
    "part": ([*TRAIN, "--set", "trainig.steps=1"], "did you mean training?"),
    "field": ([*TRAIN, "--set", "training.stps=1"], "did you mean steps"),
    "option": ([*TRAIN, "--set", "mechanism.windw=1"], "did you mean window?"),
    "task option": ([*TRAIN, "--set", "task.trian=1"], "did you mean train"),
    "no field": ([*TRAIN, "--set", "steps=1"], "'steps' names no field; use PART.FIELD, such as"),
    "null": ([*TRAIN, "--set", "model.hidden_dropout_prob=null"], "should be a valid number"),
    "number for a word": ([*TRAIN, "--set", "model.norm=3"], "norm should be a valid string, got"),
    "position": ([*TRAIN, "--set", "model.position=x"], "no position called 'x'; there are: auto,"),
    "layers": ([*TRAIN, "--set", "model.num_hidden_layers=-1"], "must be at least 0, got -1"),
    "dropout": ([*TRAIN, "--set", "model.hidden_dropout_prob=1.5"], "must be in [0, 1), got 1.5"),
    "no examples": ([*TRAIN, "--set", "task.train=0"], "train should be greater than 0, got 0"),
    "depth": ([*TRAIN, "--set", "task.max_depth=1"], "max_depth should be greater than or equal"),
    "negative window": ([*TRAIN, "--set", "mechanism.window=-1"], "must be an integer >= 0, got"),
    "value": ([*TRAIN, "--set", "training.steps=ten"], "steps should be a valid integer"),
    "fraction": (
        [*TRAIN, "--set", "model.num_hidden_layers=1.5"],
        "num_hidden_layers should be a valid integer",
    ),
    "NaN": ([*TRAIN, "--set", "training.max_grad_norm=NaN"], "--set cannot take NaN"),
    "vast number": ([*TRAIN, "--set", "mechanism.window=1e999"], "--set cannot take 1e999"),
    "set twice": (
        [*TRAIN, "--set", "training.steps=1", "--set", "training.steps=2"],
        "--set names training.steps twice; name it once, with all its values",
    ),
    "no mechanisms": (
        ["arena", "--mechanisms", ","],
        "--mechanisms takes comma-separated names, got ','",
    ),
    "no tasks": (["arena", "--tasks", ""], "--tasks takes comma-separated names, got ''"),
    "no seeds": (["arena", "--seeds", ""], "--seeds takes comma-separated integers, got ''"),
    "empty option": ([*TRAIN, "--protocol", ""], "--protocol is empty; give a value, or omit it"),
    "empty argument": (["train", "", "listops"], "MECHANISM is empty; give a value, or omit it"),
    "heads": ([*TRAIN, "--set", "model.num_attention_heads=3"], "must be a multiple of"),
    "no heads": ([*TRAIN, "--set", "model.num_attention_heads=0"], "must be at least 1"),
    "window": ([*TRAIN, "--set", "mechanism.window=wide"], "window must be a"),
    "grammar": ([*TRAIN, "--set", "task.max_length=3"], "max_length"),
    "choice": ([*TRAIN, "--set", "model.norm=pr"], "did you mean pre"),
    "no value": ([*TRAIN, "--set", "training.steps"], "--set takes NAME=VALUE"),
    "markup": ([*TRAIN, "--set", "[/red][bold]=1"], "'[/red][bold]' names no"),
    "seed": ([*TRAIN, "--seed", "-1"], "seed must be at least 0, got -1"),
    "device": ([*TRAIN, "--device", "tpu"], "--device must be cpu, or omitted"),
    "data": (["train", "local", "text", "--data", "/nowhere"], "--data /nowhere does not exist"),
    "seeds": (["arena", "--seeds", "0,x"], "--seeds takes comma-separated integers, got '0,x'"),
    "grid": (["arena", "--tune", "--grid", "training.steps"], "--grid takes NAME=VALUES, such as"),
    "grid field": (["arena", "--tune", "--grid", "training.stps=1,2"], "did you mean steps"),
    "grid number": (["arena", "--tune", "--grid", "training.steps=1,NaN"], "--grid cannot take"),
    "grid twice": (
        ["arena", "--tune", "--grid", "training.steps=1", "--grid", "training.steps=2"],
        "--grid names training.steps twice; name it once, with all its values",
    ),
    "no grid": (["arena", "--tune"], "protocol 'quick' has no grid for any of its tasks; pass one"),
    "no tuning": (["arena", "--grid", "training.max_grad_norm=1,2"], "--grid needs --tune"),
    "scores of trials": (["arena", "--score-trials"], "--score-trials needs --tune"),
    "rule alone": (["arena", "--select", "mean"], "--select needs --tune"),
    "rule": (
        ["arena", "--tune", "--select", "men"],
        "no selection rule called 'men'; did you mean mean?",
    ),
    "arena mechanism": (["arena", "--mechanisms", "local,ful"], "'ful'; did you mean full"),
    "arena task": (["arena", "--tasks", "neddle"], "called 'neddle'; did you mean needle?"),
    "arena protocol": (["arena", "--protocol", "quik"], "did you mean quick?"),
    "list": (["list", "mechanism"], "no list called 'mechanism'; did you mean mechanisms?"),
    "show": (
        ["show", "performr"],
        "called 'performr'; did you mean performer, reformer",
    ),
    "format": (["report", "--format", "cvs"], "no format called 'cvs'; did you mean csv?"),
    "folder": (["report", "/nowhere"], "/nowhere is not a folder of results"),
    "style": (["report", "--style", "papr"], "no style called 'papr'; did you mean paper?"),
    "spread": (["report", "--style", "paper", "--spread", "seed"], "did you mean seeds?"),
    "spread without paper": (["report", "--spread", "seeds"], "--spread needs --style paper"),
    "paper format": (["report", "--style", "paper", "--format", "csv"], "leave --format csv out"),
    "paper section": (["report", "--style", "paper", "--section", "cost"], "leave --section out"),
    "record": (["eval", "/nowhere.json"], "/nowhere.json does not exist"),
    "split": (["eval", "/x.json", "--split", "tst"], "no split to score called 'tst'; did"),
    "build task": (["data", "build", "txt"], "called 'txt'; did you mean text, text8?"),
    "cache": (["data", "verify", "--cache", "/nowhere"], "/nowhere is not a folder of built data"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_input_is_rejected_with_single_line_and_exit_code_2(
    cli, monkeypatch, tmp_path, case
):
    monkeypatch.chdir(tmp_path)
    arguments, message = INVALID[case]
    check_rejected(cli(*arguments), message)
    assert list(tmp_path.iterdir()) == []


def test_unknown_flag_or_command_exits_with_2(cli):
    for arguments in (["train", "--protcol", "smoke"], ["trian"], ["train", "local"]):
        code, _, err = cli(*arguments)
        assert code == 2
        assert "Traceback" not in err


def test_error_of_nonzero_rank_names_rank():
    command = [sys.executable, "-m", "longspan", "report", "--format", "cvs"]
    launch = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    environment = {**os.environ, **launch}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "[rank 1] error: no format called 'cvs'; did you mean csv?\n"


def test_debug_flag_prints_traceback():
    """Without it, the same command prints one line: case "format" above."""
    command = [sys.executable, "-m", "longspan", "--debug", "report", "--format", "cvs"]
    debug = subprocess.run(command, capture_output=True, text=True, check=False)
    assert debug.returncode == 1
    assert "Traceback (most recent call last)" in debug.stderr
    assert debug.stderr.endswith("UnknownNameError: no format called 'cvs'; did you mean csv?\n")


def test_report_rejects_malformed_record(cli, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    path = next((tmp_path / "runs").rglob("full-*.json"))
    path.write_text(path.read_text()[:300])
    page = tmp_path / "report.html"
    check_rejected(cli("report", tmp_path / "runs", "--output", page), path, "is not JSON (line")
    assert not page.exists()


def build_command(cache, monkeypatch):
    """Return `data build` of a small data set; the protocol's own takes seconds."""
    smoke = get("smoke")
    recipe = smoke.recipe("listops")._replace(task_options=tiny.TASK)
    small = dataclasses.replace(smoke, recipe=lambda task: recipe)
    monkeypatch.setitem(PROTOCOLS, "smoke", small)
    return ["data", "build", "listops", "--protocol", "smoke", "--cache", cache]


def test_run_directory_with_changed_configuration_is_rejected(cli, finished, tiny_cache, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    record = next((tmp_path / "runs").rglob("local-*.json"))
    state = record.parent / "work" / record.stem / "experiment.json"
    record.unlink()
    content = read_json(state)
    content["config"]["model"]["num_hidden_layers"] = 2
    write_json(state, content)
    code, out, err = cli(*tiny.command(tmp_path / "runs", tiny_cache))
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert "error: " in line
    assert (
        "belongs to another configuration (model.num_hidden_layers: 2 there, 1 here); move it away"
        in line
    )
    assert "Traceback" not in err


def test_full_disk_in_training_leaves_no_partial_file(cli, small_disk, tiny_cache):
    code, out, err = cli(*tiny.command(small_disk, tiny_cache, changes={"model.hidden_size": 64}))
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("error: cannot write")
    assert line.endswith("free space or choose another folder")
    assert "Traceback" not in err
    left = {path.name for path in small_disk.rglob("*") if path.is_file()}
    allowed = {"experiment.json", "run.lock", "train.lock"}
    assert all(name in allowed or name.startswith("events.") for name in left)
    shutil.rmtree(small_disk / "smoke")


def test_full_disk_in_data_build_leaves_no_file(cli, small_disk, monkeypatch):
    monkeypatch.setitem(tiny.TASK, "train", 20_000)
    monkeypatch.setitem(tiny.TASK, "max_length", 60)
    monkeypatch.setattr(TASKS["listops"], "estimate_build", lambda task: None)
    result = cli(*build_command(small_disk, monkeypatch))
    check_rejected(result, "cannot write", "No space left", "free space or choose another folder")
    assert not [path for path in small_disk.rglob("*") if path.suffix != ".lock" and path.is_file()]
    shutil.rmtree(small_disk / "listops")


def test_full_disk_in_report_keeps_old_page(cli, small_disk, finished):
    page = small_disk / "report.html"
    page.write_text("old")
    check_rejected(
        cli("report", finished, "--output", page), page, "No space left on device", code=2
    )
    assert page.read_text() == "old"
    assert [path.name for path in small_disk.iterdir()] == ["report.html"]
    page.unlink()
