"""Import of files of one's own: formats, checks, splits by a hash of the text."""

import random

import numpy as np
import pytest

from longspan.data.imports import texts as own_texts
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.data.own_splits import DROPPED, TEST, TRAIN, VALIDATION, assign_splits
from longspan.data.sources.table import read_table
from own_files import write_csv

REQUEST = TextsRequest(text="body", target="stars")
ROWS = [(f"text number {n}", ("no", "yes")[n % 2]) for n in range(40)]


def load(cache, path, request=REQUEST, name="mine", **options):
    described = import_texts(cache, name, path, request, **options)
    return described, own_texts.load_splits(cache / "own" / name, described)


def texts_of(splits):
    return {name: {row[0] for row in split.texts} for name, split in splits.items()}


def test_every_row_is_in_one_split_with_its_class(tmp_path):
    described, splits = load(tmp_path, write_csv(tmp_path / "x.csv", ROWS))
    assert described.sizes == {"train": 32, "validation": 4, "test": 4}
    assert described.classes == ["no", "yes"]
    found = [
        (row[0], described.classes[label])
        for split in splits.values()
        for row, label in zip(split.texts, split.targets, strict=True)
    ]
    assert sorted(found) == sorted(ROWS)


def test_equal_texts_never_straddle_splits(tmp_path):
    rows = [(f"text {n % 12}", ("no", "yes")[n % 5 == 0]) for n in range(90)]
    described, splits = load(tmp_path, write_csv(tmp_path / "x.csv", rows))
    found = texts_of(splits)
    assert sum(map(len, found.values())) == 12
    assert sum(described.sizes.values()) == 90
    assert described.counts["repeated"] == 78


def test_pairs_are_split_by_both_texts(tmp_path):
    rows = [(f"a {n % 4}", f"b {n}", str(n % 2)) for n in range(30)]
    path = write_csv(tmp_path / "x.csv", rows, ("one", "two", "same"))
    described, splits = load(tmp_path, path, TextsRequest(text="one", pair="two", target="same"))
    assert described.is_pair
    pairs = [row for split in splits.values() for row in split.texts]
    assert sorted(pairs) == sorted((a, b) for a, b, _ in rows)


def test_given_files_are_held_out_and_their_texts_leave_training(tmp_path):
    path = write_csv(tmp_path / "x.csv", ROWS)
    test = write_csv(tmp_path / "t.csv", [*ROWS[:3], ("new text", "yes")])
    validation = write_csv(tmp_path / "v.csv", [*ROWS[2:6], ("other text", "no")])
    both = TextsRequest(text="body", target="stars", validation=validation, test=test)
    described, splits = load(tmp_path / "both", path, both)
    found = texts_of(splits)
    assert found["test"] == {*(text for text, _ in ROWS[:3]), "new text"}
    assert found["validation"] == {*(text for text, _ in ROWS[3:6]), "other text"}
    assert found["train"] == {text for text, _ in ROWS[6:]}
    # six rows of the file to split, and one of validation
    assert described.counts["in_another_split"] == 7
    one = TextsRequest(text="body", target="stars", test=test, validation=0.25)
    found = texts_of(load(tmp_path / "one", path, one)[1])
    assert found["test"] == {*(text for text, _ in ROWS[:3]), "new text"}
    assert len(found["validation"]) == 9  # a quarter of the 37 texts that are left
    assert not found["validation"] & found["test"]


@pytest.mark.parametrize("count", [3, 4, 11, 50])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.49])
def test_small_files_fill_every_split(count, share):
    keys = [(str(n),) for n in range(count)]
    given = np.zeros(count, np.int8)
    found = assign_splits(keys, given, {VALIDATION: share, TEST: share}).splits
    sizes = [int((found == split).sum()) for split in (TRAIN, VALIDATION, TEST)]
    assert min(sizes) >= 1
    assert sum(sizes) == count
    assert DROPPED not in found


def test_longer_file_moves_few_texts(tmp_path):
    keys = [(str(n),) for n in range(1_000)]
    shares = {VALIDATION: 0.1, TEST: 0.1}
    splits = [assign_splits(keys[:n], np.zeros(n, np.int8), shares).splits for n in (900, 1_000)]
    assert (splits[0] != splits[1][:900]).mean() < 0.05


def test_classes_that_are_numbers_are_in_numerical_order(tmp_path):
    rows = [(f"text {n}", str(n % 11)) for n in range(60)]
    assert load(tmp_path, write_csv(tmp_path / "x.csv", rows))[0].classes == [*map(str, range(11))]


def test_numbers_are_kept_and_standardized_by_training(tmp_path):
    rows = [(f"text {n}", f"{n / 4}") for n in range(40)]
    request = TextsRequest(text="body", target="stars", kind="number")
    described, splits = load(tmp_path, write_csv(tmp_path / "x.csv", rows), request)
    assert described.is_regression
    found = {row[0]: x for s in splits.values() for row, x in zip(s.texts, s.targets, strict=True)}
    assert found == {text: float(number) for text, number in rows}
    assert described.mean == pytest.approx(splits["train"].targets.mean())
    assert described.deviation == pytest.approx(splits["train"].targets.std())


def test_order_of_the_file_changes_nothing_of_an_import_of_numbers(tmp_path):
    """The last bit of the mean did, which standardizes the numbers that a model learns."""
    rows = [(f"text {n}", f"{n / 7}") for n in range(90)]
    request = TextsRequest(text="body", target="stars", kind="number")
    found = set()
    for seed in range(8):
        random.Random(seed).shuffle(rows)
        described, _ = load(tmp_path / str(seed), write_csv(tmp_path / "x.csv", rows), request)
        found.add((described.rows_sha256, described.mean, described.deviation))
    assert len(found) == 1


def test_quoted_line_breaks_and_long_fields_are_read(tmp_path):
    rows = [(f'line "{n}",\nline ' + "x" * 200_000 * (n == 0), str(n % 2)) for n in range(8)]
    found = read_table(write_csv(tmp_path / "x.csv", rows)).column("body")
    assert found == [text.strip() for text, _ in rows]


def test_rows_without_a_text_or_a_class_are_left_out_and_counted(tmp_path):
    rows = [*ROWS]
    for place in (2, 9, 11, 20, 21, 22, 30):
        rows[place] = ("  ", "yes")
    rows[35] = ("a text without a class", "")
    dropping = TextsRequest(text="body", target="stars", drop_empty=True)
    described, _ = load(tmp_path, write_csv(tmp_path / "x.csv", rows), dropping)
    assert described.counts["empty"] == 8
    assert sum(described.sizes.values()) == 32


def test_files_of_one_name_are_all_recorded(tmp_path):
    """train/data.csv and test/data.csv: neither checksum replaces the other."""
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    train = write_csv(tmp_path / "train" / "data.csv", ROWS[:30])
    test = write_csv(tmp_path / "test" / "data.csv", ROWS[30:])
    request = TextsRequest(text="body", target="stars", test=test)
    described, splits = load(tmp_path, train, request)
    assert sorted(described.files) == sorted(map(str, (train, test)))
    assert len(set(described.files.values())) == 2
    assert described.sizes["test"] == len(splits["test"].texts) == 10
