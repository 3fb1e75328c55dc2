"""Forms of own tables: JSON, packed files, and folders of splits and shards."""

import dataclasses
import gzip
import json
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.imports.texts import TextsRequest, import_texts, load_splits
from longspan.data.own_splits import TEST, TRAIN, VALIDATION
from longspan.data.sources.folders import find_tables, table_name
from longspan.data.sources.table import read_new_texts, read_table
from longspan.data.sources.text import FileFormat
from longspan.errors import DataError, OptionError
from own_files import write_csv

ROWS = [{"text": f"text {n} – é", "label": ("no", "yes")[n % 2]} for n in range(40)]
REQUEST = TextsRequest(text="text", target="label")
PAIRS = [(row["text"], row["label"]) for row in ROWS]
SUMMARIES = dataclasses.replace(REQUEST, kind="summary")
LINES = "\n".join(map(json.dumps, ROWS))
CSV = "text,label\n" + "\n".join(f"{row['text']},{row['label']}" for row in ROWS)
FORMS = {
    "array.json": json.dumps(ROWS),
    "array.jsonl": json.dumps(ROWS),
    "indented.json": json.dumps(ROWS, indent=2),
    "array of lines.json": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "lines.json": LINES,
    "lines.jsonl": LINES,
    "windows.jsonl": LINES.replace("\n", "\r\n"),
    "indented objects.jsonl": "\n".join(json.dumps(row, indent=1) for row in ROWS),
    "mark.json": "\ufeff" + json.dumps(ROWS),
    "x.csv": CSV,
    "x.TSV": CSV.replace(",", "\t"),
}


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[name] for row in rows] for name in ("text", "label")}
    pq.write_table(pa.table(columns, pa.schema([(x, pa.string()) for x in columns])), path)
    return path


def write_folder(folder, rows, encoding="utf-8"):
    for number, (text, label) in enumerate(rows):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number}.txt").write_text(text, encoding=encoding)
    (folder / ".hidden").write_text("not read")
    return folder


def write_columns(path, columns, features=None):
    """Write parquet columns, with names of classes as the Hugging Face libraries store them."""
    table = pa.table(columns)
    if features:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path)
    return path


def load(cache, path, request=REQUEST):
    return import_texts(cache, "mine", path, request)


