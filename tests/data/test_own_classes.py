"""Classes of imports: spellings, what each split holds, and splits that keep every class."""

import dataclasses
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.imports import texts as own_texts
from longspan.data.imports.targets import (
    describe_classes,
    describe_shares,
    describe_splits,
    find_look_alikes,
    parse_classes,
)
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.data.own_splits import TEST, TRAIN, VALIDATION, assign_splits
from longspan.errors import DataError
from own_files import write_csv

HEADER = ("text", "label")


def rows_of(tag, classes, count=12):
    return [(f"{tag} {n}", classes[n % len(classes)]) for n in range(count)]


def write_json(path, rows):
    path.write_text("\n".join(json.dumps(dict(zip(HEADER, row, strict=True))) for row in rows))
    return path


def write_parquet(path, rows):
    pq.write_table(pa.table(dict(zip(HEADER, zip(*rows, strict=True), strict=True))), path)
    return path


def write_folder(folder, rows):
    for number, (text, label) in enumerate(rows):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / str(label) / f"{number}.txt").write_text(text)
    return folder


# Each door that labels come through: writer, name, and values as that form has them.
DOORS = {
    "csv": (lambda p, rows: write_csv(p, rows, HEADER), "x.csv"),
    "jsonl": (write_json, "x.jsonl"),
    "parquet": (write_parquet, "x.parquet"),
    "folder": (write_folder, "folder"),
}
SPELLINGS = {
    "numbers": ([0, 1], [0.0, 1.0], ["0", "1"]),
    "booleans": ([False, True], ["false", "true"], ["false", "true"]),
}


def load(tmp_path, train, test):
    request = TextsRequest(text="text", target="label", test=test)
    return import_texts(tmp_path / "cache", "mine", train, request)


@pytest.mark.parametrize(
    ("train_door", "test_door"),
    [(x, x) for x in DOORS] + list(zip(DOORS, [*DOORS][1:] + [*DOORS][:1], strict=True)),
)
@pytest.mark.parametrize("kind", SPELLINGS)
def test_one_class_in_two_spellings_is_one_at_every_door(tmp_path, kind, train_door, test_door):
    one, other, names = SPELLINGS[kind]
    (write, name), (write_other, other_name) = DOORS[train_door], DOORS[test_door]
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
    train = write(tmp_path / "train" / name, rows_of("a", one, 40))
    test = write_other(tmp_path / "test" / other_name, rows_of("b", other))
    described = load(tmp_path, train, test)
    assert [x.lower() for x in described.classes] == names
    assert described.class_counts["test"] == [6, 6]
    assert described.counts["unseen"] == 0
    splits = own_texts.load_splits(tmp_path / "cache" / "own" / "mine", described)
    for text, label in zip(splits["test"].texts, splits["test"].targets, strict=True):
        assert label == int(text[0].split()[1]) % 2  # the class that the row was written with


def test_merged_spellings_are_named_and_single_ones_kept():
    found = parse_classes(["1", "1.0", "0", "2.", "True", "TRUE"], "x")
    assert found.classes == ("0", "1", "2.", "true")
    assert found.spellings == {"1": ("1", "1.0"), "true": ("TRUE", "True")}
    assert found.values.tolist() == [1, 1, 0, 2, 3, 3]
    assert parse_classes(["1.0", "0.0", "True"], "x").classes == ("0.0", "1.0", "True")
    notes = describe_classes({}, found.classes, found.spellings)
    assert notes[0] == "'1', '1.0' are one class, '1'"


def test_equal_numbers_that_may_be_names_stay_apart_and_are_named():
    """The versions 1.1 and 1.10 differ, and so may codes such as 01 and 1."""
    names = ["1.1", "1.10", "01", "1", "-1"]
    assert set(parse_classes(names, "x").classes) == set(names)
    assert find_look_alikes(names) == [["1.1", "1.10"], ["01", "1"]]


@pytest.mark.parametrize(
    "pair",
    [
        *(("Pos", "pos"), ("sci fi", "scifi"), ("caf\u00e9", "cafe\u0301"), ("a\u00a0b", "a b")),
        *(("x\u200b", "x"), ("\uff11", "1"), ("1e3", "1000"), ("STRASSE", "stra\u00dfe")),
    ],
)
def test_classes_that_look_alike_are_named(tmp_path, pair):
    path = write_csv(tmp_path / "x.csv", rows_of("a", [*pair, "other"], 60), HEADER)
    described = load(tmp_path, path, 0.1)
    assert len(described.classes) == 3
    (note,) = describe_classes(described.class_counts, described.classes, described.spellings)
    assert "look alike and are 2 classes" in note
    assert all(repr(name) in note for name in pair)
    assert not find_look_alikes(["-1", "+1", "0", "pos", "neg", "infinity", "nan"])


