"""Bad input, foreign files and full disks: one line with the remedy, and nothing half-written."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import tiny
from longspan.arena import PROTOCOLS, ModelConfig, TaskSpec, get


def refused(result, *parts, code=2):
    """Check that a command was refused in one line that holds these parts."""
    got, out, err = result
    assert got == code, err
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert str(part) in lines[0]
    assert "Traceback" not in err


BAD = {
    "mechanism": (["train", "locl", "listops"], "no mechanism called 'locl'; did you mean local?"),
    "task": (["train", "local", "listop"], "no task of protocol 'lra-small' called 'listop'; did"),
    "protocol": (["train", "local", "listops", "--protocol", "quik"], "no protocol called 'quik'"),
    "part": (["train", "local", "listops", "--set", "trian.steps=1"], "did you mean train?"),
    "field": (["train", "local", "listops", "--set", "train.stps=1"], "did you mean steps"),
    "option": (["train", "local", "listops", "--set", "options.windw=1"], "did you mean window?"),
    "task option": (["train", "local", "listops", "--set", "task.trian=1"], "did you mean train"),
    "value": (["train", "local", "listops", "--set", "training.steps=ten"], "steps must be a whole"),
    "fraction": (["train", "local", "listops", "--set", "model.layers=1.5"], "layers must be a wh"),
    "no number": (["train", "local", "listops", "--set", "training.max_grad_norm=NaN"], "NaN is no finite"),
    "vast number": (
        ["train", "local", "listops", "--set", "options.window=1e999"],
        "--set cannot take 1e999 (1e999 is no finite number)",
    ),
    "set twice": (
        ["train", "local", "listops", "--set", "training.steps=1", "--set", "training.steps=2"],
        "--set names training.steps twice; give it one value",
    ),
    "no mechanisms": (
        ["arena", "--mechanisms", ","], "--mechanisms takes names with commas between them, got ','"
    ),
    "no tasks": (["arena", "--tasks", ""], "--tasks takes names with commas between them, got ''"),
    "no seeds": (["arena", "--seeds", ""], "--seeds takes whole numbers, as 0,1,2, got ''"),
    "heads": (["train", "local", "listops", "--set", "model.heads=3"], "must be a multiple of"),
    "no heads": (["train", "local", "listops", "--set", "model.heads=0"], "must be at least 1"),
    "window": (["train", "local", "listops", "--set", "options.window=wide"], "window must be a"),
    "grammar": (["train", "local", "listops", "--set", "task.max_length=3"], "max_length"),
    "choice": (["train", "local", "listops", "--set", "model.norm=pr"], "did you mean pre"),
    "no value": (["train", "local", "listops", "--set", "training.steps"], "--set takes NAME=VALUE"),
    "markup": (["train", "local", "listops", "--set", "[/red][bold]=1"], "'[/red][bold]' names no"),
    "seed": (["train", "local", "listops", "--seed", "-1"], "a seed is a whole number, 0 or more"),
    "device": (["train", "local", "listops", "--device", "tpu"], "--device is cpu or left out"),
    "data": (["train", "local", "text", "--data", "/nowhere"], "--data /nowhere does not exist"),
    "seeds": (["arena", "--seeds", "0,x"], "--seeds takes whole numbers, as 0,1,2, got '0,x'"),
    "grid": (["arena", "--tune", "--grid", "training.steps"], "--grid takes NAME=VALUES, as train.le"),
    "grid field": (["arena", "--tune", "--grid", "train.stps=1,2"], "did you mean steps"),
    "grid number": (["arena", "--tune", "--grid", "training.max_grad_norm=1,NaN"], "NaN is no finite"),
    "grid twice": (
        ["arena", "--tune", "--grid", "training.max_grad_norm=1", "--grid", "training.max_grad_norm=2"],
        "--grid names training.max_grad_norm twice; give all its values at once",
    ),
    "no grid": (["arena", "--tune"], "protocol 'quick' has no grid for any of its tasks; give one"),
    "no tuning": (["arena", "--grid", "training.max_grad_norm=1,2"], "--grid needs --tune"),
    "rule alone": (["arena", "--rule", "mean"], "--rule needs --tune"),
    "rule": (["arena", "--tune", "--rule", "men"], "no rule called 'men'; did you mean mean?"),
    "arena mechanism": (["arena", "--mechanisms", "local,ful"], "'ful'; did you mean full"),
    "arena task": (["arena", "--tasks", "txt"], "called 'txt'; did you mean text?"),
    "arena protocol": (["arena", "--protocol", "quik"], "did you mean quick?"),
    "list": (["list", "mechanism"], "no list called 'mechanism'; did you mean mechanisms?"),
    "show": (["show", "performr"], "called 'performr'; did you mean performer, reformer?"),
    "format": (["report", "--format", "cvs"], "no format called 'cvs'; did you mean csv?"),
    "folder": (["report", "/nowhere"], "/nowhere is not a folder of results"),
    "record": (["eval", "/nowhere.json"], "/nowhere.json does not exist"),
    "record folder": (["eval", "/"], "/ cannot be read (Is a directory)"),
    "split": (["eval", "/x.json", "--split", "tst"], "no split to score called 'tst'; did"),
    "build task": (["data", "build", "txt"], "called 'txt'; did you mean text?"),
    "cache": (["data", "verify", "--cache", "/nowhere"], "/nowhere is no folder of built data"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(cli, monkeypatch, tmp_path, case):
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD[case]
    refused(cli(*arguments), message)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_flag_or_command_is_exit_code_2(cli):
    for arguments in (["train", "--protcol", "quick"], ["trian"], ["train", "local"]):
        code, _, err = cli(*arguments)
        assert code == 2
        assert "Traceback" not in err


def test_a_refusal_of_another_process_of_a_launcher_is_told_with_its_rank():
    command = [sys.executable, "-m", "longspan", "report", "--format", "cvs"]
    told = {**os.environ, "RANK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "[rank 1] error: no format called 'cvs'; did you mean csv?\n"


def test_debug_shows_the_traceback():
    """In processes of their own, as a user would see them."""
    command = [sys.executable, "-m", "longspan"]
    bad = ["report", "--format", "cvs"]
    plain = subprocess.run([*command, *bad], capture_output=True, text=True, check=False)
    assert (plain.returncode, plain.stdout) == (2, "")
    assert plain.stderr == "error: no format called 'cvs'; did you mean csv?\n"
    debug = subprocess.run([*command, "--debug", *bad], capture_output=True, text=True, check=False)
    assert debug.returncode == 1
    assert "Traceback (most recent call last)" in debug.stderr
    assert debug.stderr.endswith("UnknownNameError: no format called 'cvs'; did you mean csv?\n")


def test_a_malformed_record_is_refused_by_the_report(cli, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    path = next((tmp_path / "runs").rglob("full-*.json"))
    path.write_text(path.read_text()[:300])
    page = tmp_path / "report.html"
    refused(cli("report", tmp_path / "runs", "--output", page), path, "is not JSON (line")
    assert not page.exists()


def build_command(cache, monkeypatch):
    """`data build` of a small set: the protocol's own would take seconds."""
    _, _, train = get("quick").parts("listops")
    model = ModelConfig(width=8, layers=1, heads=1, feed_forward=8, classifier=8)
    parts = TaskSpec(name="listops", options=tiny.TASK), model, train
    small = get("quick").__class__(**{**vars(get("quick")), "parts": lambda task: parts})
    monkeypatch.setitem(PROTOCOLS, "quick", small)
    return ["data", "build", "listops", "--protocol", "quick", "--cache", cache]