def load_rows(cache, path):
    described = load(cache, path)
    return described, load_splits(cache / "own" / "mine", described)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the sha256 of the rows of all forms."""
    folder = tmp_path_factory.mktemp("expected")
    return load(folder, write_parquet(folder / "x.parquet", ROWS)).rows_sha256


PACKED = [(form, x) for form in ("lines.jsonl", "x.csv") for x in (".gz", ".zst", ".GZ", ".Zst")]


@pytest.mark.parametrize(("form", "packing"), [*((form, "") for form in FORMS), *PACKED])
def test_every_form_has_the_same_rows(tmp_path, expected, form, packing):
    content = FORMS[form].encode()
    path = tmp_path / f"{form}{packing}"
    if packing.lower() == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(gzip.compress(content) if packing.lower() == ".gz" else content)
    assert load(tmp_path / "cache", path).rows_sha256 == expected
    assert table_name(path) == form.rpartition(".")[0]


ENCODINGS = [  # as the file is written, and read: a mark of the byte order is no part of the text
    *(("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le")),
    *(("utf-16", "utf-16-le"), ("utf-32", "UTF-32LE"), ("utf-32-be", "utf-32-be")),
]


@pytest.mark.skipif(sys.byteorder == "big", reason="utf-16 is written in the order of the machine")
@pytest.mark.parametrize(("encoding", "declared"), ENCODINGS)
@pytest.mark.parametrize("form", ["lines.jsonl", "lines.ndjson", "x.csv", "semi.csv", "folder"])
def test_every_encoding_and_order_has_the_same_rows(tmp_path, expected, form, encoding, declared):
    shuffled = random.Random(1).sample(PAIRS, len(PAIRS))
    path, delimiter = tmp_path / form, ";" if form == "semi.csv" else None
    if form == "folder":
        write_folder(path, shuffled, encoding)
    elif form.endswith(".csv"):
        write_csv(path, shuffled, ("text", "label"), encoding, delimiter or ",")
    else:
        path.write_text("\n\n".join(map(json.dumps, ROWS[::-1])), encoding=encoding)
    form = FileFormat(encodings=(declared,), delimiter=delimiter)
    request = dataclasses.replace(REQUEST, form=form)
    assert load(tmp_path / "cache", path, request).rows_sha256 == expected


def test_packed_parquet_is_refused(tmp_path):
    path = write_parquet(tmp_path / "p.parquet", ROWS).rename(tmp_path / "p.parquet.gz")
    with pytest.raises(
        OptionError, match=r"behind all but \.parquet and \.arrow, or .*; unpack it"
    ):
        load(tmp_path / "cache", path)


LAYOUTS = {
    "shards": {f"train-0000{n}-of-00003.parquet": ROWS[n::3] for n in range(3)},
    "numbered": {f"{n:04}.parquet": ROWS[n::3] for n in range(3)},
    "with an empty shard": {"part-0.parquet": ROWS, "part-1.parquet": []},
    "data": {f"data/train-0000{n}-of-00002.parquet": ROWS[n::2] for n in range(2)},
    "one configuration": {"plain_text/train-00000-of-00001.parquet": ROWS},
    "one split": {"test.parquet": ROWS},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_of_a_folder_are_one(tmp_path, expected, layout):
    for name, rows in LAYOUTS[layout].items():
        write_parquet(tmp_path / "set" / name, rows)
    (tmp_path / "set" / "README.md").write_text("about")
    (tmp_path / "set" / "dataset_infos.json").write_text("{}")
    described = load(tmp_path / "cache", tmp_path / "set")
    assert described.rows_sha256 == expected
    assert sorted(described.files) == sorted(x.rpartition("/")[2] for x in LAYOUTS[layout])


SPLIT_LAYOUTS = {
    "shards": ("train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"),
    "data": ("data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"),
    "files": ("train.parquet", "dev.parquet"),
    "folders": ("train/0000.parquet", "val/0000.parquet"),
}


@pytest.mark.parametrize("layout", SPLIT_LAYOUTS)
def test_splits_in_the_names_of_tables_are_kept(tmp_path, layout):
    train, validation = SPLIT_LAYOUTS[layout]
    write_parquet(tmp_path / "set" / train, ROWS[:30])
    write_parquet(tmp_path / "set" / validation, ROWS[30:])
    described = load(tmp_path / "cache", tmp_path / "set")
    assert described.sizes["validation"] == 10
    assert described.sizes["train"] + described.sizes["test"] == 30


@pytest.mark.parametrize("layout", ["{}.parquet", "{}/0000.parquet", "{}/{}.parquet"])
def test_held_out_folder_with_splits_gives_the_split_of_its_option(tmp_path, layout):
    other = [{**row, "text": f"other {row['text']}"} for row in ROWS]
    path = write_parquet(tmp_path / "x.parquet", ROWS)
    for name, rows in (("train", other[:25]), ("test", other[25:])):
        write_parquet(tmp_path / "set" / layout.format(name, name), rows)
    given = TextsRequest(text="text", target="label", test=tmp_path / "set")
    assert import_texts(tmp_path / "cache", "mine", path, given).sizes["test"] == 15
    given = TextsRequest(text="text", target="label", validation=tmp_path / "set")
    expected = r"expected texts of validation, got a folder of the splits train, test; pass the"
    for kind in (given, dataclasses.replace(given, kind="summary")):
        with pytest.raises(DataError, match=expected):
            import_texts(tmp_path / "cache", "other", path, kind)


@pytest.mark.parametrize("name", ["test.parquet", "train.parquet", "mine.parquet"])
def test_held_out_folder_of_one_table_is_that_table(tmp_path, name):
    path = write_parquet(tmp_path / "x.parquet", ROWS[:30])
    write_parquet(tmp_path / "set" / name, ROWS[30:])
    given = TextsRequest(text="text", target="label", test=tmp_path / "set")
    assert import_texts(tmp_path / "cache", "mine", path, given).sizes["test"] == 10


def test_folders_of_tables_have_summaries_too(tmp_path):
    write_parquet(tmp_path / "set" / "train.parquet", ROWS[:30])
    write_parquet(tmp_path / "set" / "test.parquet", ROWS[30:])
    found = import_texts(tmp_path / "cache", "mine", tmp_path / "set", SUMMARIES)
    assert found.sizes["test"] == 10
    (tmp_path / "texts" / "pos").mkdir(parents=True)
    with pytest.raises(OptionError, match="is a folder without tables"):
        import_texts(tmp_path / "cache", "other", tmp_path / "texts", SUMMARIES)


def test_rows_of_shards_are_named_with_their_file(tmp_path):
    for n in range(2):
        rows = [*ROWS[:3], {"text": "" if n else "x", "label": "no"}]
        write_parquet(tmp_path / "set" / f"train-0000{n}-of-00002.parquet", rows)
    with pytest.raises(DataError, match=r"empty text or target in train-00001-of-00002\S* row 4"):
        load(tmp_path / "cache", tmp_path / "set")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"],
            "lacks train-00001-of-00003.parquet, 1 of 3 files of the split; download",
        ),
        (["train.csv", "train.parquet"], r"such as train\.csv and train\.parquet; keep one"),
        (["old.csv", "new.csv"], "several files of train that are no numbered shards"),
        (["train.parquet", "test.parquet", "unsupervised.parquet"], "and also unsupervised"),
        (["test.parquet", "dev.parquet"], "tables of validation, test, and none of train"),
        (["one/x.parquet", "two/x.parquet"], "parquet files in one, two; pass one of these"),
    ],
)
def test_folders_whose_tables_are_ambiguous_are_refused(tmp_path, names, message):
    for name in names:
        write_parquet(tmp_path / "set" / name, ROWS)
    with pytest.raises(DataError, match=message):
        find_tables(tmp_path / "set")


def test_files_of_classes_are_no_tables(tmp_path):
    for name in ("train/pos/1.txt", "test/pos/1.csv", "train/neg/2.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a text")
    assert find_tables(tmp_path) == {}
    assert find_tables(tmp_path / "train") == {}
    write_parquet(tmp_path / "tables" / "Train_1.parquet", ROWS)
    write_parquet(tmp_path / "tables" / "valid-a.parquet", ROWS)
    write_parquet(tmp_path / "tables" / "test2.parquet", ROWS)
    assert sorted(find_tables(tmp_path / "tables")) == [TRAIN, VALIDATION, TEST]


def test_new_texts_are_files_of_a_folder(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f" text of {name}\n")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "Thumbs.db").write_bytes(b"\0")
    found = read_new_texts(tmp_path, FileFormat())
    assert found.column("file") == ["a.txt", "b.txt"]
    assert found.column("text") == ["text of a.txt", "text of b.txt"]
    with pytest.raises(DataError, match=r"in no subfolder: a\.txt, b\.txt; expected"):
        read_table(tmp_path)


def test_a_line_of_a_megabyte_is_one_text(tmp_path):
    rows = [*PAIRS, ("word " * 200_000, "yes")]
    _, splits = load_rows(tmp_path / "1", write_csv(tmp_path / "x.csv", rows, ("text", "label")))
    longest = max(len(row[0]) for split in splits.values() for row in split.texts)
    assert longest == 1_000_000 - 1  # without the last space


def test_folders_of_splits_are_kept_and_validation_is_held_out(tmp_path):
    data = tmp_path / "data"
    write_folder(data / "train", PAIRS)
    write_folder(data / "test", [(f"new {text}", label) for text, label in PAIRS[:6]])
    described, splits = load_rows(tmp_path / "1", data)
    assert described.sizes == {"train": 36, "validation": 4, "test": 6}
    assert {row[0] for row in splits["test"].texts} == {f"new {text}" for text, _ in PAIRS[:6]}
    write_folder(data / "dev", [(f"mid {text}", label) for text, label in PAIRS[:3]])
    described = load(tmp_path / "2", data)
    assert described.sizes == {"train": 40, "validation": 3, "test": 6}
    # What is given takes precedence.
    given = TextsRequest(text="text", target="label", validation=0.2)
    described = load(tmp_path / "3", data, given)
    assert described.sizes == {"train": 32, "validation": 8, "test": 6}


def test_held_out_classes_that_training_lacks_are_counted(tmp_path):
    data = tmp_path / "data"
    write_folder(data / "train", PAIRS)
    write_folder(data / "test", [("one", "no"), ("two", "maybe"), ("three", "maybe")])
    described, splits = load_rows(tmp_path / "1", data)
    assert described.counts["unseen"] == 2
    assert len(splits["test"].texts) == 3
    assert described.classes == ["maybe", "no", "yes"]
    path = write_csv(tmp_path / "x.csv", PAIRS, ("text", "label"))
    assert load(tmp_path / "2", path).counts["unseen"] == 0


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
    path = write_columns(tmp_path / "x.parquet", columns, features)
    described, splits = load_rows(tmp_path / "1", path)
    assert described.classes == ["no", "yes"]
    assert {row[0] for split in splits.values() for row in split.texts} == set(texts)
    plain = write_columns(tmp_path / "plain.parquet", {**columns, "text": texts})
    assert load(tmp_path / "2", plain).classes == ["0", "1"]
    flags = TextsRequest(text="text", target="flag")
    assert load(tmp_path / "3", plain, flags).classes == ["false", "true"]


def test_values_of_json_are_text_and_unused_columns_may_be_nested(tmp_path):
    objects = [
        {"text": f"a {n}", "label": n % 2 == 0, "tags": ["x"], "extra": {"y": n}} for n in range(20)
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, objects)))
    assert load(tmp_path / "1", path).classes == ["false", "true"]
    assert read_table(path).rows[3][2:] == ['["x"]', '{"y": 3}']  # nothing is lost


@pytest.mark.parametrize("missing", [None, float("nan"), -1])
def test_rows_without_a_label_are_left_out_and_counted(tmp_path, missing):
    labels = [n % 2 if missing == -1 else float(n % 2) for n in range(40)]
    labels[6] = missing
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    columns = {"text": [f"text {n}" for n in range(40)], "label": labels}
    path = write_columns(tmp_path / "x.parquet", columns, features)
    dropping = dataclasses.replace(REQUEST, drop_empty=True)
    assert load(tmp_path / "1", path, dropping).counts["empty"] == 1
