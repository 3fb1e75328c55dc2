"""Documents of a corpus: every format, every kind of bad input, splits, tokens."""

import gzip
import hashlib
import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus_files import TEXTS, ignore, prose, write_folder
from longspan.data import document_rows
from longspan.data.corpora import imports, tokenizing
from longspan.data.corpora.imports import CorpusRequest, build_tokens, import_corpus
from longspan.data.sources import documents, text
from longspan.data.sources.documents import PART, CorpusSource, split_parts
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.data.store import Examples
from longspan.errors import DataError, OptionError


def read(path, **options):
    """Return the documents of a path by place, and the report."""
    form = FileFormat(**options)
    report = ReadingReport(skip_bad=form.skip_bad)
    source = CorpusSource(path=str(path))
    return {x.where: "".join(x.parts) for x in source.read(form, report)}, report


def make(cache, path, name="mine", **options):
    """Import a corpus with a small tokenizer; return its description and splits."""
    request = CorpusRequest(paths=(str(path),), **{"vocab_size": 300, **options})
    described = import_corpus(cache, name, request, ignore)
    folder = cache / "corpora" / name
    built = build_tokens(folder, described, cache / "scratch", ignore)
    return described, built, imports.load_corpus_tokenizer(folder, described)


def decoded(built, tokenizer):
    """Return the text of each document by split, without its separator."""
    found = {}
    for split, examples in built.splits.items():
        texts = []
        for number in range(int(examples.labels.max()) + 1):
            rows = np.flatnonzero(examples.labels == number)
            ids = np.concatenate([examples.tokens[row] for row in rows])
            assert ids[-1] == tokenizer.token_id("sep")
            texts.append(tokenizer.decode(ids[:-1]))
        found[split] = texts
    return found


def test_every_document_is_in_one_split_with_its_text(tmp_path):
    described, built, tokenizer = make(tmp_path, write_folder(tmp_path / "files"))
    assert described.sizes == {"train": 22, "validation": 1, "test": 1}
    found = decoded(built, tokenizer)
    assert sorted(x for texts in found.values() for x in texts) == sorted(TEXTS)
    by_hash = sorted(TEXTS, key=lambda x: hashlib.sha256(x.encode()).digest())
    assert [*found["validation"], *found["test"]] == by_hash[:2]


