"""The text task: bytes or characters as ids, a disjoint validation split, subsets."""

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from task_calls import open_beside

from longspan.data.tokenizers import END
from longspan.errors import OptionError
from longspan.tasks import build
from real_data import real

OPTIONS = {"length": 24, "validation": 8}
opened = partial(open_beside, "text", **OPTIONS)


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
def data(nowhere):
    return write(nowhere / "data", rows("train"), rows("test"))


def texts(task, split):
    return [task.show(split, row) for row in range(task.size(split))]


def test_token_is_a_byte_plus_one(data):
    task = opened(data, length=14)
    seen = {}
    for batch in task.batches("test", batch_size=7):
        assert batch.inputs["input_ids"].shape[1] <= 14
        for line, target in zip(
            batch.inputs["input_ids"].tolist(), batch.targets.tolist(), strict=True
        ):
            seen[bytes(token - 1 for token in line if token)] = target
    assert seen == {text.encode()[:14]: label for text, label in rows("test")}


@pytest.mark.parametrize(
    ("change", "checksum"),
    [
        ({}, "5c6c489f433058e189243f9c171fdacc9710370e317aeff7f04fc4d58f7eb1fd"),
        (
            {"train": 11, "test": 6, "seed": 3},
            "2363de5787826860f3120c62bdf906a2d9c8484e775886046cb767bfd58857c6",
        ),
    ],
)
def test_checksum_is_stable(data, change, checksum):
    """Raise the version of the task if its data must change."""
    task = opened(data, **change)
    assert (task.info.version, task.checksum) == (1, checksum)


CHARACTERS = {"vocabulary": "characters", "length": 100, "minimum": 1}


def test_characters_come_from_training_reviews(tmp_path, data):
    """Held-out reviews have characters that training reviews lack."""
    train = [
        (f"{chr(0x3B1 + n % 20)} {n} long {label}", label) for n in range(20) for label in (0, 1)
    ]
    test = [(f"{text} 猫", label) for text, label in rows("b")]
    task = opened(write(tmp_path / "d2", train, test), **CHARACTERS)
    kept = Counter("".join(text.partition(" = ")[0] for text in texts(task, "train")))
    assert len(task.facts["characters"]) < len(set("".join(text for text, _ in train)))
    assert task.facts["characters"] == "".join(sorted(kept, key=lambda c: (-kept[c], ord(c))))
    assert any("\ufffd" in text for text in texts(task, "validation"))
    assert all("\ufffd" in text for text in texts(task, "test"))


def test_rare_characters_are_unknown(data):
    common = opened(data, **CHARACTERS)
    rare = opened(data, **{**CHARACTERS, "minimum": 40})
    assert set(rare.facts["characters"]) < set(common.facts["characters"])
    lost = len(common.facts["characters"]) - len(rare.facts["characters"])
    assert rare.facts["characters_left_out"] == lost
    assert "café" in texts(common, "test")[0]
    assert rare.checksum != common.checksum


def test_end_symbol_is_within_the_length(data):
    task = opened(data, **CHARACTERS | {"length": 12, "end": True})
    batch = next(task.batches("test", batch_size=60))
    for line in batch.inputs["input_ids"].tolist():
        assert len(line) == 12
        assert line.count(END) == 1
        assert line[-1] == END
    plain = opened(data, **CHARACTERS | {"length": 11})
    assert texts(task, "test") == texts(plain, "test")


def test_both_encodings_hold_out_the_same_reviews(data):
    by_bytes, by_characters = opened(data, length=100), opened(data, **CHARACTERS)
    for split in ("train", "validation"):
        assert texts(by_bytes, split) == texts(by_characters, split)


def test_validation_can_be_the_test_split_as_in_the_paper(tmp_path, data):
    test = rows("test")
    train = rows("train") + test[:5]
    place = write(tmp_path / "d2", train, test)
    task = opened(place, length=100, validation="test")
    assert task.validation_is_test
    assert texts(task, "validation") == texts(task, "test")
    assert task.size("train") == len(train)
    assert task.facts["kept"] == {"train_text_in_test": 5}
    assert "dropped" not in task.facts
    assert task.source.endswith("; validation is the test split")
    held = opened(place)
    assert not held.validation_is_test
    assert "validation is the test split" not in held.source
    part = opened(place, length=100, validation="test", test=6)
    assert texts(part, "validation") == texts(part, "test")
    assert part.size("test") == 6


