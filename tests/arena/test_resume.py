"""What a folder of runs already holds: finished, of another recipe, foreign."""

import dataclasses
import json
import subprocess
import sys

import pytest
from callbacks import Log, Stopping

import tiny
from longspan.arena import Budget, arena
from longspan.arena.resume import differences
from longspan.results import load_result
from longspan.tasks.listops import ListOps


def own(**train):
    """An experiment as its protocol has it, as far as anybody can tell."""
    made = tiny.experiment()
    train = dataclasses.replace(made.train, **train)
    return dataclasses.replace(made, overrides={}, train=train)


def stopped(experiment, paths):
    """Leave the experiment half-done: its last checkpoint is that of step 6."""
    with pytest.raises(KeyboardInterrupt):
        arena([experiment], paths, Stopping(7))


def test_a_command_whose_recipe_has_changed_since_it_ended_is_refused(tiny_cache, tmp_path):
    paths = tiny.paths(tmp_path, tiny_cache)
    arena([own()], paths, Log())
    changed = own(steps=8, batch=2)
    for retry in (False, True):
        results, (told,) = arena([changed], paths, Log(), retry_failed=retry)
        assert results == []
        assert told.reason == (
            f"{paths.record_file(own())} is of the same command under an earlier recipe "
            "(training.batch_size: 4 there, 2 here; training.steps: 12 there, 8 here); move it away or "
            "choose another --runs"
        )
    assert not paths.run_dir(changed).exists()
    # what somebody has changed stands beside it, and so do trials
    asked = dataclasses.replace(changed, overrides={"training.steps": 8, "training.batch_size": 2})
    assert len(arena([changed], paths.for_trials(), Log())[0]) == 1
    assert len(arena([asked], paths, Log())[0]) == 1


def test_a_command_whose_recipe_has_changed_half_way_is_refused(tiny_cache, tmp_path):
    paths = tiny.paths(tmp_path, tiny_cache)
    stopped(own(), paths)
    work = paths.run_dir(own())
    _, (told,) = arena([own(steps=8)], paths, Log())
    assert told.reason.startswith(f"{work} is of the same command under an earlier recipe (train.s")
    # the run itself goes on
    callback = Stopping()
    assert len(arena([own()], paths, callback)[0]) == 1
    assert callback.steps == list(range(7, 13))


def test_a_claim_of_an_earlier_version_says_nothing_of_overrides(tiny_cache, tmp_path):
    paths = tiny.paths(tmp_path, tiny_cache)
    stopped(own(), paths)
    path = paths.run_dir(own()) / "experiment.json"
    claim = json.loads(path.read_text())
    assert claim.pop("overrides") == {}
    path.write_text(json.dumps(claim))
    assert len(arena([own(steps=8), own()], paths, Log())[0]) == 1 + 1


def test_a_changed_budget_of_the_protocol_is_a_changed_recipe(tiny_cache, tmp_path):
    paths = tiny.paths(tmp_path, tiny_cache)
    held, other = (
        dataclasses.replace(own(), budget=Budget(kind="memory", limit=limit))
        for limit in (2**30, 2**31)
    )
    assert len(arena([held], paths, Log())[0]) == 1
    _, (told,) = arena([other], paths, Log())
    assert "(budget.limit: 1073741824.0 there, 2147483648.0 here)" in told.reason


@pytest.mark.parametrize("again", [False, True, "train"])
def test_what_is_half_done_goes_on_whatever_is_asked_of_failed_runs(
    tiny_cache, tmp_path, cli, again
):
    paths, made = tiny.paths(tmp_path, tiny_cache), tiny.experiment()
    stopped(made, paths)
    if again == "train":
        code, _, err = cli(*tiny.command(tmp_path, tiny_cache))
        assert (code, "step 4/12" in err, "step 8/12" in err) == (0, False, True)
        return
    callback = Stopping()
    arena([made], paths, callback, retry_failed=again)
    assert callback.steps == list(range(7, 13))


def test_a_difference_names_every_field_on_both_sides():
    there = {"a": {"b": 1, "c": [1, 2]}, "d": "x" * 60}
    here = {"a": {"b": 2, "c": [1, 2]}, "e": None}
    assert differences(there, here) == [
        "a.b: 1 there, 2 here",
        f"d: '{'x' * 36}... there, absent here",
        "e: absent there, None here",
    ]
    assert differences(there, there) == []


def test_what_has_ended_is_known_without_its_data_and_checked_against_the_record_of_it(
    tiny_cache, tmp_path, monkeypatch
):
    paths, made = tiny.paths(tmp_path, tiny_cache), tiny.experiment()
    results, _ = arena([made], paths, Log())
    monkeypatch.setattr(ListOps, "open", None)
    assert arena([made], paths, Log()) == (results, [])
    path = paths.record_file(made)
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_checksum": "0" * 64}))
    again, (told,) = arena([made], paths, Log())
    assert again == []
    assert "was scored on data 000000000000, here is" in told.reason
    # where the set is not there either, a record stands for itself
    assert len(arena([made], tiny.paths(tmp_path, tmp_path / "empty"), Log())[0]) == 1


def test_a_half_written_record_is_refused_by_name_and_kept(tiny_cache, tmp_path):
    paths, made = tiny.paths(tmp_path, tiny_cache), tiny.experiment()
    arena([made], paths, Log())
    path = paths.record_file(made)
    half = path.read_text()[:200]
    path.write_text(half)
    results, failed = arena([made, tiny.experiment(seed=1)], paths, Log())
    assert [result.seed for result in results] == [1]
    assert failed[0].reason.startswith(f"{path} is not JSON (line")
    assert path.read_text() == half


@pytest.mark.parametrize(
    "tuned", [[], ["--tune", "--grid", "model.layers=1,2"]], ids=["grid", "tune"]
)
def test_a_grid_that_has_ended_imports_nothing_that_trains(tiny_cache, tmp_path, cli, tuned):
    where = ["--runs", str(tmp_path), "--cache", str(tiny_cache), "--device", "cpu"]
    kept = {
        name: x
        for name, x in tiny.CHANGES.items()
        if not (tuned and name == "model.num_hidden_layers")
    }
    changes = [part for name, x in kept.items() for part in ("--set", f"{name}={json.dumps(x)}")]
    command = ["arena", "--tasks", "listops", "--mechanisms", "local", *changes, *tuned, *where]
    assert cli(*command)[0] == 0
    (path,) = (path for path in tmp_path.rglob("local-*.json") if path.parent.name == "listops")
    before = load_result(path)
    script = (
        f"import sys; sys.argv = {['longspan', *command]!r}\n"
        "import longspan.cli\n"
        "heavy = ('transformers', 'accelerate', 'ray', 'numba')\n"
        "try: longspan.cli.main()\n"
        "finally: print([x for x in heavy if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert load_result(path) == before


@pytest.mark.parametrize("left", ["step-000012", ".last.json.0a1b2c3d", "best-000000"])
def test_what_a_kill_left_behind_a_record_is_cleared(tiny_cache, tmp_path, left):
    paths, made = tiny.paths(tmp_path, tiny_cache), tiny.experiment()
    arena([made], paths, Log())
    (paths.run_dir(made) / left).mkdir() if "json" not in left else (
        paths.run_dir(made) / left
    ).write_text("{")
    arena([made], paths, Log())
    assert not (paths.run_dir(made) / left).exists()