def test_all_formats_give_the_same_documents(tmp_path):
    rows = [{"text": x, "id": n} for n, x in enumerate(TEXTS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=5)
    with pa.output_stream(str(tmp_path / "d.jsonl.zst"), compression="zstd") as file:
        file.write(lines.encode())
    lists = [{"text": x.split("\n"), "id": n} for n, x in enumerate(TEXTS)]
    pq.write_table(pa.Table.from_pylist(lists), tmp_path / "e.parquet")
    for name in ("b.jsonl.gz", "d.jsonl.zst"):
        (tmp_path / name.upper()).write_bytes((tmp_path / name).read_bytes())
    packed = ("b.jsonl.gz", "d.jsonl.zst", "B.JSONL.GZ", "D.JSONL.ZST")
    for name in ("a.jsonl", "c.parquet", "e.parquet", *packed):
        assert list(read(tmp_path / name)[0].values()) == TEXTS, name
    assert len(read(tmp_path / "a.jsonl", limit=3)[0]) == 3


def test_packed_parquet_is_refused_or_counted(tmp_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "c.parquet")
    path = tmp_path / "c.parquet.gz"
    path.write_bytes(gzip.compress((tmp_path / "c.parquet").read_bytes()))
    with pytest.raises(DataError, match="expected plain parquet or Arrow, got a packed file; un"):
        read(path)
    found, report = read(tmp_path, skip_bad=True)
    assert (list(found.values()), report.num_bad) == (TEXTS, 1)


def test_data_sets_are_streamed_by_name_and_split(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.table({"body": TEXTS[:4]}), folder / "train.parquet")
    pq.write_table(pa.table({"body": TEXTS[4:6]}), folder / "test.parquet")
    assert list(read(f"hf:{folder}", text="body")[0].values()) == TEXTS[:4]
    assert list(read(f"hf:{folder}#test", text="body")[0].values()) == TEXTS[4:6]
    with pytest.raises(DataError, match=r"no field 'text', there are body \(--text\)"):
        read(f"hf:{folder}")
    with pytest.raises(DataError, match=r"cannot be read .*; check its name"):
        read(f"hf:{tmp_path / 'missing'}")
    with pytest.raises(OptionError, match="is no data set; write hf:NAME"):
        read("hf:")


def test_line_ends_and_marks_of_files_are_normalized(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert list(read(tmp_path)[0].values()) == ["one\ntwo\nthree\n"]


def test_lines_and_paragraphs_are_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 7)
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\n \t\nthree\nfour\n\n")
    assert read(path, document="line")[0] == {
        f"{path}, line {n}": x for n, x in [(1, "one"), (2, "two"), (5, "three"), (6, "four")]
    }
    assert read(path, document="paragraph")[0] == {
        f"{path}, line 1": "one\ntwo",
        f"{path}, line 5": "three\nfour",
    }


def test_files_in_another_encoding_are_refused_or_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 5)
    (tmp_path / "a.txt").write_text("naïve", encoding="utf-8")
    (tmp_path / "b.txt").write_text("one\ntwo\ncafé\n", encoding="latin-1")
    with pytest.raises(
        DataError, match=r"b\.txt, line 3: not utf-8: .*--encoding utf-8,latin-1.*--skip-bad"
    ):
        read(tmp_path)
    found, report = read(tmp_path, skip_bad=True)
    assert list(found.values()) == ["naïve"]
    assert report.num_bad == 1
    assert "b.txt, line 3" in report.reasons[0]
    found, report = read(tmp_path, encodings=("utf-8", "latin-1"))
    assert list(found.values()) == ["naïve", "one\ntwo\ncafé\n"]
    assert report.encodings == {"utf-8": 1, "latin-1": 1}
    with pytest.raises(OptionError, match="'nonsense' is unknown"):
        read(tmp_path, encodings=("nonsense",))


def test_binary_files_are_refused_or_counted(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.bin").write_bytes(b"one\n\0\1\2")
    with pytest.raises(DataError, match=r"b\.bin, line 2: binary \(a zero byte\)"):
        read(tmp_path)
    found, report = read(tmp_path, skip_bad=True, encodings=("utf-8", "latin-1"))
    assert (list(found.values()), report.num_bad) == (["text"], 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a"', "not JSON"),
        ('["a"]', "not a JSON object"),
        ('{"body": "a"}', r"no field 'text', there are body \(--text\)"),
        ('{"text": 3}', "field 'text' contains int, expected text"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ('{"text": "' + "a" * 200 + '"}', "more than 100 bytes"),
    ],
)
def test_bad_lines_of_jsonl_are_refused_with_their_number_or_counted(
    tmp_path, monkeypatch, line, reason
):
    monkeypatch.setattr(text, "LONGEST", 100)
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "one"}}\n\n{line}\n{{"text": "two"}}\n')
    with pytest.raises(DataError, match=rf"a\.jsonl, line 3: .*{reason}"):
        read(path)
    found, report = read(path, skip_bad=True)
    assert (list(found.values()), report.num_bad) == (["one", "two"], 1)


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_long_lines_of_text_are_refused_with_their_number_or_counted(tmp_path, monkeypatch, unit):
    monkeypatch.setattr(text, "LONGEST", 100)
    monkeypatch.setattr(text, "PIECE", 30)
    path = tmp_path / "a.txt"
    end = "\n" if unit == "line" else "\n\n"
    path.write_text(end.join(["one", "x" * 300, "two", ""]))
    with pytest.raises(DataError, match=rf"line {2 if unit == 'line' else 3}: a {unit} of more"):
        read(path, document=unit)
    found, report = read(path, document=unit, skip_bad=True)
    assert (list(found.values()), report.num_bad) == (["one", "two"], 1)
    assert list(found)[1] == f"{path}, line {3 if unit == 'line' else 5}"


def test_a_line_of_any_length_is_part_of_a_file(tmp_path):
    content = "x" * (3 * PART + 5)
    (tmp_path / "a.txt").write_text(content)
    assert list(read(tmp_path)[0].values()) == [content]


