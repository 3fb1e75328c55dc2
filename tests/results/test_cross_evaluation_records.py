"""Evaluations on other data: stored apart from the records of runs."""

import dataclasses

import pytest
from record_examples import IDENTITY, RESULT, SCORE

from longspan.config import TaskConfig
from longspan.errors import DataError
from longspan.files import read_json, write_json
from longspan.results import (
    CrossEvaluation,
    Inference,
    load_results,
    load_side_record,
    load_side_records,
)

FOUND = CrossEvaluation(
    **{name: IDENTITY[name] for name in ("protocol", "config_hash", "seed", "device", "versions")},
    **{name: IDENTITY[name] for name in ("git_commit", "date")},
    mechanism="local",
    trained_on=RESULT.config.task,
    trained_length=39,
    evaluated_on=TaskConfig(name="listops", version=1, options={"train": 200, "length": 80}),
    length=80,
    data_source="generated",
    data_checksum="cd" * 32,
    split="test",
    available=SCORE.num_examples,
    metric="accuracy",
    chance=0.1,
    score=SCORE,
    inference=Inference(examples_per_second=2.5, peak_memory=None),
    batch_size=4,
    dtype="float32",
)


def test_evaluation_is_read_as_written_and_is_no_result(tmp_path):
    record = RESULT.save(tmp_path)
    path = FOUND.save(record.parent)
    assert path.parent == record.parent / "evaluations"
    assert path.name.startswith(f"{record.stem}-on-listops-")
    assert path.name.endswith("-test.json")
    assert load_side_record(CrossEvaluation, path) == FOUND
    assert load_side_records(CrossEvaluation, [tmp_path]) == [FOUND]
    assert load_results([tmp_path]) == [RESULT]


def test_other_data_and_splits_have_files_of_their_own(tmp_path):
    longer = TaskConfig(name="listops", version=1, options={"train": 200, "length": 160})
    for change in ({}, {"split": "validation"}, {"evaluated_on": longer}, {"batch_size": 8}):
        dataclasses.replace(FOUND, **change).save(tmp_path)
    # The last one replaces the first.
    assert len(load_side_records(CrossEvaluation, [tmp_path])) == 3


def test_a_sample_does_not_replace_the_whole_split(tmp_path):
    sample = dataclasses.replace(FOUND, available=SCORE.num_examples + 1)
    assert FOUND.filename.endswith("-test.json")
    assert sample.filename.endswith(f"-test-{SCORE.num_examples}.json")
    FOUND.save(tmp_path)
    sample.save(tmp_path)
    assert len(load_side_records(CrossEvaluation, [tmp_path])) == 2


def test_changed_options_are_those_that_differ_from_training():
    assert FOUND.changed_options == {"length": 80}
    assert FOUND.value == 0.5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", 2, "is not an evaluation of schema 1, got 2; evaluate again"),
        ("split", 3, "split should be a valid string"),
        ("metric", "f1", "the score lacks the main metric f1; evaluate again"),
    ],
)
def test_damaged_evaluation_is_rejected(tmp_path, field, value, message):
    path = FOUND.save(tmp_path)
    write_json(path, {**read_json(path), field: value})
    with pytest.raises(DataError, match=message):
        load_side_records(CrossEvaluation, [tmp_path])


def test_files_of_reference_rows_are_named_after_the_row():
    reference = dataclasses.replace(FOUND, reference="cnn-stem")
    assert (FOUND.row_name, reference.row_name) == ("local", "cnn-stem")
    assert reference.filename == FOUND.filename.replace("local-", "cnn-stem-", 1)