def test_splits_without_a_common_class_are_refused(tmp_path):
    train = write_csv(tmp_path / "x.csv", rows_of("a", "01", 40), HEADER)
    test = write_csv(tmp_path / "t.csv", rows_of("b", ["neg", "pos"]), HEADER)
    with pytest.raises(DataError, match="train and test have no class in common") as caught:
        load(tmp_path, train, test)
    assert "train has '0', '1', test has 'neg', 'pos'; write the classes alike" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_class_that_a_split_lacks_is_named_both_ways(tmp_path):
    folder = tmp_path / "films"
    write_folder(folder / "train", rows_of("a", ["neg", "pos", "unsup"], 60))
    write_folder(folder / "test", rows_of("b", ["neg", "pos", "new"]))
    described = import_texts(
        tmp_path / "cache", "mine", folder, TextsRequest(text="text", target="label")
    )
    counts = described.class_counts
    assert {x: sum(own) for x, own in counts.items()} == described.sizes
    shown = describe_splits(counts, described.classes)
    assert shown.startswith("train 'neg' 18, 'pos' 18, 'unsup' 18, 'new' 0; validation 'neg' 2")
    notes = describe_classes(counts, described.classes, described.spellings)
    assert notes == [
        "train has no row of the class 'new' (4 in test): no model learns it",
        "validation has no row of the class 'new' (4 in test): the selected checkpoint does not "
        "depend on it",
        "test has no row of the class 'unsup' (18 in train, 2 in validation): no score covers it",
    ]


@pytest.mark.parametrize("rare", range(1, 7))
def test_rare_class_is_in_every_split_that_can_hold_it(rare):
    for seed in range(20):
        keys = [(f"{seed} {n}",) for n in range(400)]
        labels = np.array([int(n < rare) for n in range(400)])
        splits = assign_splits(keys, np.zeros(400, np.int8), {VALIDATION: 0.1, TEST: 0.1}, labels)
        found = splits.splits
        held = [split for split in (TRAIN, TEST, VALIDATION) if labels[found == split].any()]
        assert held == [TRAIN, TEST, VALIDATION][:rare]
        assert abs((found == TEST).sum() - 40) <= 1


def test_shares_of_classes_are_kept():
    """Also where a share of each class is no whole number: 40 classes of 13 texts."""
    draws = random.Random(0)
    labels = np.array([n % 40 for n in range(520)] + [40] * 4_000)
    order = draws.sample(range(len(labels)), len(labels))
    keys = [(str(n),) for n in range(len(labels))]
    shares = {VALIDATION: 0.1, TEST: 0.2}
    found = assign_splits(keys, np.zeros(len(labels), np.int8), shares, labels).splits
    for split, share in shares.items():
        assert (found == split).sum() == pytest.approx(share * len(labels), abs=2)
        assert (found[labels < 40] == split).sum() == pytest.approx(share * 520, abs=2)
    shuffled = assign_splits(
        [keys[n] for n in order], np.zeros(len(order), np.int8), shares, labels[order]
    )
    assert shuffled.splits.tolist() == found[order].tolist()


def test_more_classes_than_are_stored_are_refused():
    names = [f"class {n}" for n in range(65_537)]
    with pytest.raises(DataError, match="here has 65,537 classes; expected at most 65,536"):
        parse_classes(names * 2, "here")
    assert parse_classes(names[1:] * 2, "here").values.max() == 65_535


def test_share_that_small_classes_exceed_is_named(tmp_path):
    rows = [(f"text {n}", f"class {n % 100}") for n in range(300)]
    path = write_csv(tmp_path / "x.csv", rows, HEADER)
    request = TextsRequest(text=HEADER[0], target=HEADER[1])
    described = import_texts(tmp_path / "cache", "mine", path, request)
    assert described.sizes == {"train": 100, "validation": 100, "test": 100}
    notes = describe_shares(described.sizes, described.shares)
    assert [note.partition(":")[0] for note in notes] == [
        f"{split} holds out 33 % of the rows, and a share of 0.1 was asked for"
        for split in ("validation", "test")
    ]
    # A file that is given has no share.
    test = write_csv(tmp_path / "test.csv", [("other", rows[0][1])], HEADER)
    request = dataclasses.replace(request, test=test)
    described = import_texts(tmp_path / "other", "mine", path, request)
    assert described.shares == {"validation": 0.1}
    sizes = {"train": 85, "validation": 15, "test": 300}
    assert describe_shares(sizes, {"validation": 0.1}) == []
    assert len(describe_shares(sizes, {"validation": 0.09})) == 1


def test_text_of_two_classes_counts_for_the_rarer_one():
    keys = [(str(n % 50),) for n in range(100)]
    labels = np.array([0] * 50 + [1] * 3 + [0] * 47)
    given = np.zeros(100, np.int8)
    found = assign_splits(keys, given, {VALIDATION: 0.1, TEST: 0.1}, labels).splits
    assert sorted(found[50:53].tolist()) == [TRAIN, VALIDATION, TEST]
    assert found[:50].tolist() == found[50:].tolist()  # equal texts are in one split


def test_two_texts_of_each_class_fill_all_splits():
    keys, labels = [(str(n),) for n in range(8)], np.arange(8) // 2
    found = assign_splits(keys, np.zeros(8, np.int8), {VALIDATION: 0.1, TEST: 0.1}, labels).splits
    assert {*found.tolist()} == {TRAIN, VALIDATION, TEST}
