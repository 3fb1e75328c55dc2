"""Import of files of one's own: formats, checks, splits by a hash of the text."""

import functools
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import own_files
from longspan.data.imports import texts as own_texts
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.data.own_splits import DROPPED, TEST, TRAIN, VALIDATION, assign_splits
from longspan.data.sources.table import read_table
from longspan.data.sources.text import FileFormat
from longspan.errors import OptionError
from own_files import write_csv

REQUEST = TextsRequest(text="body", target="stars")
WIDE = FileFormat(encodings=("utf-16",))
ROWS = [(f"text number {n}", ("no", "yes")[n % 2]) for n in range(40)]
check_refused = functools.partial(own_files.check_refused, request=REQUEST)


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


def test_splits_depend_neither_on_order_nor_on_format(tmp_path):
    expected = load(tmp_path / "0", write_csv(tmp_path / "x.csv", ROWS))
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    texts, labels = zip(*shuffled, strict=True)
    pq.write_table(pa.table({"body": texts, "stars": labels}), tmp_path / "x.parquet")
    files = [
        (write_csv(tmp_path / "shuffled.csv", shuffled), FileFormat()),
        (write_csv(tmp_path / "x.tsv", shuffled, delimiter="\t"), FileFormat()),
        (write_csv(tmp_path / "semi.csv", ROWS, delimiter=";"), FileFormat(delimiter=";")),
        (
            write_csv(tmp_path / "wide.csv", ROWS, encoding="utf-16"),
            FileFormat(encodings=("utf-16",)),
        ),
        (write_csv(tmp_path / "bom.csv", ROWS, encoding="utf-8-sig"), FileFormat()),
        (tmp_path / "x.parquet", FileFormat()),
    ]
    for number, (path, form) in enumerate(files, 1):
        request = TextsRequest(text="body", target="stars", form=form)
        described, splits = load(tmp_path / str(number), path, request)
        assert described.rows_sha256 == expected[0].rows_sha256, path
        assert texts_of(splits) == texts_of(expected[1])


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


def test_quoted_line_breaks_and_long_fields_are_read(tmp_path):
    rows = [(f'line "{n}",\nline ' + "x" * 200_000 * (n == 0), str(n % 2)) for n in range(8)]
    found = read_table(write_csv(tmp_path / "x.csv", rows)).column("body")
    assert found == [text.strip() for text, _ in rows]


# bad input


def test_missing_column_names_those_that_exist(tmp_path):
    path = write_csv(tmp_path / "x.csv", ROWS, ("text", "label"))
    check_refused(tmp_path, path, "no column 'body'", "its columns are text, label")
    path = write_csv(tmp_path / "x.csv", ROWS, ("body", "stars"), delimiter=";")
    check_refused(tmp_path, path, "no column 'body'", "--delimiter ';'")
    path = write_csv(tmp_path / "x.csv", [(*row, "") for row in ROWS], ("body", "stars", "body"))
    check_refused(tmp_path, path, "several columns 'body'")


def test_one_class_is_refused(tmp_path):
    path = write_csv(tmp_path / "x.csv", [(text, "yes") for text, _ in ROWS])
    check_refused(tmp_path, path, "one class ('yes')", "expected two or more")


def test_column_of_identifiers_is_no_label(tmp_path):
    path = write_csv(tmp_path / "x.csv", [(text, str(n)) for n, (text, _) in enumerate(ROWS)])
    check_refused(tmp_path, path, "40 different values in 40 rows", "--target")


