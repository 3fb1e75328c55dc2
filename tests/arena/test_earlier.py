"""What a folder of runs already holds: finished, of another recipe, foreign."""

import dataclasses
import json
import logging
import subprocess
import sys

import pytest
from watchers import Log

import tiny
from longspan.arena import arena
from longspan.arena.resume import changed_recipes, differences
from longspan.results import load
from longspan.tasks.listops import ListOps


def own(**train):
    """An experiment as its protocol has it, as far as anybody can tell."""
    made = tiny.experiment()
    train = dataclasses.replace(made.train, **train)
    return dataclasses.replace(made, overrides={}, train=train)


def test_records_of_an_earlier_recipe_are_told_with_what_differs(tiny_cache, tmp_path, caplog):
    places = tiny.places(tmp_path, tiny_cache)
    (record,), _ = arena([own()], places, Log())
    changed = own(steps=8, batch=2)
    (line,) = changed_recipes([changed], places)
    assert line.startswith("quick, listops: 1 records of an earlier recipe (")
    assert "train.batch: 4 there, 2 here; train.steps: 12 there, 8 here)" in line
    assert record.filename in line
    assert "move them away" in line
    with caplog.at_level(logging.WARNING):
        results, _ = arena([changed], places, Log())
    assert caplog.messages == [line]
    assert places.record(own()).exists()
    assert results[0].steps == 8
    # neither what somebody has changed, nor what is the same, is of an earlier recipe
    assert list(changed_recipes([own(), tiny.experiment(changes={"train.steps": 8})], places)) == [
        line.replace("4 there, 2 here", "2 there, 4 here")
        .replace("12 there, 8 here", "8 there, 12 here")
        .replace(record.filename, results[0].filename)
    ]


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
    places, made = tiny.places(tmp_path, tiny_cache), tiny.experiment()
    results, _ = arena([made], places, Log())
    monkeypatch.setattr(ListOps, "open", None)
    assert arena([made], places, Log()) == (results, [])
    path = places.record(made)
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_checksum": "0" * 64}))
    again, (told,) = arena([made], places, Log())
    assert again == []
    assert "was scored on data 000000000000, here is" in told.reason
    # where the set is not there either, a record stands for itself
    assert len(arena([made], tiny.places(tmp_path, tmp_path / "empty"), Log())[0]) == 1


def test_a_half_written_record_is_refused_by_name_and_kept(tiny_cache, tmp_path):
    places, made = tiny.places(tmp_path, tiny_cache), tiny.experiment()
    arena([made], places, Log())
    path = places.record(made)
    half = path.read_text()[:200]
    path.write_text(half)
    results, failed = arena([made, tiny.experiment(seed=1)], places, Log())
    assert [result.seed for result in results] == [1]
    assert failed[0].reason.startswith(f"{path} is not JSON (line")
    assert path.read_text() == half


def test_a_grid_that_has_ended_imports_nothing_that_trains(tiny_cache, tmp_path, cli):
    where = ["--runs", str(tmp_path), "--cache", str(tiny_cache), "--device", "cpu"]
    command = ["arena", "--tasks", "listops", "--mechanisms", "local", *tiny.flags(), *where]
    assert cli(*command)[0] == 0
    (path,) = (path for path in tmp_path.rglob("local-*.json") if path.parent.name == "listops")
    before = load(path)
    script = (
        f"import sys; sys.argv = {['longspan', *command]!r}\n"
        "import longspan.cli\n"
        "heavy = ('transformers', 'accelerate', 'ray', 'numba')\n"
        "try: longspan.cli.main()\n"
        "finally: print([x for x in heavy if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert load(path) == before


@pytest.mark.parametrize("left", ["step-000012", ".last.json.0a1b2c3d", "best-000000"])
def test_what_a_kill_left_behind_a_record_is_cleared(tiny_cache, tmp_path, left):
    places, made = tiny.places(tmp_path, tiny_cache), tiny.experiment()
    arena([made], places, Log())
    (places.work(made) / left).mkdir() if "json" not in left else (
        places.work(made) / left
    ).write_text("{")
    arena([made], places, Log())
    assert not (places.work(made) / left).exists()
