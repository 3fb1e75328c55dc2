"""Files of texts that an import refuses: messages name file, place and remedy."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.imports.texts import TextsRequest
from longspan.data.sources.text import FileFormat
from longspan.errors import DataError, OptionError
from own_files import check_refused

ROWS = [(f"text number {n}", ("no", "yes")[n % 2]) for n in range(40)]
CLASSES = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
GOOD = '{"text": "a", "label": "b"}\n'
OBJECT = GOOD.strip()


def table(rows=ROWS, header=("text", "label"), delimiter=","):
    return "".join(delimiter.join(map(str, row)) + "\n" for row in (header, *rows))


def lines(rows=ROWS):
    return "\n\n".join(json.dumps({"text": text, "label": label}) for text, label in rows)


def changed(*changes):
    """Return the rows with others in some places."""
    rows = [*ROWS]
    for place, row in changes:
        rows[place] = row
    return rows


def parquet(columns, names=None, features=None):
    made = pa.table(columns, names)
    if features:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        made = made.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink)
    return sink.getvalue().to_pybytes()


def labeled(label, kind=float):
    """Return parquet columns whose seventh label is another one."""
    labels = [kind(n % 2) for n in range(40)]
    labels[6] = label
    return {"text": [f"text {n}" for n in range(40)], "label": labels}


def texts(files, folder="folder"):
    """Return the files of a folder of classes, some of them others; None: not there."""
    made = {f"{folder}/{label}/{n}.txt": text for n, (text, label) in enumerate(ROWS)}
    made |= {f"{folder}/{name}": content for name, content in files.items()}
    return {name: content for name, content in made.items() if content is not None}


def splits(*names):
    return {
        f"folder/{split}/{label}/{n}.txt": text
        for split in names
        for n, (text, label) in enumerate(ROWS[:4])
    }


NUMBERS = [(text, n) for n, (text, _) in enumerate(ROWS)]
EMPTY = [(x, ("  ", "yes")) for x in (2, 9, 11, 20, 21, 22, 30)]
WIDE = b'"' + b"a" * 9_000 + b'",x\n'  # longer than what is decoded at once
LATIN = "é\n".encode("latin-1")
# Content of the file, or of the files; parts of the message; options of the request.
CSV = {
    "another column": (
        table(header=("body", "stars")),
        "no column 'text'; its columns are body, stars",
    ),
    "another delimiter": (table(delimiter=";"), "no column 'text'", "--delimiter ';'"),
    "two columns": (
        table([(*x, "") for x in ROWS], ("text", "label", "text")),
        "several columns 'text'",
    ),
    "one class": (table([(x, "yes") for x, _ in ROWS]), "one class ('yes'); expected two or more"),
    "identifiers": (table(NUMBERS), "40 different values in 40 rows", "--target"),
    "empty": (
        table(changed(*EMPTY, (35, ("a text without a class", "")))),
        "empty text or target in line 4, line 11, line 13, line 22, line 23 and 3 more",
        "--drop-empty",
    ),
    "latin-1": (table([("café", "a")]).encode("latin-1"), "not utf-8 text", "--encoding latin-1"),
    "utf-16": (table([("café", "a")]).encode("utf-16"), "not utf-8 text", "--encoding utf-16"),
    "encoding of line 5": (b"text,label\n" + WIDE * 3 + LATIN, "x.csv, line 5, is not utf-8 text"),
    "unknown encoding": (table(), "utf-9", {"form": FileFormat(encodings=("utf-9",))}),
    "long delimiter": (table(), "'ab'", {"form": FileFormat(delimiter="ab")}),
    "few texts": (
        table([("one", "a"), ("two", "b"), ("one", "a")]),
        "2 different texts cannot fill 3 splits (train, validation, test); add texts",
    ),
    "more fields": (
        table([*ROWS[:3], ("too", "many", "fields")]),
        "line 5: 3 fields, but the header has 2",
    ),
    "quotes": ('text,label\n"one" two,a\n', "x.csv, line 2", "quotes"),
    "no rows": ("text,label\n", "no rows; expected a header"),
    "lines in quotes": (
        'text,label\n"one\ntwo",x\n\nthree,\nfour,y\n',
        "empty text or target in line 5;",
    ),
    "zero byte": (
        'text,label\n"one\ntwo",x\n\nthr\0ee,x\nfour,y\n',
        "line 5 has a zero byte",
        "binary",
    ),
    **{
        f"unit {unit}": (
            table([(x, f"{n % 9}e{unit}") for x, n in NUMBERS]),
            "beyond floating point; write them in another unit",
            {"kind": "number"},
        )
        for unit in (307, 200, -200)
    },
    "one number": (table([(x, 7) for x, _ in ROWS]), "one value (7)", {"kind": "number"}),
    **{
        f"number {value}": (
            table(changed(*enumerate(NUMBERS), (4, ("a", f'"{value}"')))),
            f"got {value!r} (x.csv line 6)",
            "must contain finite numbers",
            {"kind": "number"},
        )
        for value in ("many", "nan", "inf", "1,5", "1_5")
    },
}
JSON = {
    "no JSON": (GOOD * 2 + "{oops}", "x.jsonl, line 3:", "JSON object in each line"),
    "list": (GOOD + "[1, 2]", "x.jsonl, line 2: not a JSON object but a list"),
    "text": (GOOD + '"text"', "x.jsonl, line 2: not a JSON object but a str"),
    "surrogate": (GOOD + '{"text": "\\ud800", "label": "b"}', "x.jsonl, line 2:", "surrogate"),
    "null": (
        GOOD + '{"text": null, "label": "b"}',
        "empty text or target in line 2",
        "--drop-empty",
    ),
    "NaN": (GOOD + '{"text": "a", "label": NaN}', "empty text or target in line 2"),
    "missing key": ("\n" + GOOD + '{"text": "c"}', "empty text or target in line 3"),
    "depth": (GOOD + "[" * 100_000, "x.jsonl, line 2:"),
    "two keys": (GOOD + '{"text": "a", "label": "b", "label": "c"}', "line 2: key 'label' is"),
    "empty file": ("", "has no rows; expected a JSON object in each line"),
    "empty array": ("[]", "has no rows; expected a JSON object in each line, or an array"),
    "another key": ('{"body": "a"}', "has no column 'text'; its columns are body"),
    "nested": ('{"text": "a", "label": ["x"]}', "column 'label' has a list or an object in line 1"),
    "encoding": (
        lines().encode() + '{"text": "café"}'.encode("latin-1"),
        "x.jsonl, line 79, is not utf-8",
        "--encoding latin-1",
    ),
    "encoding of line 5": (GOOD.encode() * 4 + LATIN, "x.jsonl, line 5, is not utf-8 text"),
    "array without comma": (
        f"[{OBJECT},\n{OBJECT}\n{OBJECT}]",
        "line 3: the array has no end; expected a comma or ]",
    ),
    "array without end": (f"[{OBJECT},\n{OBJECT}", "line 2: the array has no end"),
    "array that goes on": (f"[{OBJECT},\n{OBJECT},", "line 2: the array has no end"),
    "array with a space": (f"[{OBJECT},\n{OBJECT}, ", "got the end of the file"),
    "bracket": ("[", "line 1: the array has no end"),
    "text after an array": (f"[{OBJECT}]\n{OBJECT}", "has text after its array"),
    "number in an array": (f"[{OBJECT},\n1]", "line 2: not a JSON object but a int"),
    "rows in a field": (
        f'{{"data": [{OBJECT}]}}',
        "one object whose field 'data' has a list of objects",
    ),
}
PARQUET = {
    "no parquet": (b"no parquet", "x.parquet is truncated or no parquet file"),
    "null": (parquet(labeled(None), features=CLASSES), "empty text or target in row 7"),
    "NaN": (parquet(labeled(float("nan")), features=CLASSES), "empty text or target in row 7"),
    "missing class": (parquet(labeled(-1, int), features=CLASSES), "empty text or target in row 7"),
    "bytes": (
        parquet({"text": [b"a", b"b", b"\xff"], "label": ["x", "y", "x"]}),
        "row 3: column 'text' has bytes that are not UTF-8",
    ),
    "two columns": (
        parquet([["a"], ["b"], ["x"]], ["text", "text", "label"]),
        "several columns 'text'; rename all but one",
    ),
    "nested": (
        parquet({"text": ["a"], "label": [["x"]]}),
        "column 'label' has a list or an object in row 1",
    ),
}
FOLDER = {
    "encoding": (texts({"no/99.txt": LATIN}), "99.txt, line 1, is not utf-8", "--encoding"),
    "binary": (texts({"no/5.txt": b"\0\1binary"}), "5.txt has a zero byte: the file is binary"),
    "second line": (
        texts({"no/5.txt": b"one\ncaf\xe9\n"}),
        "5.txt, line 2, is not utf-8 text; pass the encoding",
    ),
    "empty text": (texts({"no/5.txt": " \n"}), "empty text or target in no/5.txt"),
    "deep": (texts({"no/deep/x.txt": "a"}), "deep is a folder"),
    "file beside": (
        texts({"README": "about"}),
        "folder has files in no subfolder: README; expected one",
    ),
    "no classes": ({"folder/.hidden": ""}, "has no rows; expected a subfolder for each class"),
    "split and class": (
        splits("train", "test", "unsup"),
        "has the splits test, train, and also unsup",
    ),
    "two of a split": (
        splits("train", "test", "val", "dev"),
        "two folders of one split, dev and val",
    ),
}
OTHER = {
    "x.xlsx": ({"x.xlsx": ""}, ".csv", ".parquet"),
    "absent.csv": ({"x.csv": table()}, "absent.csv does not exist"),
}
SETS = {"x.csv": CSV, "x.jsonl": JSON, "x.parquet": PARQUET, "folder": FOLDER}
CASES = {
    **{
        f"{source} {name}": (source, x)
        for source, found in SETS.items()
        for name, x in found.items()
    },
    **{source: (source, x) for source, x in OTHER.items()},
}
OF_OPTIONS = ("unknown encoding", "long delimiter", "x.xlsx")


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_with_its_place_and_the_remedy(tmp_path, case):
    source, (content, *parts) = CASES[case]
    options = parts.pop() if isinstance(parts[-1], dict) else {}
    for name, one in (content if isinstance(content, dict) else {source: content}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one if isinstance(one, bytes) else one.encode())
    request = TextsRequest(**{"text": "text", "target": "label", **options})
    error = OptionError if case.endswith(OF_OPTIONS) else DataError
    check_refused(tmp_path, tmp_path / source, *parts, request=request, error=error)


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.csv.gz"])
def test_damaged_packed_files_and_their_encoding_are_named(tmp_path, name):
    content = (table() if ".csv" in name else lines()).encode()
    request = TextsRequest(text="text", target="label")
    (tmp_path / name).write_bytes(gzip.compress(content)[:-20])
    check_refused(tmp_path, tmp_path / name, "is truncated or damaged", request=request)
    (tmp_path / name).write_bytes(gzip.compress(content + b"\n" + LATIN))
    part = f"line {content.count(10) + 2}, is not utf-8 text"
    check_refused(tmp_path, tmp_path / name, part, request=request)


def test_held_out_files_that_leave_a_split_empty_are_refused(tmp_path):
    for name, rows in (("x", ROWS), ("t", ROWS[:5]), ("rest", [(f"{x}!", "yes") for x, _ in ROWS])):
        (tmp_path / f"{name}.csv").write_text(table(rows))
    held = tmp_path / "t.csv"
    both = TextsRequest(text="text", target="label", validation=held, test=held)
    check_refused(tmp_path, tmp_path / "x.csv", "no row is left for validation", request=both)
    test = TextsRequest(text="text", target="label", test=tmp_path / "x.csv")
    part = "all training rows have one target"
    check_refused(tmp_path, tmp_path / "rest.csv", part, request=test)


def test_wrong_numbers_are_named_in_their_file(tmp_path):
    """Rows that are left out, and other files, do not move the number of a line."""
    (tmp_path / "x.csv").write_text(table([("", 1), *NUMBERS]))
    (tmp_path / "test.csv").write_text(table([("a", 1), ("b", "many")]))
    request = TextsRequest(
        text="text", target="label", kind="number", test=tmp_path / "test.csv", drop_empty=True
    )
    check_refused(tmp_path, tmp_path / "x.csv", "got 'many' (test.csv line 3)", request=request)
