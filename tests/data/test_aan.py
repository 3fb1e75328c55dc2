"""Both forms of AAN give the same pairs; repeated and shared pairs are counted, not dropped."""

import itertools
import shutil
import tarfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aan_files import PAIRS, PAPERS, SPLITS, write_by_id, write_release
from longspan.errors import DataError
from longspan.tasks.lra import aan
from real_data import real

FORMS = {"by id": write_by_id, "release": write_release}


pytestmark = pytest.mark.usefixtures("nowhere")


def truth(pairs=PAIRS, papers=PAPERS):
    return [
        (split, label, (a, b), (papers[a].encode(), papers[b].encode()))
        for split, rows in pairs.items()
        for label, a, b in rows
    ]


def collected(pairs, scratch, papers=PAPERS):
    scratch.mkdir(exist_ok=True)
    return aan.collect((aan.Pair(*row) for row in truth(pairs, papers)), scratch, lambda done: None)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pairs(tmp_path, form):
    source = aan.find(FORMS[form](tmp_path / "d"))
    assert sorted(aan.read(source)) == sorted(truth())


@pytest.mark.parametrize("below", ["", "aan"])
def test_pairs_by_id_are_found(tmp_path, monkeypatch, below):
    folder = write_by_id(tmp_path / below)
    assert aan.find(tmp_path).path == folder
    monkeypatch.setenv("LONGSPAN_TEST_DATA", str(tmp_path))
    assert aan.find(None).path == folder
    monkeypatch.setenv("LONGSPAN_DATA", str(write_by_id(tmp_path / "other")))
    found = aan.find(None)
    assert (found.form, found.path) == (aan.BY_ID, tmp_path / "other")


def test_form_with_more_pairs_is_read_and_the_release_at_a_tie(tmp_path):
    fewer = {split: rows[:2] for split, rows in PAIRS.items()}
    both = write_release(write_by_id(tmp_path / "tie"))
    assert aan.find(both).form == "release"
    assert aan.find(write_release(write_by_id(tmp_path / "a"), fewer)).form == aan.BY_ID
    assert aan.find(write_release(write_by_id(tmp_path / "b", fewer))).form == "release"


def test_archive_counts_as_the_whole_release(tmp_path):
    fewer = write_release(tmp_path / "r", {split: rows[:2] for split, rows in PAIRS.items()})
    place = write_by_id(tmp_path / "d")
    with tarfile.open(place / "lra_release.gz", "w:gz") as archive:
        archive.add(fewer, "lra_release/lra_release/tsv_data")
    source = aan.find(place)
    assert source.form == "release"
    assert len(list(aan.read(source))) == 6


def test_labels_are_read_as_numbers(tmp_path):
    pairs = {**PAIRS, "train": [("0.0", "P00", "P01"), ("1.0", "P01", "P02"), ("1", "P00", "P02")]}
    found = [p.label for p in aan.read(aan.find(write_by_id(tmp_path, pairs)))]
    assert found[:3] == [0, 1, 1]


@pytest.mark.parametrize("form", FORMS)
def test_texts_are_truncated_to_their_first_characters(tmp_path, form):
    papers = {**PAPERS, "P00": "é" * 12_000, "P01": "猫" * 10_000}
    source = aan.find(FORMS[form](tmp_path, papers=papers))
    longest = {i: text for p in aan.read(source) for i, text in zip(p.ids, p.texts, strict=True)}
    assert longest["P00"].decode() == "é" * 5_000
    # 3,333 characters of three bytes; the cut would split the next one.
    assert longest["P01"].decode() == "猫" * 3_333
    assert longest["P11"].decode() == PAPERS["P11"]


def test_origin_identifies_a_copy_independently_of_its_folder(tmp_path):
    one, same = (aan.find(write_by_id(tmp_path / name)).origin for name in "ab")
    other = aan.find(write_by_id(tmp_path / "c", papers={**PAPERS, "P03": "short"})).origin
    assert one == same != other
    sums = aan.find(tmp_path / "a").checksums()
    assert set(sums) == {"papers.parquet", *(f"pairs.{name}.tsv" for name in SPLITS.values())}


def test_pairs_by_id_are_described_as_not_published(tmp_path):
    source = aan.find(write_by_id(tmp_path))
    words = aan.describe(source, {"train": 8, "validation": 4, "test": 2})
    assert words == (
        "AAN, pairs by id (8 train, 4 validation, 2 test pairs; not those of Long Range Arena)"
    )


