"""Runs that other code began: resumption refuses them, or records both."""

import contextlib
import dataclasses
import json
import subprocess
from unittest.mock import Mock

import pytest
from callbacks import LogRuns, StopAtStep
from search_cases import CELL, GRID, SPACE, small_search

import tiny
from longspan.arena import arena, load_plugin, plugins, provenance, tune
from longspan.arena.executors import WorkerPoolExecutor
from longspan.arena.provenance import code_differences, code_version
from longspan.arena.run import train
from longspan.arena.run_state import FILE, read_state
from longspan.attention import MECHANISMS
from longspan.errors import RunError
from longspan.files import write_json
from longspan.results import CodeVersion, SourceFile, load_result

PLUGIN = '''"""Local attention under another name."""

from longspan.attention import register
from longspan.attention.mechanisms.local import LocalAttention


@register("edited", size_option="window")
class Edited(LocalAttention):
    """Local attention under another name."""
'''
# One change of each field of `CodeVersion`, and what names it.
CHANGED = {
    "versions": ({"torch": "1.0"}, "torch: 1.0 there, "),
    "git_commit": ("0123456789ab", "commit: 0123456789ab there, "),
    "source_files": ({"plug-in old": {"name": "old.py", "sha256": "5f" * 32}}, "plug-in old: old"),
    "changed_files": ({"longspan/version.py": "5f" * 32}, "longspan/version.py changed"),
    "added_files": ({"longspan/mine.py": "5f" * 32}, "longspan/mine.py changed"),
}


def interrupt(experiment, paths):
    with pytest.raises(KeyboardInterrupt):
        arena([experiment], paths, StopAtStep(7))


@contextlib.contextmanager
def edited(file):
    """Yield the content of a JSON file, and write it with its checksum."""
    content = json.loads(file.read_text())
    del content["sha256"]
    yield content
    write_json(file, content)


def edit_state(run_dir, field, value):
    """Change what the state of a run says of its code; a value that is a table is added to it."""
    with edited(run_dir / FILE) as content:
        before = content["code"][field]
        content["code"][field] = {**(before or {}), **value} if isinstance(value, dict) else value


@pytest.fixture
def interrupted(tiny_cache, tmp_path):
    """Paths and experiment of an interrupted run."""
    paths, experiment = tiny.paths(tmp_path / "runs", tiny_cache), tiny.experiment()
    interrupt(experiment, paths)
    return paths, experiment


def test_every_part_of_the_code_is_compared():
    assert CHANGED.keys() == {field.name for field in dataclasses.fields(CodeVersion)}


@pytest.mark.parametrize("field", CHANGED)
def test_run_of_other_code_is_refused_or_recorded_with_both(field, interrupted):
    paths, experiment = interrupted
    value, named = CHANGED[field]
    run_dir = paths.run_dir(experiment)
    edit_state(run_dir, field, value)
    there = read_state(run_dir).code
    _, (skipped,) = arena([experiment], paths, LogRuns())
    assert f"{run_dir} was trained by other code (" in skipped.reason
    assert named in skipped.reason
    assert "--accept-changes" in skipped.reason
    callback = StopAtStep()
    accepting = dataclasses.replace(paths, accept_changes=True)
    (result,), failed = arena([experiment], accepting, callback)
    assert not failed
    assert callback.steps == list(range(7, 13))
    record = load_result(paths.record_file(experiment))
    assert record == result
    assert record.earlier_code == [there]
    assert record.code_version == code_version(experiment)


def test_one_program_is_no_earlier_code(interrupted):
    paths, experiment = interrupted
    (result,), _ = arena([experiment], paths, LogRuns())
    assert result.earlier_code == []
    assert '"earlier_code": []' in paths.record_file(experiment).read_text()


def test_run_without_trained_steps_takes_the_new_code(interrupted, monkeypatch):
    paths, experiment = interrupted
    edit_state(paths.run_dir(experiment), "versions", {"torch": "1.0"})
    monkeypatch.setattr("longspan.arena.run_state.saved_step", lambda run_dir: None)
    (result,), _ = arena([experiment], paths, LogRuns())
    assert result.earlier_code == []


def test_state_of_an_earlier_version_resumes(interrupted):
    paths, experiment = interrupted
    with edited(paths.run_dir(experiment) / FILE) as content:
        del content["code"], content["earlier_code"]
    (result,), failed = arena([experiment], paths, LogRuns())
    assert not failed
    assert result.earlier_code == []


