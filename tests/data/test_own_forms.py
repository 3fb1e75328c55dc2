"""Own texts as JSON and as folders: the same data set as from CSV, and bad input."""

import functools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import own_files
from longspan.data.imports import texts as own_texts
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.data.sources.table import read_table
from longspan.data.sources.text import FileFormat
from own_files import write_csv

REQUEST = TextsRequest(text="text", target="label")
ROWS = [(f"text number {n} – é", ("no", "yes")[n % 2]) for n in range(40)]
check_refused = functools.partial(own_files.check_refused, request=REQUEST)


def load(cache, path, request=REQUEST):
    described = import_texts(cache, "mine", path, request)
    return described, own_texts.load_splits(cache / "own" / "mine", described)


def write_json_lines(path, rows, encoding="utf-8"):
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    path.write_text("\n\n".join(lines), encoding=encoding)
    return path


def write_folder(folder, rows, encoding="utf-8"):
    for number, (text, label) in enumerate(rows):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number}.txt").write_text(text, encoding=encoding)
    return folder


def test_every_form_gives_the_same_rows(tmp_path):
    expected, _ = load(tmp_path / "0", write_csv(tmp_path / "x.csv", ROWS, ("text", "label")))
    wide = TextsRequest(text="text", target="label", form=FileFormat(encodings=("utf-16",)))
    forms = [
        (write_json_lines(tmp_path / "x.jsonl", ROWS), REQUEST),
        (write_json_lines(tmp_path / "x.ndjson", ROWS[::-1], "utf-8-sig"), REQUEST),
        (write_json_lines(tmp_path / "wide.jsonl", ROWS, "utf-16"), wide),
        (write_folder(tmp_path / "folder", ROWS), REQUEST),
        (write_folder(tmp_path / "wide", ROWS, "utf-16"), wide),
    ]
    for number, (path, request) in enumerate(forms, 1):
        described, _ = load(tmp_path / str(number), path, request)
        assert described.rows_sha256 == expected.rows_sha256, path
        assert described.classes == ["no", "yes"]


def test_values_of_json_are_text_and_unused_columns_may_be_nested(tmp_path):
    objects = [
        {"text": f"a {n}", "label": n % 2 == 0, "tags": ["x"], "extra": {"y": n}} for n in range(20)
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, objects)))
    described, _ = load(tmp_path / "1", path)
    assert described.classes == ["false", "true"]
    tags = TextsRequest(text="text", target="tags")
    check_refused(tmp_path, path, "column 'tags' has a list or an object in line 1", request=tags)
    assert read_table(path).rows[3][2:] == ['["x"]', '{"y": 3}']  # nothing is lost


GOOD = '{"text": "a", "label": "b"}\n'


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (GOOD * 2 + "{oops}", ("x.jsonl, line 3:", "JSON object in each line")),
        (GOOD + "[1, 2]", ("x.jsonl, line 2: not a JSON object but a list",)),
        (GOOD + '"text"', ("x.jsonl, line 2: not a JSON object but a str",)),
        (GOOD + '{"text": "\\ud800", "label": "b"}', ("x.jsonl, line 2:", "surrogate")),
        (GOOD + '{"text": null, "label": "b"}', ("empty text or target in line 2", "--drop-empty")),
        ("\n" + GOOD + '{"text": "c"}', ("empty text or target in line 3",)),
        (GOOD + "[" * 100_000, ("x.jsonl, line 2:",)),
        ("", ("has no rows; expected a JSON object in each line",)),
        ('{"body": "a"}', ("has no column 'text'; its columns are body",)),
    ],
)
def test_bad_lines_are_named(tmp_path, content, parts):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    check_refused(tmp_path, path, *parts)


def test_other_encodings_are_named(tmp_path):
    path = write_json_lines(tmp_path / "x.jsonl", ROWS)
    path.write_bytes(path.read_bytes() + '{"text": "café"}'.encode("latin-1"))
    check_refused(
        tmp_path, path, f"x.jsonl, line {2 * len(ROWS) - 1}, is not utf-8", "--encoding latin-1"
    )
    folder = write_folder(tmp_path / "folder", ROWS)
    (folder / "no" / "99.txt").write_bytes("café".encode("latin-1"))
    check_refused(tmp_path, folder, "99.txt, line 1, is not utf-8", "--encoding")


