"""Finished, interrupted and outdated runs found in a runs folder."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
from callbacks import LogRuns, StopAtStep

import tiny
from longspan.arena import arena, run
from longspan.arena.run_state import differences, in_brackets, load_checked, read_state
from longspan.config import StageConfig, replace_fields
from longspan.errors import RunError
from longspan.files import write_json
from longspan.results import load_result, write_record
from longspan.tasks.lra.listops import ListOps


def protocol_experiment(**training):
    """Return a tiny experiment whose configuration passes as the protocol's own."""
    experiment = tiny.experiment()
    changes = {f"training.{name}": value for name, value in training.items()}
    return dataclasses.replace(
        experiment, overrides={}, config=replace_fields(experiment.config, changes)
    )


def interrupt(experiment, paths):
    """Interrupt a run at step 7; its last checkpoint is of step 6."""
    with pytest.raises(KeyboardInterrupt):
        arena([experiment], paths, StopAtStep(7))


def test_finished_run_of_changed_recipe_is_rejected(paths):
    arena([protocol_experiment()], paths, LogRuns())
    changed = protocol_experiment(steps=8, batch_size=2)
    for retry in (False, True):
        results, (skipped,) = arena([changed], paths, LogRuns(), retry_failed=retry)
        assert results == []
        assert skipped.reason == (
            f"{paths.record_file(protocol_experiment())} has the same command under an earlier "
            "recipe (training.batch_size: 4 there, 2 here; training.steps: 12 there, 8 here); "
            "move it away or choose another --runs"
        )
    assert not paths.run_dir(changed).exists()
    # Runs with overrides and trials may share the runs folder.
    overridden = dataclasses.replace(
        changed, overrides={"training.steps": 8, "training.batch_size": 2}
    )
    assert len(arena([changed], paths.for_trials(), LogRuns())[0]) == 1
    assert len(arena([overridden], paths, LogRuns())[0]) == 1


def test_interrupted_run_of_changed_recipe_is_rejected(paths):
    interrupt(protocol_experiment(), paths)
    work = paths.run_dir(protocol_experiment())
    _, (skipped,) = arena([protocol_experiment(steps=8)], paths, LogRuns())
    assert skipped.reason.startswith(f"{work} has the same command under an earlier recipe (tra")
    # The run itself resumes.
    callback = StopAtStep()
    assert len(arena([protocol_experiment()], paths, callback)[0]) == 1
    assert callback.steps == list(range(7, 13))


def test_differing_stages_are_named_by_their_fields():
    def config(*stages):
        return replace_fields(tiny.experiment().config, {"training.stages": stages})

    first = StageConfig(steps=4, changes={"mechanism.window": 1})
    three = config(first, StageConfig(steps=4), StageConfig(steps=2))
    two = config(first, StageConfig(steps=3))
    assert differences(three, two) == [
        "stage.2.steps: 4 there, 3 here",
        "stage.3.steps: 2 there, absent here",
    ]


def test_run_state_of_different_version_is_rejected(paths):
    interrupt(protocol_experiment(), paths)
    path = paths.run_dir(protocol_experiment()) / "experiment.json"
    state = json.loads(path.read_text())
    assert state.pop("overrides") == {}
    write_json(path, state)
    with pytest.raises(RunError, match=r"experiment\.json: overrides is missing; move it away or"):
        read_state(path.parent)
    # Other recipes ignore the state; its own rejects it.
    results, (skipped,) = arena(
        [protocol_experiment(steps=8), protocol_experiment()], paths, LogRuns()
    )
    assert [result.steps for result in results] == [8]
    assert "overrides is missing; move it away" in skipped.reason


@pytest.mark.parametrize("retry", [False, True, "train"])
def test_interrupted_run_resumes_with_and_without_retry_failed(paths, cli, retry):
    experiment = tiny.experiment()
    interrupt(experiment, paths)
    if retry == "train":
        code, _, err = cli(*tiny.command(paths.runs, paths.cache))
        assert (code, "step 4/12" in err, "step 8/12" in err) == (0, False, True)
        return
    callback = StopAtStep()
    arena([experiment], paths, callback, retry_failed=retry)
    assert callback.steps == list(range(7, 13))


