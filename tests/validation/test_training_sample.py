"""Rule for the number of scored training examples, where the size of the split is unknown."""

import dataclasses
from pathlib import Path

import pytest

import synthetic
from longspan.arena import get
from longspan.config import replace_fields
from longspan.validation.findings import RecordFile
from longspan.validation.scores import check_splits


def record_with(train, requested, found):
    """Return a record of `text` whose training split has `train` examples, or all it finds."""
    record = synthetic.record(get("smoke").experiment("text", "local", 0))
    changes = {"task.train": train, "training.train_eval_examples": requested}
    score = dataclasses.replace(record.scores["train"], num_examples=found)
    return dataclasses.replace(
        record,
        config=replace_fields(record.config, changes),
        scores={**record.scores, "train": score},
    )


def findings(train, requested, found):
    record = record_with(train, requested, found)
    file = RecordFile(path=Path("record.json"), record=record)
    return [(one.field, one.expected) for one in check_splits(file)]


@pytest.mark.parametrize("requested", [300, None])  # None: as many as validation has
@pytest.mark.parametrize("change", [-1, 0, 1])
def test_training_split_may_have_fewer_examples_than_requested(requested, change):
    count = requested or record_with(10, None, 10).scores["validation"].num_examples
    expected = [("scores.train.num_examples", f"at most {count}")] if change > 0 else []
    assert findings(None, requested, count + change) == expected


@pytest.mark.parametrize(("train", "expected"), [(100, "100"), (1000, "300")])
def test_training_split_of_known_size_is_scored_as_requested(train, expected):
    assert findings(train, 300, int(expected)) == []
    assert findings(train, 300, 99) == [("scores.train.num_examples", expected)]
