"""Differences between two sets of records, from folders and git revisions."""

import dataclasses
import subprocess

import pytest
from record_examples import FAILURE, RESULT

from longspan.arena.experiment import hash_config
from longspan.config import replace_fields
from longspan.errors import DataError
from longspan.results import ResolvedBudget
from longspan.results.differences import diff_results, load_version


def variant(changes=None, accuracy=None, **fields):
    """Return the example result with changed configuration fields, score or record fields."""
    config = replace_fields(RESULT.config, changes or {})
    if accuracy is not None:
        test = dataclasses.replace(RESULT.scores["test"], metrics={"accuracy": accuracy})
        fields["scores"] = {**RESULT.scores, "test": test}
    return dataclasses.replace(RESULT, config=config, config_hash=hash_config(config), **fields)


def test_new_and_removed_runs_are_found():
    old, new = diff_results([RESULT], [variant(seed=4)])
    assert (old.kind, old.seed, old.before, old.after) == ("gone", 3, 0.5, None)
    assert (new.kind, new.seed, new.before, new.after) == ("new", 4, None, 0.5)
    assert (old.protocol, old.task, old.mechanism) == ("smoke", "listops", "local")


def test_changed_score_is_found_and_equal_runs_have_no_difference():
    assert diff_results([RESULT], [variant(seconds=2.0, date="2026-02-02")]) == []
    (found,) = diff_results([RESULT], [variant(accuracy=0.75)])
    assert (found.kind, found.metric) == ("changed", "accuracy")
    assert (found.before, found.after) == (0.5, 0.75)
    assert found.fields == {}
    assert not found.is_other_data
    # A change needs the same data and metric.
    (found,) = diff_results([RESULT], [variant(accuracy=0.75, data_checksum="0" * 64)])
    assert found.is_other_data
    assert found.change is None


def test_runs_without_a_test_split_differ_by_their_score_on_validation():
    validation = RESULT.scores["test"]
    better = dataclasses.replace(validation, metrics={"accuracy": 0.75})
    before, after = (
        variant(scores=scores, example_scores=None)
        for scores in ({"validation": validation}, {"validation": better})
    )
    (found,) = diff_results([before], [after])
    assert (found.before, found.after, found.change) == (0.5, 0.75, 0.25)
    # One of them has a test split: both have their scores on validation.
    tested = variant(scores={"validation": better, "test": validation}, example_scores=None)
    (found,) = diff_results([before], [tested])
    assert (found.before, found.after) == (0.5, 0.75)
    (gone,) = diff_results([variant(scores={}, example_scores=None)], [])
    assert gone.before is None


def test_changed_configuration_lists_fields():
    (found,) = diff_results([RESULT], [variant({"training.steps": 24, "mechanism.window": 8})])
    assert found.kind == "changed"
    assert found.fields == {"mechanism.window": (16, 8), "training.steps": (12, 24)}
    # An absent option is None.
    mechanism = dataclasses.replace(RESULT.config.mechanism, options={"window": 16})
    config = dataclasses.replace(RESULT.config, mechanism=mechanism)
    (found,) = diff_results([RESULT], [dataclasses.replace(RESULT, config=config)])
    assert found.fields == {"mechanism.nested": ([1, None], None)}


def test_runs_of_a_changed_protocol_are_paired():
    """A protocol that one set lacks is compared with the one that the other set lacks."""
    before = [variant(protocol="quick", seed=seed) for seed in (0, 1)]
    after = [
        variant({"training.steps": 24}, accuracy=0.75, protocol="mine", seed=seed)
        for seed in (0, 1, 2)
    ]
    new, *pairs = diff_results(before, after)
    assert len(pairs) == 2
    assert (new.kind, new.protocol, new.seed) == ("new", "mine", 2)
    for pair in pairs:
        assert pair.fields == {"protocol": ("quick", "mine"), "training.steps": (12, 24)}
        assert (pair.before, pair.after, pair.change) == (0.5, 0.75, 0.25)
    # Protocols that both sets have are compared with themselves alone.
    both = diff_results([*before, RESULT], [RESULT])
    assert [(x.kind, x.protocol) for x in both] == [("gone", "quick")] * 2


def test_sizes_that_a_budget_chose_are_compared():
    chosen = [
        variant(resolved_budget=ResolvedBudget(changes={"mechanism.window": x}, measurements={}))
        for x in (8, 16)
    ]
    (found,) = diff_results(*([x] for x in chosen))
    assert found.fields == {"resolved.mechanism.window": (8, 16)}


def test_failure_has_kind_in_place_of_score():
    (found,) = diff_results([FAILURE], [RESULT])
    assert (found.kind, found.before, found.after) == ("changed", "diverged", 0.5)
    (found,) = diff_results([], [FAILURE])
    assert (found.metric, found.after) == (None, "diverged")


def test_most_similar_configurations_are_paired():
    before = [RESULT, variant({"mechanism.window": 8}, accuracy=0.25)]
    after = [
        variant({"mechanism.window": 8, "training.steps": 24}, accuracy=0.25),
        variant(accuracy=0.75),
        variant({"mechanism.window": 64, "training.steps": 48, "training.batch_size": 1}),
    ]
    same, fewer, new = diff_results(before, after)
    assert (same.before, same.after, same.fields) == (0.5, 0.75, {})
    assert (fewer.before, fewer.fields) == (0.25, {"training.steps": (12, 24)})
    assert (new.kind, new.fields) == ("new", {})


def test_differences_are_ordered_by_task_mechanism_and_seed():
    found = diff_results([], [variant(seed=2), variant(seed=1), variant(protocol="lra")])
    assert [(x.protocol, x.seed) for x in found] == [("lra", 3), ("smoke", 1), ("smoke", 2)]


def git(*command):
    author = ["-c", "user.name=name", "-c", "user.email=name@example.org"]
    subprocess.run(["git", *author, *command], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository with a result at tag v1 and a different score in its folder."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    RESULT.save(tmp_path / "results")
    git("add", ".")
    git("commit", "-qm", "records")
    git("tag", "v1")
    variant(accuracy=0.75).save(tmp_path / "results")
    return tmp_path


@pytest.mark.parametrize("source", ["v1", "HEAD", "v1:results", "v1:results/smoke", "v1:."])
def test_revision_has_records_of_its_commit(repository, source):
    assert load_version(source) == [RESULT]


def test_revision_and_failures_load_from_any_folder(repository, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load_version("v1", repository / "results") == [RESULT]
    FAILURE.save(repository / "failures")
    assert load_version(str(repository / "failures")) == [FAILURE]


@pytest.mark.parametrize("source", ["v2", "v1:absent", "absent"])
def test_absent_revision_or_folder_is_rejected(repository, source):
    with pytest.raises(DataError, match=r"pass FOLDER, REVISION or REVISION:FOLDER"):
        load_version(source)


def test_invalid_record_is_rejected_with_its_revision(repository):
    path = repository / "results" / "smoke" / "listops" / RESULT.filename
    path.write_text("{}")
    git("commit", "-qam", "invalid")
    with pytest.raises(DataError, match=rf"HEAD:results/smoke/listops/{RESULT.filename} is not"):
        load_version("HEAD:results")