def test_damaged_and_missing_files_are_named(tmp_path):
    packed = gzip.compress(prose(500).encode())
    (tmp_path / "a.txt.gz").write_bytes(packed[:-20])
    with pytest.raises(DataError, match=r"a\.txt\.gz is truncated or damaged"):
        read(tmp_path / "a.txt.gz")
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"b\.parquet is truncated or no parquet file"):
        read(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="missing does not exist"):
        read(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no files"):
        read(tmp_path / "empty")


def test_parts_are_cut_before_white_space_and_join_to_the_text():
    content = prose(60_000)
    parts = list(split_parts(content[n : n + 1000] for n in range(0, len(content), 1000)))
    assert "".join(parts) == content
    assert len(parts) > 2
    assert all(len(part) <= PART for part in parts)
    assert all(
        part[0].isspace() and not before[-1].isspace() for before, part in itertools.pairwise(parts)
    )


@pytest.mark.parametrize("kind", ["byte-level", "bpe", "wordpiece", "unigram"])
def test_tokens_of_long_documents_are_those_of_the_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(documents, "PART", 50)
    _, built, tokenizer = make(tmp_path, write_folder(tmp_path / "files"), kind=kind)
    examples = built.splits["test"]
    (whole,) = tokenizer.encode_texts([next(x for x in TEXTS if hash_of(x) == second_hash())])
    assert np.concatenate(list(examples.tokens)).tolist() == [*whole, tokenizer.token_id("sep")]


def hash_of(content):
    return hashlib.sha256(content.encode()).hexdigest()


def second_hash():
    return sorted(map(hash_of, TEXTS))[1]


def test_long_documents_have_rows_of_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr(document_rows, "ROW", 16)
    monkeypatch.setattr(tokenizing, "BATCH", 100)
    _, built, tokenizer = make(tmp_path, write_folder(tmp_path / "files"))
    lengths = built.splits["train"].tokens.lengths
    is_last = np.append(np.diff(built.splits["train"].labels) != 0, True)
    assert (lengths[~is_last] == 16).all()
    assert is_last.sum() == 22
    found = decoded(built, tokenizer)
    assert sorted(x for texts in found.values() for x in texts) == sorted(TEXTS)


def test_splits_do_not_depend_on_files_or_their_order(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": x}) + "\n" for x in reversed(TEXTS)))
    _, one, tokenizer = make(tmp_path / "1", write_folder(tmp_path / "files"))
    _, two, other = make(tmp_path / "2", path)
    first, second = decoded(one, tokenizer), decoded(two, other)
    assert {x: set(y) for x, y in first.items()} == {x: set(y) for x, y in second.items()}


def test_equal_and_empty_documents_are_counted_once(tmp_path):
    folder = write_folder(tmp_path / "files", [*TEXTS, TEXTS[3], TEXTS[3], "", " \n"])
    described, built, tokenizer = make(tmp_path, folder)
    assert described.counts == {"empty": 2, "unreadable": 0, "repeated": 2, "in_another_split": 0}
    found = decoded(built, tokenizer)
    assert sorted(x for texts in found.values() for x in texts) == sorted(TEXTS)


def test_given_files_are_held_out_and_leave_training(tmp_path):
    folder = write_folder(tmp_path / "files", TEXTS[:10])
    held = write_folder(tmp_path / "held", TEXTS[8:12])
    described, built, tokenizer = make(tmp_path, folder, test=str(held), validation=0.25)
    found = decoded(built, tokenizer)
    assert sorted(found["test"]) == sorted(TEXTS[8:12])
    assert sorted([*found["train"], *found["validation"]]) == sorted(TEXTS[:8])
    assert described.sizes["validation"] == 2
    assert described.counts["in_another_split"] == 2


@pytest.mark.parametrize(
    "names",
    [
        ("train/x.txt", "validation/x.txt", "test/x.txt"),
        ("Train/x.txt", "Valid/x.txt", "TEST/x.txt"),
        ("train.txt", "valid.txt", "test.txt"),
        ("ptb.train.txt.gz", "ptb.dev.txt", "ptb.test.txt"),
        ("data/Train-1.txt", "data/val.txt", "data/test.txt"),
        ("train-00000-of-00001.txt", "validation.txt", "test_3.txt"),
        ("train_*.txt", "validation.txt", "test-0000?-of-00003.txt"),  # several shards
    ],
)
def test_a_folder_keeps_the_splits_that_its_names_say(tmp_path, names):
    """No document of test is trained on because splits are files, or in capitals."""
    folder = tmp_path / "a[b]"
    parts = {"train": TEXTS[:12], "validation": TEXTS[12:18], "test": TEXTS[18:]}
    for name, texts in zip(names, parts.values(), strict=True):
        shards = 3 if set(name) & set("*?") else 1
        for shard in range(shards):
            path = folder / name.replace("*", str(shard)).replace("?", str(shard))
            path.parent.mkdir(parents=True, exist_ok=True)
            content = "\n".join(" ".join(x.split()) for x in texts[shard::shards])
            (gzip.open if path.suffix == ".gz" else open)(path, "wt").write(content)
    form = FileFormat(document="line", limit=4)  # of a split, not of a shard
    described, built, tokenizer = make(tmp_path, folder, form=form)
    assert described.sizes == dict.fromkeys(parts, 4)
    expected = {name: {" ".join(x.split()) for x in texts} for name, texts in parts.items()}
    assert all(expected[name].issuperset(x) for name, x in decoded(built, tokenizer).items())
    described, _, _ = make(tmp_path, f"{tmp_path}/a[[]b]/**/*", name="joined", form=form)
    assert sum(described.sizes.values()) == 4


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        (["notes.txt"], "splits train, test, and also notes.txt"),
        (["train.jsonl"], "several files of train"),
        (["train-00000-of-00002.txt", "train-00001-of-00002.txt"], "several files of train"),
    ],
)
def test_other_files_beside_those_of_splits_are_refused(tmp_path, others, reason):
    for name in ("train.txt", "test.txt", *others):
        (tmp_path / name).write_text(TEXTS[0])
    with pytest.raises(DataError, match=reason):
        make(tmp_path / "cache", tmp_path)