def test_a_line_of_a_megabyte_is_one_text(tmp_path):
    rows = [*ROWS, ("word " * 200_000, "yes")]
    _, splits = load(tmp_path / "1", write_json_lines(tmp_path / "x.jsonl", rows))
    longest = max(len(row[0]) for split in splits.values() for row in split.texts)
    assert longest == 1_000_000 - 1  # without the last space


def test_folders_of_splits_are_kept_and_validation_is_held_out(tmp_path):
    data = tmp_path / "data"
    write_folder(data / "train", ROWS)
    write_folder(data / "test", [(f"new {text}", label) for text, label in ROWS[:6]])
    described, splits = load(tmp_path / "1", data)
    assert described.sizes == {"train": 36, "validation": 4, "test": 6}
    assert {row[0] for row in splits["test"].texts} == {f"new {text}" for text, _ in ROWS[:6]}
    write_folder(data / "dev", [(f"mid {text}", label) for text, label in ROWS[:3]])
    described, _ = load(tmp_path / "2", data)
    assert described.sizes == {"train": 40, "validation": 3, "test": 6}
    # What is given takes precedence.
    given = TextsRequest(text="text", target="label", validation=0.2)
    described, _ = load(tmp_path / "3", data, given)
    assert described.sizes == {"train": 32, "validation": 8, "test": 6}


def test_held_out_classes_that_training_lacks_are_counted(tmp_path):
    data = tmp_path / "data"
    write_folder(data / "train", ROWS)
    write_folder(data / "test", [("one", "no"), ("two", "maybe"), ("three", "maybe")])
    described, splits = load(tmp_path / "1", data)
    assert described.counts["unseen"] == 2
    assert len(splits["test"].texts) == 3
    assert described.classes == ["maybe", "no", "yes"]
    path = write_csv(tmp_path / "x.csv", ROWS, ("text", "label"))
    assert load(tmp_path / "2", path)[0].counts["unseen"] == 0


def test_folders_of_other_forms_are_refused(tmp_path):
    folder = write_folder(tmp_path / "folder", ROWS)
    (folder / ".hidden").write_text("not read")
    load(tmp_path / "1", folder)
    (folder / "no" / "5.txt").write_bytes(b"\0\1binary")
    check_refused(tmp_path, folder, "5.txt has a zero byte: the file is binary")
    (folder / "no" / "5.txt").write_bytes(b"one\ncaf\xe9\n")
    check_refused(tmp_path, folder, "5.txt, line 2, is not utf-8 text; pass the encoding")
    (folder / "no" / "5.txt").write_text(" \n")
    check_refused(tmp_path, folder, "empty text or target in no/5.txt")
    (folder / "no" / "5.txt").unlink()
    (folder / "no" / "deep").mkdir()
    check_refused(tmp_path, folder, "deep is a folder")
    (folder / "no" / "deep").rmdir()
    (folder / "README").write_text("about")
    check_refused(tmp_path, folder, "folder has files in no subfolder: README; expected one")
    (tmp_path / "empty").mkdir()
    check_refused(tmp_path, tmp_path / "empty", "has no rows; expected a subfolder for each class")
    split = tmp_path / "split"
    for name in ("train", "test", "unsup"):
        write_folder(split / name, ROWS[:4])
    check_refused(tmp_path, split, "has the splits test, train, and also unsup")
    (split / "unsup").rename(split / "val")
    write_folder(split / "dev", ROWS[:4])
    check_refused(tmp_path, split, "two folders of one split, dev and val")


def write_parquet(path, columns, features=None):
    table = pa.table(columns)
    if features:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path)
    return path


