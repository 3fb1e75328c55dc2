"""Records run again: equal answers, and the answers and environments that differ."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from longspan.arena import replace_budget, run
from longspan.arena.paths import RunPaths
from longspan.arena.rerun import compare, rerun
from longspan.attention import MECHANISMS
from longspan.config import Budget
from longspan.errors import DataError, RunError, UnknownNameError
from longspan.files import read_json
from longspan.results import ResolvedBudget, SourceFile, load_result, pack_scores
from longspan.tasks import TASKS


@pytest.fixture(scope="module")
def paths(tiny_cache, tmp_path_factory):
    return tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)


@pytest.fixture(scope="module")
def record(paths):
    """Return the file of a finished run."""
    experiment = tiny.experiment("local", seed=3)
    run(experiment, tiny.listops(paths.cache), paths)
    return paths.record_file(experiment)


def changed(record, folder, **fields):
    """Return the file of the record with other fields."""
    result = dataclasses.replace(load_result(record), **fields)
    return result.save(folder)


def test_run_again_gives_every_answer(record, paths, tmp_path):
    before = sorted(paths.runs.rglob("*"))
    found = rerun(record, RunPaths(runs=tmp_path, cache=paths.cache))
    assert found.is_equal
    assert (found.num_answers, found.num_different) == (tiny.TASK["test"], 0)
    assert (found.first_different_step, found.environment) == (None, {})
    assert found.after is not found.before
    assert found.after.date >= found.before.date
    assert sorted(paths.runs.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_record_is_run_again_from_any_folder(record, paths, tmp_path, monkeypatch, depth):
    """The path may be relative to the folder of the record, or to one above it."""
    folder = (record.parent, *record.parents)[1:][depth]
    monkeypatch.chdir(folder)
    relative = record.relative_to(folder)
    assert rerun(relative, RunPaths(runs=tmp_path, cache=paths.cache)).is_equal


def test_record_is_run_again_in_a_folder_of_the_root(record, paths, tmp_path, monkeypatch):
    """As where a container mounts the folder of the record."""
    before = load_result(record)
    monkeypatch.setattr("longspan.arena.rerun.load_result", lambda path: before)
    assert rerun(Path("/data/record.json"), RunPaths(runs=tmp_path, cache=paths.cache)).is_equal


def test_single_answer_and_score_are_compared(record, paths):
    result = load_result(record)
    answers = result.example_scores.unpack()
    swapped = answers.copy()
    (wrong,), (right,) = (np.flatnonzero(answers[:, 0] == x)[:1] for x in (0, 1))
    swapped[[wrong, right], 0] = [1, 0]  # the score stays equal
    other = dataclasses.replace(result, example_scores=pack_scores("accuracy", swapped))
    found = compare(other, result)
    assert (found.is_equal, found.num_different, found.first_different_step) == (False, 2, None)
    shorter = dataclasses.replace(result, example_scores=pack_scores("accuracy", answers[1:]))
    assert compare(shorter, result).num_different == len(answers) - 1
    without = dataclasses.replace(result, example_scores=None)
    found = compare(without, result)
    assert (found.is_equal, found.num_answers, found.num_different) == (True, None, None)
    test = dataclasses.replace(result.scores["test"], metrics={"accuracy": 0.123})
    other = dataclasses.replace(without, scores={**result.scores, "test": test})
    assert not compare(other, result).is_equal


def test_environment_names_what_differs(record):
    result = load_result(record)
    sources = {"mechanism": SourceFile(name="mine.py", sha256="ab" * 32)}
    other = dataclasses.replace(
        result,
        device="cpu, 64 threads",
        git_commit="0123456789ab",
        versions={**result.versions, "torch": "2.0.0"},
        source_files={**result.source_files, **sources},
    )
    found = compare(other, result).environment
    assert found == {
        "device": ("cpu, 64 threads", result.device),
        "git_commit": ("0123456789ab", result.git_commit),
        "torch": ("2.0.0", result.versions["torch"]),
        "mechanism": ("mine.py abababab", str(result.source_files["mechanism"])),
    }
    assert compare(dataclasses.replace(result, source_files=None), result).environment == {}
    resumed = dataclasses.replace(result, earlier_code=[other.code_version])
    named = f"{other.code_version.name} (torch 2.0.0)"
    assert compare(resumed, result).environment == {"earlier_code": (named, None)}


@pytest.mark.parametrize(("device", "expected"), [("cpu, 3 threads", 3), ("NVIDIA H200", None)])
def test_threads_are_those_of_the_record(record, paths, tmp_path, monkeypatch, device, expected):
    threads, used = torch.get_num_threads(), []

    def train(*arguments):
        used.append(torch.get_num_threads())
        return load_result(record)

    monkeypatch.setattr("longspan.arena.rerun.train", train)
    assert rerun(changed(record, tmp_path, device=device), paths).is_equal
    assert (used, torch.get_num_threads()) == ([expected or threads], threads)


def test_budget_is_not_measured_again(record, paths, tmp_path):
    """Run the steps that a budget of seconds gave, whatever this machine would give."""
    result = load_result(record)
    requested = replace_budget(tiny.experiment("local", seed=3), Budget(kind="seconds", limit=1e6))
    changes = {"training.steps": 8, "training.warmup_steps": 1}
    path = changed(
        record,
        tmp_path,
        config=requested.config,
        config_hash=requested.hash,
        resolved_budget=ResolvedBudget(changes=changes, measurements={"seconds_per_step": 1.0}),
    )
    found = rerun(path, paths)
    assert (found.after.steps, found.after.config.training.warmup_steps) == (8, 1)
    assert result.steps == 12


def test_missing_parts_are_named(record, paths, tmp_path, monkeypatch):
    monkeypatch.delitem(MECHANISMS, "local")
    own = {"mechanism": SourceFile(name="mine.py", sha256="ab" * 32)}
    path = changed(record, tmp_path, source_files=own)
    with pytest.raises(UnknownNameError, match=r"not registered here; pass mine\.py abab"):
        rerun(path, paths)
    path = changed(record, tmp_path, source_files=None)
    with pytest.raises(UnknownNameError, match="pass the file that registers it"):
        rerun(path, paths)


def test_other_data_and_versions_are_refused(record, paths, tmp_path, monkeypatch):
    path = changed(record, tmp_path, data_checksum="0" * 64)
    with pytest.raises(DataError, match="was scored on data 000000000000, but the data here"):
        rerun(path, paths)
    scores = {"validation": load_result(record).scores["validation"]}
    with pytest.raises(DataError, match="has no score on test"):
        rerun(changed(record, tmp_path, scores=scores), paths)
    newer = dataclasses.replace(TASKS["listops"].info, version=2)
    monkeypatch.setattr(TASKS["listops"], "info", newer)
    with pytest.raises(RunError, match=r"version 1 of task listops, expected 2; run it with"):
        rerun(record, paths)


def test_command_prints_the_comparison(record, paths, tmp_path, cli):
    flags = ("--cache", paths.cache)
    code, out, _ = cli("results", "rerun", record, *flags)
    score = load_result(record)
    shown = score.main.format(score.score())
    assert code == 0
    assert f"equal: test {shown}, none of 44 answers differ\n" in out
    assert "same versions, device, commit and source files" in out
    path = changed(record, tmp_path, seed=4, git_commit="0123456789ab")
    code, out, _ = cli("results", "rerun", path, *flags)
    assert code == 1
    assert f"different: {out.split()[1]} of 44 answers differ; test {shown} in the record" in out
    assert "losses differ from step 4 on" in out
    assert f"git_commit: 0123456789ab in the record, {score.git_commit} now" in out
    code, out, _ = cli("results", "rerun", path, "--json", *flags)
    content = json.loads(out)
    assert (code, content["is_equal"], content["before"]) == (1, False, score.score())
    assert content["environment"] == {"git_commit": ["0123456789ab", score.git_commit]}
    code, _, err = cli("results", "rerun", tmp_path / "absent.json", *flags)
    assert code == 2
    assert "absent.json" in err
    assert read_json(record)["seed"] == 3