def test_a_split_of_which_a_file_is_missing_is_refused(tmp_path):
    for name in ("train-00000-of-00002.txt", "test.txt"):
        (tmp_path / name).write_text(TEXTS[0])
    with pytest.raises(DataError, match="lacks train-00001-of-00002"):
        make(tmp_path / "cache", tmp_path)


@pytest.mark.parametrize("names", [("train.txt", "b.txt"), ("the-train.txt", "acid-test.txt")])
def test_names_of_one_split_or_of_other_files_say_nothing(tmp_path, names):
    folder = tmp_path / "files"
    folder.mkdir()
    for name, texts in zip(names, (TEXTS[:12], TEXTS[12:]), strict=True):
        (folder / name).write_text("\n".join(" ".join(x.split()) for x in texts))
    described, _, _ = make(tmp_path, folder, form=FileFormat(document="line"))
    assert described.sizes == {"train": 22, "validation": 1, "test": 1}


def test_too_few_documents_name_the_remedy(tmp_path):
    folder = write_folder(tmp_path / "files", TEXTS[:2])
    with pytest.raises(DataError, match=r"2 different documents .* 3 splits; .*--document"):
        make(tmp_path, folder)
    assert not (tmp_path / "corpora").exists()
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "a.txt").write_text("\n")
    with pytest.raises(DataError, match="0 different documents"):
        make(tmp_path, tmp_path / "blank")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": (1.0, 2.0)}, "--weights needs a number above 0 for each of the 1 paths"),
        *(
            ({"weights": (x,)}, "--weights needs a number above 0")
            for x in (0.0, math.nan, math.inf)
        ),
        ({"vocab_size": 100}, "--vocab-size of byte-level must be at least 261"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, reason):
    with pytest.raises(OptionError, match=reason):
        make(tmp_path, write_folder(tmp_path / "files"), **options)
    assert not (tmp_path / "corpora").exists()


