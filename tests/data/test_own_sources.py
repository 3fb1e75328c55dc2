"""Sources of own files: saved data sets, the hub, patterns, and values as they stand."""

import csv
import json

import pytest

from longspan.data.imports.texts import TextsRequest, import_texts, load_splits
from longspan.data.sources.documents import CorpusSource
from longspan.data.sources.table import read_table
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.errors import DataError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("offline")
CLASSES = ["no", "yes"]
ROWS = [(f"text number {n}", n % 2) for n in range(40)]
REQUEST = TextsRequest(text="text", target="label")


def make_set(rows=ROWS):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=CLASSES)}
    )
    texts, labels = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)


def check_rows(cache, source, request=REQUEST, rows=ROWS):
    """Import a source and check that every row has its text and the name of its class."""
    described = import_texts(cache, "mine", source, request)
    splits = load_splits(cache / "own" / "mine", described)
    found = [
        (text, described.classes[label])
        for split in splits.values()
        for (text,), label in zip(split.texts, split.targets, strict=True)
    ]
    assert sorted(found) == sorted((text, CLASSES[label]) for text, label in rows)
    return described


def test_saved_data_sets_have_their_rows_and_splits(tmp_path):
    make_set().save_to_disk(tmp_path / "one", num_shards=3)
    check_rows(tmp_path / "1", tmp_path / "one")
    both = datasets.DatasetDict({"train": make_set(ROWS[:30]), "test": make_set(ROWS[30:])})
    both.save_to_disk(tmp_path / "both")
    assert check_rows(tmp_path / "2", tmp_path / "both").sizes["test"] == 10
    source = CorpusSource(path=str(tmp_path / "one"))
    texts = ["".join(x.parts) for x in source.read(FileFormat(), ReadingReport())]
    assert sorted(texts) == sorted(text for text, _ in ROWS)
    (tmp_path / "one" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(
        DataError, match=r"lacks data-00001-of-00003\.arrow, 1 of 3 files of the split"
    ):
        import_texts(tmp_path / "3", "mine", tmp_path / "one", REQUEST)


def test_damaged_arrow_files_are_named(tmp_path):
    (tmp_path / "x.arrow").write_bytes(b"ARROW1 nothing")
    with pytest.raises(DataError, match=r"x\.arrow is truncated"):
        read_table(tmp_path / "x.arrow")


def test_data_sets_of_the_hub_have_their_rows_and_splits(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for name, rows in (("train", ROWS[:30]), ("test", ROWS[30:])):
        make_set(rows).to_parquet(folder / f"{name}-00000-of-00001.parquet")
    described = check_rows(tmp_path / "1", f"hf:{folder}")
    assert described.sizes["test"] == 10
    assert described.shares == {"validation": 0.1}
    assert check_rows(tmp_path / "2", f"hf:{folder}#train", rows=ROWS[:30]).sizes["test"] == 3
    given = TextsRequest(text="text", target="label", test=f"hf:{folder}#test")
    train = folder / "train-00000-of-00001.parquet"
    assert check_rows(tmp_path / "3", train, given).rows_sha256 == described.rows_sha256
    with pytest.raises(DataError, match=r"hf:/none cannot be read .*; check its name"):
        read_table("hf:/none")


@pytest.mark.parametrize("pattern", ["part-?.jsonl", "*.jsonl", "**/part-*.jsonl"])
def test_files_of_a_pattern_are_one_table_and_one_corpus(tmp_path, pattern):
    for n in range(3):
        lines = [json.dumps({"text": x, "label": CLASSES[y]}) for x, y in ROWS[n::3]]
        (tmp_path / f"part-{n}.jsonl").write_text("\n".join(lines))
    assert len(check_rows(tmp_path / "cache", tmp_path / pattern).files) == 3
    source = CorpusSource(path=str(tmp_path / pattern))
    documents = list(source.read(FileFormat(), ReadingReport()))
    assert len(documents) == 40
    with pytest.raises(DataError, match=r"other-\*\.csv does not exist"):
        list(CorpusSource(path=str(tmp_path / "other-*.csv")).read(FileFormat(), ReadingReport()))


def test_documents_of_tables_are_their_text_column(tmp_path):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *((n, f"line\n{n}") for n in range(3))])
    (tmp_path / "b.json").write_text(json.dumps([{"text": "one"}, {"text": ["two", "three"]}]))
    found = CorpusSource(path=str(tmp_path)).read(FileFormat(), ReadingReport())
    expected = ["line\n0", "line\n1", "line\n2", "one", "two\nthree"]
    assert ["".join(x.parts) for x in found] == expected


def test_files_of_the_system_are_no_documents(tmp_path):
    for name in (".hidden", "Thumbs.db", "__MACOSX/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0")
    (tmp_path / "a.txt").write_text("one")
    found = CorpusSource(path=str(tmp_path)).read(FileFormat(), ReadingReport())
    assert ["".join(x.parts) for x in found] == ["one"]


# Values of files as they stand, where the `datasets` library gives other ones or none.
KEPT = {
    "leading zeros": ("x.csv", "text,label\na,007\nb,1\n", ["007", "1"]),
    "missing by name": ("x.csv", "text,label\na,None\nb,NA\n", ["None", "NA"]),
    "integers and floats": ("x.jsonl", '{"label": 1}\n{"label": 1.5}\n', ["1", "1.5"]),
    "dates": ("x.jsonl", '{"label": "2020-01-01"}\n{"label": "2020-01-02"}\n', ["2020-01-01"]),
    "large integers": ("x.jsonl", '{"label": 123456789012345678901}\n', ["123456789012345678901"]),
}
# Malformed files that the library reads without a word.
REFUSED = {
    "short row": ("x.csv", "text,label\na,1\nb\nc,1\n", "line 3: 1 field, but the header has 2"),
    "long rows": ("x.csv", "text,label\nx,a,1\ny,b,1\n", "line 2: 3 fields, but the header has 2"),
    "quotes": ("x.csv", 'text,label\n"a"b,1\nc,1\n', "double the quotes"),
    "zero byte": ("x.csv", "text,label\na\0b,1\nc,1\n", "has a zero byte"),
    "two columns of a name": ("x.csv", "text,label,label\na,1,2\n", "several columns 'label'"),
}


def load_by_library(path):
    kind = "csv" if path.suffix == ".csv" else "json"
    found = datasets.load_dataset(kind, data_files=str(path), split="train")
    return [row["label"] for row in found]


@pytest.mark.parametrize("case", KEPT)
def test_values_are_kept_that_the_library_changes(tmp_path, case):
    name, content, expected = KEPT[case]
    (tmp_path / name).write_text(content)
    assert read_table(tmp_path / name).column("label")[: len(expected)] == expected
    assert load_by_library(tmp_path / name)[: len(expected)] != expected


@pytest.mark.parametrize("case", REFUSED)
def test_files_are_refused_that_the_library_reads(tmp_path, case):
    name, content, message = REFUSED[case]
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / name).column("label")
    load_by_library(tmp_path / name)