@pytest.mark.usefixtures("registries")
def test_plugin_edited_between_kill_and_resume_is_named_in_workers_too(
    tiny_cache, tmp_path, monkeypatch
):
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    load_plugin(str(plugin))
    paths, experiment = tiny.paths(tmp_path / "runs", tiny_cache), tiny.experiment("edited")
    interrupt(experiment, paths)
    digest = provenance.source_files(experiment)["mechanism"].sha256
    # A second command reads the edited file.
    plugin.write_text(PLUGIN + "\nEdited.note = 1\n")
    monkeypatch.setattr(plugins, "_LOADED", {})
    del MECHANISMS["edited"]
    load_plugin(str(plugin))
    protocol = tmp_path / "other.toml"
    protocol.write_text('base = "quick"\n')
    load_plugin(str(protocol))
    # Workers run the version that the command started with.
    edited_digest = provenance.source_files(experiment)["mechanism"].sha256
    plugin.write_text("1 / 0\n")
    fresh = tiny.experiment("edited", seed=1)
    for executor, runs in ((None, [experiment]), (WorkerPoolExecutor(1), [experiment, fresh])):
        results, (skipped,) = arena(runs, paths, LogRuns(), executor=executor)
        assert f"mechanism: mine.py {digest[:8]} there, mine.py " in skipped.reason
    assert [x.source_files["mechanism"].sha256 for x in results] == [edited_digest]
    # The function that the nodes of a Ray cluster call.
    with pytest.raises(RunError, match="was trained by other code"):
        train(experiment, tiny.listops(tiny_cache), paths)
    accepting = dataclasses.replace(paths, accept_changes=True)
    (result,), _ = arena([experiment], accepting, LogRuns())
    assert [x.source_files["mechanism"].sha256 for x in result.earlier_code] == [digest]
    assert result.source_files["mechanism"].sha256 == edited_digest != digest


def test_search_scores_no_trial_of_other_code(paths):
    experiments = small_search(grid=GRID).experiments
    trials = paths.for_trials()
    arena(experiments, trials, LogRuns())
    for experiment in experiments:
        with edited(trials.record_file(experiment)) as content:
            content["versions"]["torch"] = "1.0"
    for score_trials in (False, True):
        outcome = tune("smoke", paths, LogRuns(), space=SPACE, **CELL, score_trials=score_trials)
        assert outcome.results == []
        assert "was trained by other code (torch: 1.0 there, " in outcome.failed[-1].reason
    # None of the trials, which keep their scores, has one by this code.
    files = [trials.record_file(x) for x in experiments]
    assert all("test" not in load_result(x).scores for x in files)
    accepting = dataclasses.replace(paths, accept_changes=True)
    outcome = tune("smoke", accepting, LogRuns(), space=SPACE, **CELL, score_trials=True)
    assert not outcome.failed
    assert all(load_result(x).earlier_code[0].versions["torch"] == "1.0" for x in files)
    assert {x.earlier_code[0].versions["torch"] for x in outcome.results} == {"1.0"}
    assert {x.versions["torch"] for x in outcome.results} != {"1.0"}


def test_commits_differ_where_files_of_the_package_do(monkeypatch):
    there = CodeVersion(
        versions={},
        git_commit="aaaaaaaaaaaa",
        source_files={"task": SourceFile(name="longspan/tasks/lra/listops.py", sha256="1")},
        changed_files={"longspan/a.py": "old"},
        added_files={},
    )
    here = dataclasses.replace(there, git_commit="bbbbbbbbbbbb-dirty", changed_files={})
    listed = []
    monkeypatch.setattr(provenance, "_list_files", lambda *command: listed)
    monkeypatch.setattr(provenance, "_sha256", {"longspan/a.py": "old"}.get)
    # a.py was committed as it had been changed.
    assert code_differences(there, here) == []
    listed.append(provenance.PACKAGE / "b.py")
    assert code_differences(there, here) == ["longspan/b.py changed"]
    monkeypatch.setattr(provenance, "_sha256", {"longspan/a.py": "new"}.get)
    assert code_differences(there, here) == ["longspan/a.py changed", "longspan/b.py changed"]

    monkeypatch.setattr(provenance, "_list_files", Mock(side_effect=subprocess.SubprocessError))
    assert code_differences(there, here) == ["commit: aaaaaaaaaaaa there, bbbbbbbbbbbb here"]