def test_each_text_is_stored_once_and_pairs_refer_to_it(tmp_path):
    made = collected(PAIRS, tmp_path)
    assert len(made.texts) == 12
    for split, rows in PAIRS.items():
        pairs = made.splits[split]
        assert pairs.labels.tolist() == [label for label, _, _ in rows]
        read = [
            [made.texts[row].tobytes().decode() for row in line] for line in pairs.texts.tolist()
        ]
        assert read == [[PAPERS[a], PAPERS[b]] for _, a, b in rows]
        kept = pairs.select(np.array([1]))
        assert kept.texts.tolist() == pairs.texts[[1]].tolist()
        assert kept.labels.tolist() == pairs.labels[[1]].tolist()


def test_repeated_and_shared_pairs_are_counted(tmp_path):
    """One training pair is also a test pair, reversed; another one is repeated in train."""
    pairs = {
        "train": [(0, "P00", "P01"), (1, "P02", "P03"), (1, "P03", "P02")],
        "validation": [(0, "P04", "P05"), (1, "P05", "P06")],
        "test": [(1, "P01", "P00"), (0, "P06", "P07")],
    }
    facts = collected(pairs, tmp_path).facts
    assert facts == {
        "labels": {"train": [1, 2], "validation": [1, 1], "test": [1, 1]},
        "papers": 8,
        "papers_with_several_texts": 0,
        "repeated_pairs": {"train": 1, "validation": 0, "test": 0},
        "shared": {
            "train and validation": {"papers": 0, "pairs": 0},
            "train and test": {"papers": 2, "pairs": 1},
            "validation and test": {"papers": 1, "pairs": 0},
        },
    }


def test_id_with_two_texts_is_counted(tmp_path):
    rows = [aan.Pair(*row) for row in truth()]
    rows[3] = rows[3]._replace(texts=(b"another", rows[3].texts[1]))
    made = aan.collect(rows, tmp_path, lambda done: None)
    assert made.facts["papers_with_several_texts"] == 1
    assert made.facts["papers"] == 12
    assert len(made.texts) == 13


def test_progress_is_reported_every_thousand_pairs(tmp_path):
    reported = []
    rows = [aan.Pair(*row) for row in truth()] * 200
    aan.collect(rows, tmp_path, reported.append)
    assert reported == [1000, 2000]


@pytest.mark.parametrize("split", PAIRS)
def test_split_with_one_label_is_rejected(tmp_path, split):
    ones = [(1, a, b) for _, a, b in PAIRS[split]]
    with pytest.raises(DataError, match=f"AAN: {split} has {len(ones)} pairs, expected some"):
        collected({**PAIRS, split: ones}, tmp_path / "a")
    with pytest.raises(DataError, match=f"AAN: {split} has 0 pairs"):
        collected({**PAIRS, split: []}, tmp_path / "b")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"is not here .* or a folder with papers\.parquet"):
        aan.find(tmp_path)
    (write_by_id(tmp_path) / "pairs.eval.tsv").unlink()
    with pytest.raises(DataError, match=r"lacks pairs\.eval\.tsv; expected pairs of all splits"):
        aan.find(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1\tP00", r"pairs\.train\.tsv: line 3 has 2 columns, expected 3: label, id, id"),
        ("", "line 3 has 1 columns"),
        ("1\tP00\tP01\ttext", "line 3 has 4 columns"),
        ("2\tP00\tP01", "line 3: label b'2'; expected 0 or 1"),
        ("-1\tP00\tP01", "line 3: label b'-1'"),
        ("0.5\tP00\tP01", r"line 3: label b'0\.5'"),
        ("P00\t1\tP01", "line 3: label b'P00'"),
        ("1\tP00\tZ99", r"line 3 names paper 'Z99', which papers\.parquet does not contain"),
        ("1\t\tP01", "line 3 names paper '', which"),
        ("1\tP00\t", "line 3 names paper '', which"),
        ("1\tP\xff0\tP01", "line 3 names paper"),
    ],
)
def test_malformed_line_is_named(tmp_path, line, reason):
    path = write_by_id(tmp_path) / "pairs.train.tsv"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line.encode("latin-1"), *lines[2:]]))
    with pytest.raises(DataError, match=reason):
        list(aan.read(aan.find(tmp_path)))