def test_a_file_that_changes_after_the_import_is_refused(tmp_path):
    folder = write_folder(tmp_path / "files")
    described, *_ = make(tmp_path, folder)
    import_folder = tmp_path / "corpora" / "mine"
    first = folder / "part-0" / "000.txt"
    for change in (lambda: first.write_text("other"), first.unlink):
        change()
        with pytest.raises(DataError, match="has changed since the corpus was imported"):
            build_tokens(import_folder, described, tmp_path / "scratch", ignore)


def test_a_changed_tokenizer_is_refused(tmp_path):
    described, *_ = make(tmp_path, write_folder(tmp_path / "files"))
    folder = tmp_path / "corpora" / "mine"
    path = folder / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(DataError, match="tokenizer has changed"):
        imports.load_corpus_tokenizer(folder, described)


def test_training_a_tokenizer_reads_no_held_out_document(tmp_path):
    held = write_folder(tmp_path / "held", ["qqqq " * 200, "zzzz " * 200])
    folder = write_folder(tmp_path / "files")
    *_, tokenizer = make(tmp_path, folder, validation=str(held), vocab_size=400)
    assert "the" in "".join(tokenizer.symbols)
    assert not [x for x in tokenizer.symbols if "qq" in x or "zz" in x]


def test_checksums_are_those_of_the_tokens(tmp_path):
    folder = write_folder(tmp_path / "files")
    one, two = (make(tmp_path / str(n), folder)[1] for n in range(2))
    assert isinstance(one.splits["train"], Examples)
    for split, examples in one.splits.items():
        assert examples.checksum() == two.splits[split].checksum()


def test_a_corpus_without_validation_documents_is_refused(tmp_path):
    folder = write_folder(tmp_path / "files")
    (tmp_path / "empty.txt").write_text(" \n")
    held = str(tmp_path / "empty.txt")
    empty = r"no document is left for validation \(left out: 1 empty: .*empty.txt\); choose other"
    with pytest.raises(DataError, match=empty):
        make(tmp_path, folder, validation=held)
    # all of its documents are test documents too
    same = write_folder(tmp_path / "same", TEXTS[:2])
    with pytest.raises(DataError, match="no document is left for validation"):
        make(tmp_path, folder, validation=str(same), test=str(same))
    with pytest.raises(DataError, match="0 different documents cannot fill"):
        make(tmp_path, folder, validation=0.1, test=str(folder))
    assert not (tmp_path / "corpora").exists()


def test_too_few_documents_are_explained_by_what_was_left_out(tmp_path):
    folder = write_folder(tmp_path / "files", ["", TEXTS[0]])
    (folder / "z.txt").write_bytes(b"\xff\xfe")
    found = r"\(left out: 1 empty: .*000.txt; 1 unreadable: .*z.txt, line 1: not utf-8"
    with pytest.raises(DataError, match=f"1 different document cannot fill 3 splits {found}"):
        make(tmp_path, folder, form=FileFormat(skip_bad=True))


def test_every_file_is_a_document_or_counted(tmp_path):
    folder = write_folder(tmp_path / "files", [*TEXTS, TEXTS[0], ""])
    (folder / "binary.gz").write_bytes(gzip.compress(b"\0\1\2"))
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "lines.jsonl").write_text('{"text": "one more"}\n{"text": 3}\n{}\n')
    described, *_ = make(tmp_path, folder, form=FileFormat(skip_bad=True))
    assert described.counts["unreadable"] == 4
    assert sum(described.sizes.values()) + sum(described.counts.values()) == 26 + 2 + 3
    places = [reason.partition(":")[0].rpartition("/")[2] for reason in described.reasons]
    assert places == [
        *("binary.gz, line 1", "latin.txt, line 1", "lines.jsonl, line 2", "lines.jsonl, line 3")
    ]


def test_a_line_of_a_hundred_megabytes_is_refused_or_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "one"}\n{"text": "')
        for _ in range(100):
            file.write(b"a" * 1_000_000)
        file.write(b'"}\n{"text": "two"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: more than 67,108,864 bytes"):
        read(path)
    found, report = read(path, skip_bad=True)
    assert (list(found.values()), report.num_bad) == (["one", "two"], 1)