def test_validation_is_held_out_of_train_and_balanced(data):
    task = opened(data)
    train, validation, test = (texts(task, split) for split in ("train", "validation", "test"))
    assert task.labels("validation").bincount().tolist() == [4, 4]
    assert task.labels("train").bincount().tolist() == [26, 26]
    assert not set(train) & set(validation)
    assert len(test) == 60
    assert all(one.startswith("test") for one in test)


def test_copies_of_held_out_reviews_are_dropped_from_train(tmp_path, data):
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


def test_seed_chooses_the_held_out_reviews(data):
    one, same, other = opened(data), opened(data), opened(data, seed=1)
    assert texts(one, "validation") == texts(same, "validation") != texts(other, "validation")
    assert texts(one, "test") == texts(other, "test")


def test_subsets_are_balanced_and_nested(data):
    small, large = opened(data, train=11, test=6), opened(data, train=21, test=20)
    assert small.labels("train").bincount().tolist() == [6, 5]
    assert small.labels("test").bincount().tolist() == [3, 3]
    for split in ("train", "test"):
        assert set(texts(small, split)) < set(texts(large, split))
    assert texts(small, "validation") == texts(large, "validation")


def test_sources_have_separate_data_sets(tmp_path, data):
    first = opened(data)
    second = opened(write(tmp_path / "d2", rows("new"), rows("old", 9)))
    assert first.size("test") == 60
    assert second.size("test") == 18
    assert second.source == "IMDB, a subset (60 train and 18 test reviews)"
    assert second.facts["source_rows"] == {"train": 60, "test": 18}
    assert set(second.facts["source_sha256"]) == {"train.parquet", "test.parquet"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"validation": 100}, r"validation=100 needs 50 neg reviews, there are 30; use 60 or less"),
        ({"train": 90}, r"train=90 needs 45 neg reviews, there are 26; use 52 or less"),
        ({"test": 62}, r"test=62 needs 31 neg reviews, there are 30"),
    ],
)
def test_splits_larger_than_the_source_are_rejected(data, change, reason):
    with pytest.raises(OptionError, match=reason):
        opened(data, **change)


def test_real_full_data_set(tmp_path):
    task = build("text", {"length": 20_000})
    task.open(tmp_path, real("imdb/full"))
    assert {split: task.size(split) for split in task.info.sizes} == task.info.sizes
    assert task.source == "IMDB, the whole set (25000 train and 25000 test reviews)"
    lengths = task.dataset.splits["test"].tokens.lengths
    assert lengths.min() >= 32
    assert lengths.max() <= 13_704
    held = [task.dataset.splits[split].tokens for split in ("validation", "test")]
    kept = {one.tobytes() for one in task.dataset.splits["train"].tokens}
    assert not kept & {one.tobytes() for part in held for one in part}
    assert np.bincount(task.labels("validation").numpy()).tolist() == [2500, 2500]


@pytest.mark.slow
def test_real_full_data_set_by_characters_with_the_splits_of_the_paper(tmp_path):
    """S4 counts about 135 ids; here plain Python counts the characters."""
    options = {
        "vocabulary": "characters",
        "end": True,
        "length": 4096,
        "validation": "test",
        "test": 100,
    }
    task = build("text", options)
    task.open(tmp_path, real("imdb/full"))
    assert task.size("train") == 25_000
    assert task.facts["kept"]["train_text_in_test"] > 0
    counts = Counter()
    for text in pq.read_table(real("imdb/full") / "train.parquet")["text"].to_pylist():
        counts.update(text[:4095])
    truth = sorted((c for c in counts if counts[c] >= 15), key=lambda c: (-counts[c], ord(c)))
    assert task.facts["characters"] == "".join(truth)
    assert 125 <= len(truth) + 3 <= 145
    assert task.labels("train").bincount().tolist() == [12_500, 12_500]