def test_empty_texts_are_refused_with_their_rows_or_left_out(tmp_path):
    rows = [*ROWS]
    for place in (2, 9, 11, 20, 21, 22, 30):
        rows[place] = ("  ", "yes")
    rows[35] = ("a text without a class", "")
    path = write_csv(tmp_path / "x.csv", rows)
    check_refused(
        tmp_path,
        path,
        "empty text or target in line 4, line 11, line 13, line 22, line 23 and 3 more",
        "--drop-empty",
    )
    dropping = TextsRequest(text="body", target="stars", drop_empty=True)
    described, _ = load(tmp_path, path, dropping)
    assert described.counts["empty"] == 8
    assert sum(described.sizes.values()) == 32


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encoding_is_refused_with_the_remedy(tmp_path, encoding):
    rows = [(f"café {n}", label) for n, (_, label) in enumerate(ROWS)]
    path = write_csv(tmp_path / "x.csv", rows, encoding=encoding)
    check_refused(tmp_path, path, "not utf-8 text", f"--encoding {encoding}")
    request = TextsRequest(text="body", target="stars", form=FileFormat(encodings=(encoding,)))
    assert "café 0" in set.union(*texts_of(load(tmp_path, path, request)[1]).values())


def test_unknown_encoding_and_delimiter_are_refused(tmp_path):
    path = write_csv(tmp_path / "x.csv", ROWS)
    for form, part in (
        (FileFormat(encodings=("utf-9",)), "utf-9"),
        (FileFormat(delimiter="ab"), "ab"),
    ):
        request = TextsRequest(text="body", target="stars", form=form)
        check_refused(tmp_path, path, part, request=request, error=OptionError)


@pytest.mark.parametrize("value", ["many", "nan", "inf", "1,5"])
def test_targets_that_are_no_numbers_are_refused(tmp_path, value):
    rows = [(text, str(n)) for n, (text, _) in enumerate(ROWS)]
    rows[4] = (rows[4][0], value)
    request = TextsRequest(text="body", target="stars", kind="number")
    path = write_csv(tmp_path / "x.csv", rows)
    check_refused(
        tmp_path, path, f"got {value!r} (x.csv line 6)", "finite numbers", request=request
    )
    path = write_csv(tmp_path / "x.csv", [(text, "7") for text, _ in ROWS])
    check_refused(tmp_path, path, "one value (7)", request=request)


def test_fewer_texts_than_splits_are_refused(tmp_path):
    path = write_csv(tmp_path / "x.csv", [("one", "a"), ("two", "b"), ("one", "a")])
    check_refused(tmp_path, path, "2 different texts cannot fill 3 splits")


def test_split_without_rows_and_training_with_one_class_are_refused(tmp_path):
    path = write_csv(tmp_path / "x.csv", ROWS)
    held_out = write_csv(tmp_path / "t.csv", ROWS[:5])
    both = TextsRequest(text="body", target="stars", validation=held_out, test=held_out)
    check_refused(tmp_path, path, "no row is left for validation", request=both)
    rest = write_csv(tmp_path / "rest.csv", [(f"{text}!", "yes") for text, _ in ROWS])
    test = TextsRequest(text="body", target="stars", test=path)
    check_refused(tmp_path, rest, "all training rows have one target", request=test)


@pytest.mark.parametrize(
    ("validation", "test", "part"),
    [(0.0, 0.1, "--validation"), (0.1, 1.5, "--test"), (0.5, 0.5, "no text for training")],
)
def test_shares_out_of_range_are_refused(tmp_path, validation, test, part):
    request = TextsRequest(text="body", target="stars", validation=validation, test=test)
    path = write_csv(tmp_path / "x.csv", ROWS)
    check_refused(tmp_path, path, part, request=request, error=OptionError)


def test_malformed_files_are_refused(tmp_path):
    path = write_csv(tmp_path / "x.csv", [*ROWS[:3], ("too", "many", "fields")])
    check_refused(tmp_path, path, "line 5: 3 fields, but the header has 2")
    path.write_text('body,stars\n"one" two,a\n')
    check_refused(tmp_path, path, "x.csv, line 2", "quotes")
    path.write_text("body,stars\n")
    check_refused(tmp_path, path, "no rows")
    check_refused(tmp_path, tmp_path / "absent.csv", "does not exist")
    (tmp_path / "x.parquet").write_text("no parquet")
    check_refused(tmp_path, tmp_path / "x.parquet", "x.parquet is truncated or no parquet file")
    other = tmp_path / "x.xlsx"
    other.touch()
    check_refused(tmp_path, other, ".csv", ".parquet", error=OptionError)


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