def test_values_of_parquet_are_text_and_class_numbers_have_their_names(tmp_path):
    texts = [f"text {n}" for n in range(40)]
    features = {
        "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
        "text": {"_type": "Value"},
    }
    columns = {
        "text": [text.encode() for text in texts],  # bytes
        "label": [n % 2 for n in range(40)],
        "flag": [n % 2 == 0 for n in range(40)],
        "tags": [["x"]] * 40,
    }
    path = write_parquet(tmp_path / "x.parquet", columns, features)
    described, splits = load(tmp_path / "1", path)
    assert described.classes == ["no", "yes"]
    assert {row[0] for split in splits.values() for row in split.texts} == set(texts)
    plain = write_parquet(tmp_path / "plain.parquet", {**columns, "text": texts})
    assert load(tmp_path / "2", plain)[0].classes == ["0", "1"]
    flags = TextsRequest(text="text", target="flag")
    assert load_described(tmp_path / "3", plain, flags).classes == ["false", "true"]
    tags = TextsRequest(text="text", target="tags")
    check_refused(tmp_path, path, "'tags' has a list or an object in row 1", request=tags)


def load_described(cache, path, request):
    return import_texts(cache, "mine", path, request)


@pytest.mark.parametrize("missing", [None, float("nan"), -1.0])
def test_missing_values_of_parquet_are_empty(tmp_path, missing):
    labels = [float(n % 2) for n in range(40)]
    labels[6] = missing
    if missing == -1:  # the Hugging Face libraries' missing label
        labels = [int(label) for label in labels]
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    columns = {"text": [f"text {n}" for n in range(40)], "label": labels}
    path = write_parquet(tmp_path / "x.parquet", columns, features)
    check_refused(tmp_path, path, "empty text or target in row 7")
    dropping = TextsRequest(text="text", target="label", drop_empty=True)
    assert load_described(tmp_path / "1", path, dropping).counts["empty"] == 1


def test_bytes_of_parquet_that_are_no_text_are_named(tmp_path):
    columns = {"text": [b"a", b"b", b"\xff"], "label": ["x", "y", "x"]}
    path = write_parquet(tmp_path / "x.parquet", columns)
    check_refused(tmp_path, path, "row 3: column 'text' has bytes that are not UTF-8")


@pytest.mark.parametrize(
    ("name", "header"), [("x.csv", b"text,label\n"), ("x.jsonl", b'{"text": "a", "label": "b"}\n')]
)
def test_first_line_in_another_encoding_is_named(tmp_path, name, header):
    """Lines of 9,000 characters: longer than what is decoded at once."""
    lines = [b'"' + b"a" * 9_000 + b'",x\n'] * 3 if name == "x.csv" else [header] * 3
    (tmp_path / name).write_bytes(b"".join([header, *lines, "é".encode("latin-1"), b"\n"]))
    check_refused(tmp_path, tmp_path / name, f"{name}, line 5, is not utf-8 text")


def test_lines_of_csv_are_counted_in_the_file(tmp_path):
    """Blank lines and line breaks inside quotes count, rows do not."""
    text = 'text,label\n"one\ntwo",x\n\nthree,\nfour,y\n'
    (tmp_path / "x.csv").write_text(text)
    check_refused(tmp_path, tmp_path / "x.csv", "empty text or target in line 5;")
    (tmp_path / "x.csv").write_text(text.replace("three,", "thr\0ee,x"))
    check_refused(tmp_path, tmp_path / "x.csv", "line 5 has a zero byte", "binary")


def test_wrong_numbers_are_named_in_their_file(tmp_path):
    """Rows that are left out, and other files, do not move the number of a line."""
    rows = [(f"text {n}", str(n)) for n in range(30)]
    path = write_csv(tmp_path / "x.csv", [("", "1"), *rows], ("text", "label"))
    test = write_csv(tmp_path / "test.csv", [("a", "1"), ("b", "many")], ("text", "label"))
    request = TextsRequest(text="text", target="label", kind="number", test=test, drop_empty=True)
    check_refused(tmp_path, path, "got 'many' (test.csv line 3)", request=request)
