"""The text task: bytes as ids, a validation split that leaks nothing, subsets by class."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.errors import DataError, OptionError
from longspan.tasks import build

OPTIONS = {"length": 24, "validation": 8}


def write(folder, train, test):
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", train), ("test", test)):
        texts, labels = zip(*rows, strict=True)
        table = pa.table({"text": texts, "label": labels})
        pq.write_table(table, folder / f"{part}.parquet")
    return folder


def rows(part, count=30):
    return [
        (f"{part} {n} {label} café, a long review", label) for n in range(count) for label in (0, 1)
    ]


@pytest.fixture
def data(tmp_path, monkeypatch):
    for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return write(tmp_path / "data", rows("train"), rows("test"))


def opened(data, **change):
    task = build("text", {**OPTIONS, **change})
    task.open(data.parent / "cache", data)
    return task


def texts(task, split):
    return [task.show(split, row) for row in range(task.size(split))]


def test_a_token_is_a_byte_plus_one_cut_to_length(data):
    task = opened(data, length=14)
    seen = {}
    for batch in task.batches("test", batch=7):
        assert batch.inputs.shape[1] <= 14
        for line, target in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            seen[bytes(token - 1 for token in line if token)] = target
    assert seen == {text.encode()[:14]: label for text, label in rows("test")}


def test_the_largest_byte_fits(tmp_path, data):
    lines = [(text + "\U0010ffff", label) for text, label in rows("a", 8)]
    task = opened(write(tmp_path / "d2", lines, rows("b")), length=500)
    assert (
        int(next(task.batches("train", batch=task.size("train"))).inputs.max())
        == 0xF4 + 1
        < task.info.vocabulary
    )


def test_validation_is_held_out_of_train_as_many_of_each_class(data):
    task = opened(data)
    train, validation, test = (texts(task, split) for split in ("train", "validation", "test"))
    assert task.labels("validation").bincount().tolist() == [4, 4]
    assert task.labels("train").bincount().tolist() == [26, 26]
    assert not set(train) & set(validation)
    assert len(test) == 60
    assert all(one.startswith("test") for one in test)


def test_copies_of_held_out_reviews_leave_train(tmp_path, data):
    """Every training text occurs twice, and five of them are in test."""
    test = rows("test")
    copied = [(text, label) for text, label in rows("train") for _ in range(2)] + test[:5]
    task = opened(write(tmp_path / "d2", copied, test), length=100)
    train, validation, tested = (texts(task, split) for split in ("train", "validation", "test"))
    assert len(set(validation)) == len(validation) == 8
    assert not set(train) & set(validation)
    assert not set(train) & set(tested)
    assert not set(validation) & set(tested)
    assert len(train) == 2 * (60 - 8)
    assert task.facts["dropped"] == {"train_text_in_test": 5, "train_text_in_validation": 8}


def test_seed_chooses_what_is_held_out(data):
    one, same, other = opened(data), opened(data), opened(data, seed=1)
    assert texts(one, "validation") == texts(same, "validation") != texts(other, "validation")
    assert texts(one, "test") == texts(other, "test")


def test_subsets_are_balanced_and_larger_ones_contain_smaller(data):
    small, large = opened(data, train=11, test=6), opened(data, train=21, test=20)
    assert small.labels("train").bincount().tolist() == [6, 5]
    assert small.labels("test").bincount().tolist() == [3, 3]
    for split in ("train", "test"):
        assert set(texts(small, split)) < set(texts(large, split))
    assert texts(small, "validation") == texts(large, "validation")


def test_form_of_the_source_makes_no_difference(tmp_path, data):
    other = tmp_path / "other"
    for part in ("train", "test"):
        for number, (text, label) in enumerate(rows(part)):
            path = other / "aclImdb" / part / ("neg", "pos")[label] / f"{number}_1.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    assert opened(data).checksum == opened(other).checksum


def test_another_source_is_not_taken_for_this_one(tmp_path, data):
    first = opened(data)
    second = opened(write(tmp_path / "d2", rows("new"), rows("old", 9)))
    assert first.size("test") == 60
    assert second.size("test") == 18
    assert second.source == "IMDB, a subset (60 train and 18 test reviews)"
    assert second.facts["source_rows"] == {"train": 60, "test": 18}
    assert set(second.facts["source_sha256"]) == {"train.parquet", "test.parquet"}


def test_a_built_set_serves_when_its_source_is_gone(data):
    first = opened(data)
    for path in data.iterdir():
        path.unlink()
    task, cache = build("text", OPTIONS), data.parent / "cache"
    assert "IMDB is not here" in task.available(None)
    assert task.available(None, cache) is None
    task.open(cache)
    assert task.checksum == first.checksum
    with pytest.raises(DataError, match=r"IMDB is not here \(searched .*data\)"):
        task.open(cache, data)
    with pytest.raises(DataError, match="longspan data build text --data FOLDER"):
        build("text", {**OPTIONS, "length": 5}).open(cache)


def test_available_tells_what_is_missing(data):
    task = build("text", OPTIONS)
    assert task.available(data) is None
    assert "longspan data build text --data FOLDER" in task.available(None)
    assert "nowhere does not exist" in task.available(data / "nowhere")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"validation": 100}, r"validation=100 needs 50 neg reviews, there are 30; use 60 or less"),
        ({"train": 90}, r"train=90 needs 45 neg reviews, there are 26; use 52 or less"),
        ({"test": 62}, r"test=62 needs 31 neg reviews, there are 30"),
    ],
)
def test_splits_larger_than_the_source_are_refused(data, change, reason):
    with pytest.raises(OptionError, match=reason):
        opened(data, **change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"length": 0}, "length=0; expected a whole number, 1 or more"),
        ({"validation": 1}, "validation=1; expected a whole number, 2 or more"),
        ({"train": 1}, "train=1; expected a whole number, 2 or more"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_impossible_options_are_refused(change, reason):
    with pytest.raises(OptionError, match=reason):
        build("text", change)


def test_real_full_set_has_the_recorded_sizes(tmp_path):
    if not os.environ.get("LONGSPAN_TEST_DATA"):
        pytest.skip("LONGSPAN_TEST_DATA is not set")
    folder = Path(os.environ["LONGSPAN_TEST_DATA"]) / "imdb" / "full"
    if not folder.is_dir():
        pytest.skip("LONGSPAN_TEST_DATA has no imdb/full")
    task = build("text", {"length": 20_000})
    task.open(tmp_path, folder)
    assert {split: task.size(split) for split in task.info.sizes} == task.info.sizes
    assert task.source == "IMDB, the whole set (25000 train and 25000 test reviews)"
    lengths = task._opened.splits["test"].tokens.lengths
    assert lengths.min() >= 32
    assert lengths.max() <= 13_704
    held = [task._opened.splits[split].tokens for split in ("validation", "test")]
    kept = {one.tobytes() for one in task._opened.splits["train"].tokens}
    assert not kept & {one.tobytes() for part in held for one in part}
    assert np.bincount(task.labels("validation").numpy()).tolist() == [2500, 2500]