def test_differences_list_every_field_of_both_configurations():
    there = replace_fields(tiny.experiment().config, {"mechanism.window": 8})
    here = tiny.experiment("performer").config
    here = replace_fields(here, {"training.steps": 300, "model.norm": "x" * 60})
    assert differences(there, here) == [
        "mechanism.feature_map: absent there, 'softmax' here",
        "mechanism.features: absent there, 64 here",
        "mechanism.name: 'local' there, 'performer' here",
        "mechanism.norms: absent there, 'chi' here",
        "mechanism.orthogonal: absent there, True here",
        "mechanism.redraw_every: absent there, None here",
        "mechanism.seed: absent there, 0 here",
        "mechanism.sink_logit: False there, absent here",
        "mechanism.sink_tokens: 0 there, absent here",
        "mechanism.window: 8 there, absent here",
        f"model.norm: 'pre' there, '{'x' * 36}... here",
        "training.steps: 12 there, 300 here",
    ]
    assert differences(there, there) == []
    assert in_brackets([]) == ""
    assert in_brackets(["a", "b"]) == " (a; b)"
    assert in_brackets(list("abcdefghij")) == " (a; b; c; d; e; f; g; h; and 2 more)"


def test_finished_runs_are_checked_by_data_checksum_without_loading_data(
    tmp_path, monkeypatch, paths
):
    experiment = tiny.experiment()
    results, _ = arena([experiment], paths, LogRuns())
    monkeypatch.setattr(ListOps, "open", None)
    assert arena([experiment], paths, LogRuns()) == (results, [])
    path = paths.record_file(experiment)
    write_json(path, {**json.loads(path.read_text()), "data_checksum": "0" * 64})
    results, (skipped,) = arena([experiment], paths, LogRuns())
    assert results == []
    assert "was scored on data 000000000000, but the data here is" in skipped.reason
    # Without a built data set the record is trusted.
    assert len(arena([experiment], tiny.paths(tmp_path, tmp_path / "empty"), LogRuns())[0]) == 1


IMPORTS = """
import contextlib, json, sys
import longspan.cli
for command in json.loads(sys.argv[1]):
    sys.argv = ["longspan", *command]
    with contextlib.suppress(SystemExit):
        longspan.cli.main()
    heavy = ("transformers", "accelerate", "ray", "numba")
    print([x for x in heavy if x in sys.modules])
"""


def test_finished_grid_imports_no_training_code(tiny_cache, tmp_path, cli):
    tuned = ["--tune", "--grid", "model.num_hidden_layers=1,2"]
    flags = ["--protocol", "smoke", "--tasks", "listops", "--mechanisms", "local"]
    flags += ["--cache", str(tiny_cache), "--device", "cpu"]
    commands, records = [], []
    for name, more in (("grid", []), ("tune", tuned)):
        changes = [
            part
            for field, x in tiny.CHANGES.items()
            for part in ("--set", f"{field}={json.dumps(x)}")
            if not (more and field == "model.num_hidden_layers")
        ]
        runs = tmp_path / name
        command = ["arena", *flags, *changes, *more, "--runs", str(runs)]
        commands.append(command)
        assert cli(*command)[0] == 0
        (path,) = (path for path in runs.rglob("local-*.json") if path.parent.name == "listops")
        records.append((path, load_result(path)))
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, json.dumps(commands)], capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert [x for x in lines if x.startswith("[") and x.endswith("]")] == ["[]", "[]"], lines
    assert all(load_result(path) == before for path, before in records)


@pytest.mark.parametrize("left", ["step-000012", ".step-000013.part", "best-000000"])
def test_leftover_files_of_killed_process_are_removed(left, paths):
    experiment = tiny.experiment()
    arena([experiment], paths, LogRuns())
    (paths.run_dir(experiment) / left).mkdir()
    arena([experiment], paths, LogRuns())
    assert not (paths.run_dir(experiment) / left).exists()


def test_record_of_another_row_is_rejected(tiny_cache, paths):
    experiment = protocol_experiment()
    record = run(experiment, tiny.listops(tiny_cache), paths)
    assert record.row_name == "local"
    assert record.family == "fixed pattern"
    reference = dataclasses.replace(experiment, overrides={"row": "words"})
    assert reference.hash == experiment.hash
    assert not paths.record_file(reference).exists()
    write_record(record, paths.record_file(reference))
    with pytest.raises(RunError, match="records row 'local', expected 'words'; move it away"):
        load_checked(reference, None, paths.record_file(reference))


@pytest.mark.parametrize("step", [1, 3, 7, 12])
def test_run_whose_folder_is_removed_ends_with_the_reason(tiny_cache, tmp_path, step, capfd):
    class Remove(StopAtStep):
        def on_step(self, number, loss, tokens, seconds):
            if number == step:
                shutil.rmtree(paths.runs)

    paths, experiment = tiny.paths(tmp_path / "runs", tiny_cache), tiny.experiment()
    _, (skipped,) = arena([experiment], paths, Remove())
    assert f"{paths.run_dir(experiment)} was removed while the run trained, at s" in skipped.reason
    assert "Traceback" not in capfd.readouterr().err
    # Nothing of the run is left that a later one could take for its own.
    assert not paths.record_file(experiment).exists()
    assert not list(paths.runs.rglob("step-*"))
    assert len(arena([experiment], paths, LogRuns())[0]) == 1