def test_data_is_built_verified_and_its_corruption_found(cli, tmp_path, monkeypatch):
    command = build_command(tmp_path, monkeypatch)
    code, out, _ = cli(*command, "--json")
    assert code == 0
    record = json.loads(out)
    assert {split: record[split] for split in ("train", "validation", "test")} == {
        split: tiny.TASK[split] for split in ("train", "validation", "test")
    }
    code, out, _ = cli(*command)
    assert f"checksum: {record['checksum']}" in out
    code, out, _ = cli("data", "verify", "--cache", tmp_path, "--json")
    assert len(json.loads(out)["verified"]) == 1
    code, out, _ = cli("data", "verify", "--cache", tmp_path)
    assert out.startswith("1 data sets in")
    (path,) = tmp_path.rglob("test.arrow")
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], f"has {len(whole) - 1} bytes, expected {len(whole)}"),
        (bytes([whole[0] ^ 1]) + whole[1:], "does not match its recorded sha256"),
    ):
        path.write_bytes(content)
        refused(cli("data", "verify", "--cache", tmp_path), path, message, "delete", "rebuild")


def test_a_results_folder_of_another_configuration_is_refused(cli, finished, tiny_cache, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    record = next((tmp_path / "runs").rglob("local-*.json"))
    there = record.parent / "work" / record.stem / "experiment.json"
    record.unlink()
    there.write_text(there.read_text().replace('"layers": 1', '"layers": 2'))
    code, out, err = cli(*tiny.command(tmp_path / "runs", tiny_cache))
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert "error: " in line
    assert (
        "was started with another configuration (model.layers: 2 there, 1 here); move it away"
        in line
    )
    assert "Traceback" not in err


def test_a_full_disk_while_training_is_one_line_and_leaves_nothing_half_written(
    cli, small_disk, tiny_cache
):
    code, out, err = cli(*tiny.command(small_disk, tiny_cache, changes={"model.width": 64}))
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("error: cannot write")
    assert line.endswith("free space or choose another folder")
    assert "Traceback" not in err
    left = {path.name for path in small_disk.rglob("*") if path.is_file()}
    mine = {"experiment.json", "run.lock", "train.lock"}
    assert all(name in mine or name.startswith("events.") for name in left)
    shutil.rmtree(small_disk / "quick")


def test_a_full_disk_while_building_is_one_line_and_leaves_nothing(cli, small_disk, monkeypatch):
    monkeypatch.setitem(tiny.TASK, "train", 20_000)
    monkeypatch.setitem(tiny.TASK, "max_length", 60)
    result = cli(*build_command(small_disk, monkeypatch))
    refused(result, "cannot write", "No space left", "free space or choose another folder")
    assert not [path for path in small_disk.rglob("*") if path.suffix != ".lock" and path.is_file()]
    shutil.rmtree(small_disk / "listops")


def test_a_full_disk_while_reporting_keeps_the_old_page(cli, small_disk, finished):
    page = small_disk / "report.html"
    page.write_text("old")
    refused(cli("report", finished, "--output", page), page, "No space left on device", code=2)
    assert page.read_text() == "old"
    assert [path.name for path in small_disk.iterdir()] == ["report.html"]
    page.unlink()
