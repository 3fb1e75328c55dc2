"""Scoring the rules of records that lack them: written into the record, on its own data alone."""

import dataclasses
import json

import pytest

import tiny
from longspan.arena import run
from longspan.arena.finished_run import score_rules
from longspan.results import load_result, write_record


@pytest.fixture(scope="module")
def paths(tiny_cache, tmp_path_factory):
    return tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)


@pytest.fixture(scope="module")
def record(paths):
    """Return the file of a finished run."""
    experiment = tiny.experiment("local", seed=3)
    run(experiment, tiny.listops(paths.cache), paths)
    return paths.record_file(experiment)


def without_rules(record, folder, **fields):
    """Return the file of the record as earlier versions wrote it: without rules."""
    return dataclasses.replace(load_result(record), rules=None, **fields).save(folder)


def test_scored_rules_are_those_that_a_run_records(record, paths, tmp_path):
    path = without_rules(record, tmp_path)
    (found,) = score_rules([path], paths)
    before, after = load_result(record), load_result(path)
    assert before.rules["test"]
    assert found.rules == after.rules == before.rules
    # Nothing else changes.
    assert after == before


def test_records_with_rules_are_left_alone(record, paths):
    before = record.stat().st_mtime_ns, record.read_bytes()
    assert score_rules([record], paths) == []
    assert (record.stat().st_mtime_ns, record.read_bytes()) == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("data", "was scored on data 000000000000, but the data here is"),
        ("version", "is of version 99 of listops"),
    ],
)
def test_other_data_are_refused_with_the_reason(record, paths, tmp_path, change, reason):
    result = load_result(record)
    task = dataclasses.replace(result.config.task, version=99)
    fields = {
        "data": {"data_checksum": "0" * 64},
        "version": {"config": dataclasses.replace(result.config, task=task)},
    }
    path = without_rules(record, tmp_path, **fields[change])
    before = path.read_bytes()
    (found,) = score_rules([path], paths)
    assert found.rules is None
    assert reason in found.reason
    assert path.read_bytes() == before


def test_split_that_was_not_scored_gets_no_rules(record, paths, tmp_path):
    result = load_result(record)
    scores = {"test": result.scores["test"]}
    path = without_rules(record, tmp_path, scores=scores)
    score_rules([path], paths)
    assert set(load_result(path).rules) == {"test"}


def test_command_scores_a_folder_and_says_what_it_did(cli, record, paths, tmp_path):
    path = without_rules(record, tmp_path)
    code, out, _ = cli("results", "score-rules", tmp_path, "--cache", paths.cache)
    assert code == 0
    assert f"{path}: first operator " in out
    assert out.endswith("1 record scored\n")
    code, out, _ = cli("results", "score-rules", tmp_path, "--cache", paths.cache)
    assert (code, out) == (0, "0 records scored\n")
    write_record(dataclasses.replace(load_result(path), rules=None, data_checksum="0" * 64), path)
    code, out, _ = cli("results", "score-rules", tmp_path, "--cache", paths.cache, "--json")
    (found,) = json.loads(out)
    assert (code, found["rules"], found["path"]) == (1, None, str(path))
