"""The copying task: what is scored, its three settings, options that are checked."""

import pytest
import torch

from longspan.errors import OptionError
from longspan.tasks import SPLITS, build
from longspan.tasks.scoring import IGNORE

SMALL = {
    "train": 300,
    "validation": 40,
    "test": 30,
    "length": 30,
    "count": 4,
    "symbols": 5,
    "noise": 3,
}


def opened(cache, **change):
    task = build("copying", {**SMALL, **change})
    task.open(cache)
    return task


def test_splits_have_the_asked_size_and_share_no_example(tmp_path):
    task = opened(tmp_path)
    assert {split: task.size(split) for split in SPLITS} == {k: SMALL[k] for k in SPLITS}
    found = [
        tuple(row.tolist())
        for split in ("test", "validation")
        for batch in task.batches(split, batch=16)
        for row in batch.inputs
    ]
    train = task.batches("train", batch=300)
    found += [tuple(row.tolist()) for row in next(train).inputs]
    assert len(set(found)) == len(found) == 370


@pytest.mark.parametrize(
    "change", [{}, {"together": True, "depth": 0.0}, {"count": 1, "depth": 0.5}], ids=str
)
def test_targets_are_the_symbols_in_order_at_the_markers_alone(tmp_path, change):
    task = opened(tmp_path, **change)
    assert (task.vocabulary, task.class_count, task.length) == (10, 5, 30)
    count = task.options.count
    for batch in task.batches("test", batch=16):
        assert batch.key_mask.all()
        for tokens, targets in zip(batch.inputs, batch.targets, strict=True):
            symbols = tokens[tokens >= 5] - 5
            assert torch.equal(targets[-count:], symbols)
            assert (targets[:-count] == IGNORE).all()
            assert (tokens[-count:] == 1).all()


def test_default_options_are_those_of_selective_copying():
    task = build("copying")
    options = task.options
    assert (options.length, options.count, options.symbols, options.noise) == (1_024, 16, 14, 1)
    assert (options.together, options.depth) == (False, None)
    assert (task.class_count, task.vocabulary) == (task.info.classes, task.info.vocabulary)


def test_sizes_of_splits_leave_each_other_alone(tmp_path):
    one, other = opened(tmp_path), opened(tmp_path, train=700, validation=9)
    for row in range(30):
        assert one.show("test", row) == other.show("test", row)
        assert one.show("train", row) == other.show("train", row)


def test_data_is_the_same_in_every_version(tmp_path):
    """A change of this digest is a change of the data: raise the version of the task."""
    assert opened(tmp_path).checksum == (
        "c8ef70c6fb2f5d0838773ca6e2dd7927afad425232f468eb7b344907844b5664"
    )
    assert opened(tmp_path, seed=1).checksum != opened(tmp_path).checksum


def test_an_example_is_shown_with_its_answer(tmp_path):
    task = opened(tmp_path)
    for row in range(30):
        body, answer = task.show("test", row).split(" (4 markers) = ")
        words = body.replace("(", "").replace(" filler)", "f").split()
        assert " ".join(word for word in words if word[0] == "s") == answer
        assert sum(int(word[:-1]) for word in words if word[-1] == "f") == 22
    assert task.svg("test", 0) is None


def test_it_says_that_it_is_a_diagnostic():
    info = build("copying").info
    assert info.per_token
    assert "not of Long Range Arena" in info.notes
    assert info.published == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"count": 0}, "count=0; expected a whole number, 1 or more"),
        ({"length": 7}, "length=7 has no room for 4 symbols"),
        ({"together": "yes"}, "together must be true or false, got 'yes'"),
        ({"depth": 0.5}, "set together=true"),
        ({"depth": -1, "together": True}, "depth=-1; expected 0"),
    ],
)
def test_impossible_options_are_refused(change, reason):
    with pytest.raises(OptionError, match=reason):
        build("copying", {**SMALL, **change})