def test_empty_text_in_the_release_is_rejected(tmp_path):
    source = aan.find(write_release(tmp_path, papers={**PAPERS, "P10": ""}))
    with pytest.raises(DataError, match=rf"{tmp_path}: pair P09, P10 has an empty text"):
        list(aan.read(source))


def papers_table(ids=None, texts=None, **columns):
    table = {"id": ids or list(PAPERS), "text": texts or list(PAPERS.values()), **columns}
    return pa.table({name: values for name, values in table.items() if values is not None})


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (papers_table().drop(["text"]), "row 0 has no field 'text'; its fields are id"),
        (
            papers_table().rename_columns(["name", "text"]),
            "no field 'id'; its fields are name, text",
        ),
        (papers_table(ids=list(range(12))), "field 'id' must be of type str, got int"),
        (papers_table(texts=[b"x"] * 12), "field 'text' must be of type str, got bytes"),
        (papers_table(ids=["P00", "P00"], texts=["a", "b"]), "row 1 has paper 'P00' twice"),
        (papers_table(ids=["P00", "P01"], texts=["a", ""]), "row 1 has no id or no text"),
        (papers_table(ids=["P00", "P01"], texts=["a", None]), "row 1: field 'text' must be"),
        (papers_table(ids=[None, "P01"], texts=["a", "b"]), "row 0: field 'id' must be"),
    ],
)
def test_malformed_papers_are_named(tmp_path, table, reason):
    path = write_by_id(tmp_path) / "papers.parquet"
    pq.write_table(table, path)
    with pytest.raises(DataError, match=rf"papers\.parquet.*{reason}"):
        list(aan.read(aan.find(tmp_path)))


def test_text_that_is_not_utf8_is_rejected(tmp_path):
    raw = pa.array([b"good", b"b\xff"], pa.binary()).view(pa.string())
    path = write_by_id(tmp_path) / "papers.parquet"
    pq.write_table(pa.table({"id": ["P00", "P01"], "text": raw}), path)
    with pytest.raises(DataError, match=r"papers\.parquet"):
        list(aan.read(aan.find(tmp_path)))


def test_real_pairs_by_id_have_the_expected_counts(tmp_path):
    """Compare with counts in plain Python."""
    folder = real("aan", "papers.parquet")
    made = aan.collect(aan.read(aan._find_pairs_by_id(folder)), tmp_path, lambda done: None)
    rows = {
        split: [
            line.split("\t") for line in (folder / f"pairs.{name}.tsv").read_text().splitlines()
        ]
        for split, name in SPLITS.items()
    }
    facts = made.facts
    assert facts["papers"] == 1_667
    assert facts["labels"] == {s: [len(r) // 2] * 2 for s, r in rows.items()}
    assert facts["labels"] == {"train": [8390] * 2, "validation": [1106] * 2, "test": [945] * 2}
    for a, b in itertools.combinations(rows, 2):
        papers = [{paper for row in rows[s] for paper in row[1:]} for s in (a, b)]
        pairs = [{frozenset(row[1:]) for row in rows[s]} for s in (a, b)]
        assert facts["shared"][f"{a} and {b}"] == {
            "papers": len(papers[0] & papers[1]),
            "pairs": len(pairs[0] & pairs[1]),
        }
    repeated = {s: Counter(frozenset(row[1:]) for row in r) for s, r in rows.items()}
    assert facts["repeated_pairs"] == {s: c.total() - len(c) for s, c in repeated.items()}
    assert len(made.texts) == facts["papers"]


def test_real_forms_agree(tmp_path):
    """The files in the release's form have some pairs by id, with titles before the texts."""
    folder = real("aan", "papers.parquet")
    by_id = {(pair.split, pair.ids): pair for pair in aan.read(aan._find_pairs_by_id(folder))}
    for path in folder.glob("new_aan_pairs.*.tsv.gz"):
        shutil.copy(path, tmp_path)
    read = list(aan.read(aan.find(tmp_path)))
    assert Counter(pair.split for pair in read) == {"train": 200, "validation": 60, "test": 60}
    for pair in read:
        same = by_id[pair.split, pair.ids]
        assert pair.label == same.label
        for text, bare in zip(pair.texts, same.texts, strict=True):
            assert " ".join(bare.decode().split())[:3000] in text.decode()
