"""Imported corpora of left-to-right language modeling: tokens, splits, vocabularies, refusals."""

import io
import tarfile

import numpy as np
import pytest
import torch

from corpus_files import TEXTS, ignore, make_task, prose, write_folder
from longspan.data.corpora import tokenizing
from longspan.data.corpora.imports import CorpusRequest, import_corpus
from longspan.errors import DataError, OptionError
from longspan.tasks import TASKS, CorpusStreamTask, imported_names, register_imported
from real_data import real
from text_sources import documents_of, write_books

VOCABULARIES = {
    "bytes": {},
    "characters": {"vocabulary": "characters"},
    "byte-level": {"vocabulary": "tokenizer"},
    "bpe": {"vocabulary": "tokenizer", "kind": "bpe"},
}
MIXED = [*TEXTS, *(f"number {n}: naïve 猫 😀\n\n{prose(30, n)}" for n in range(6))]


@pytest.fixture(autouse=True)
def forget(tmp_path):
    yield
    register_imported(tmp_path / "none")


def open_task(tmp_path, *paths, length=16, **options):
    cls = make_task(tmp_path / "cache", *paths, objective="next", **options)
    task = cls(cls.Options(length=length))
    task.open(tmp_path / "cache")
    return task


@pytest.mark.parametrize("name", VOCABULARIES)
def test_stored_tokens_are_those_of_the_texts(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tokenizing, "BATCH", 100)
    task = open_task(tmp_path, write_folder(tmp_path / "files", MIXED), **VOCABULARIES[name])
    assert isinstance(task, CorpusStreamTask)
    texts = []
    for split, count in task.description.sizes.items():
        found = documents_of(task.dataset.splits[split])
        assert len(found) == count == task.facts["documents"][split]
        texts += [task.decode(ids) for ids in found]
        assert all(int(ids.max()) < task.vocab_size for ids in found)
    expected = MIXED if name != "bpe" else [" ".join(text.split()) for text in MIXED]
    shown = texts if name != "bpe" else [" ".join(text.split()) for text in texts]
    if name == "bpe":  # held-out characters may be unknown to a tokenizer of the training split
        assert len(set(shown) & set(expected)) >= len(expected) - 3
    else:
        assert sorted(shown) == sorted(expected)


def test_ids_of_bytes_are_the_bytes_plus_one(tmp_path):
    task = open_task(tmp_path, write_folder(tmp_path / "files", MIXED))
    stored = {
        (ids.astype(np.int64) - 1).astype(np.uint8).tobytes()
        for split in ("train", "validation", "test")
        for ids in documents_of(task.dataset.splits[split])
    }
    assert stored == {text.encode() for text in MIXED}
    assert task.dataset.splits["train"].tokens.values.dtype == np.uint8


@pytest.mark.parametrize("name", VOCABULARIES)
def test_metrics_divide_by_the_bytes_behind_the_first_token(tmp_path, name):
    task = open_task(tmp_path, write_folder(tmp_path / "files", MIXED), **VOCABULARIES[name])
    names = [metric.name for metric in task.metrics]
    further = {"bytes": [], "characters": ["bits_per_character"]}
    assert names == ["bits_per_byte", *further.get(name, ["perplexity"])]
    expected = {"tokens": 0, "bytes": 0, "characters": 0}
    for ids in documents_of(task.dataset.splits["test"]):
        text, first = task.decode(ids), task.decode(ids[:1])
        expected["tokens"] += len(ids) - 1
        expected["bytes"] += len(text.encode()) - len(first.encode())
        expected["characters"] += len(text) - len(first)
    sums = dict.fromkeys(names, 0)
    for batch in task.batches("test", batch_size=3):
        logits = torch.zeros(*batch.targets.shape, task.vocab_size)
        found = task.example_statistics(task.metrics, "test", batch.rows, logits, batch.targets)
        for metric in task.metrics:
            sums[metric.name] = sums[metric.name] + found[metric.name].double().sum(0).numpy()
    for metric in task.metrics:
        assert sums[metric.name][1] == expected[metric.columns[1]]


def test_padding_is_that_of_the_vocabulary(tmp_path):
    folder = write_folder(tmp_path / "files", MIXED)
    assert open_task(tmp_path, folder).model_fields == {"is_decoder": True}
    task = open_task(tmp_path, folder, name="words", vocabulary="tokenizer")
    pad = task.vocabulary.tokenizer.fast.pad_token_id
    assert task.model_fields == {"is_decoder": True, "pad_token_id": pad}


def test_a_tokenizer_that_does_not_give_texts_back_is_reported(tmp_path):
    folder = write_folder(tmp_path / "files", MIXED)
    task = open_task(tmp_path, folder, vocabulary="tokenizer", kind="byte-level")
    assert task.facts["changed_parts"] == 0
    assert task.facts["parts"] == len(MIXED)
    assert task.build_notes == []
    lossy = open_task(tmp_path, folder, name="lossy", vocabulary="tokenizer", kind="wordpiece")
    (note,) = lossy.build_notes
    assert f"does not give {lossy.facts['changed_parts']:,} of {len(MIXED)} parts" in note
    assert lossy.facts["changed_parts"] == len(MIXED)


def test_documents_of_one_token_are_counted_and_left_out(tmp_path):
    folder = write_folder(tmp_path / "files", [*TEXTS, "q", "é", "zz"])
    task = open_task(tmp_path, folder)
    # é has two bytes
    assert sum(task.facts["too_short"].values()) == 1
    assert sum(task.facts["documents"].values()) == len(TEXTS) + 2
    assert task.build_notes == ["1 document of fewer than two tokens was left out"]
    for split, count in task.facts["documents"].items():
        assert len(documents_of(task.dataset.splits[split])) == count


def test_a_split_of_short_documents_alone_is_refused(tmp_path):
    folder = write_folder(tmp_path / "files")
    (tmp_path / "short.txt").write_text("a\nb\nc\n")
    held = write_folder(tmp_path / "held", ["x", "y"])
    cls = make_task(tmp_path / "cache", folder, objective="next", validation=str(held), test=0.1)
    with pytest.raises(
        DataError, match="mine: each of the 2 documents of validation has fewer than 2 tokens"
    ):
        cls().open(tmp_path / "cache")


def test_documents_are_split_as_those_of_masked_tokens(tmp_path):
    folder = write_folder(tmp_path / "files")
    one, two = (
        make_task(tmp_path / name, folder, objective=name).description
        for name in ("masked", "next")
    )
    assert one.rows_sha256 == two.rows_sha256
    assert one.sizes == two.sizes


@pytest.mark.parametrize("names", [("train", "validation", "test"), ("train", "valid", "test")])
def test_a_folder_with_splits_keeps_them(tmp_path, names):
    folder = write_books(tmp_path / "pg19")
    (folder / "validation").rename(folder / "moved")
    (folder / "moved").rename(folder / names[1])
    task = open_task(tmp_path, folder)
    for split, name in zip(("train", "validation", "test"), names, strict=True):
        paths = sorted((folder / name).iterdir(), key=lambda path: path.name)
        texts = [path.read_bytes().decode().replace("\r\n", "\n") for path in paths]
        found = documents_of(task.dataset.splits[split])
        assert [task.decode(ids) for ids in found] == [x for x in texts if len(x) > 1]
    masked = make_task(tmp_path / "masked", folder).description
    assert masked.sizes == task.description.sizes
    assert masked.rows_sha256 == task.description.rows_sha256


def test_given_splits_take_precedence_over_those_of_a_folder(tmp_path):
    folder = write_books(tmp_path / "pg19")
    held = write_folder(tmp_path / "held", ["held out one", "held out two"])
    splits = {"validation": str(held / "part-0"), "test": str(held / "part-1")}
    task = open_task(tmp_path, folder, **splits)
    (found,) = documents_of(task.dataset.splits["test"])
    assert task.decode(found) == "held out two"
    sources = {x["split"]: x["path"] for x in task.description.sources}
    assert sources == {"train": str(folder / "train"), **splits}
    task = open_task(tmp_path / "one", folder, validation=splits["validation"])
    assert task.description.sizes == {"train": 2, "validation": 1, "test": 3}


def test_a_folder_with_splits_is_read_whole_by_a_pattern(tmp_path):
    folder = write_books(tmp_path / "pg19")
    task = open_task(tmp_path, folder / "**" / "*.txt")
    assert sum(task.description.sizes.values()) == 6


def test_real_novels_are_read_byte_by_byte(tmp_path):
    contents = {}
    with tarfile.open(real("english_novels/novels_subset.tar.gz")) as archive:
        for member in archive:
            if not member.isfile() or "_" not in member.name:
                continue
            path = tmp_path / "novels" / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(member).read())
            text = io.TextIOWrapper(io.BytesIO(path.read_bytes()), "utf-8-sig", newline=None)
            contents.setdefault(path.parent.name, set()).add(text.read())
    task = open_task(tmp_path, tmp_path / "novels", length=512)
    assert {name: len(x) for name, x in contents.items()} == {"train": 8, "valid": 2, "test": 2}
    for split, name in (("train", "train"), ("validation", "valid"), ("test", "test")):
        found = documents_of(task.dataset.splits[split])
        assert {task.decode(ids) for ids in found} == contents[name]


def test_origin_of_masked_tokens_is_that_of_documents_and_tokenizer(tmp_path):
    described = make_task(tmp_path, write_folder(tmp_path / "files")).description
    assert described.origin == {
        "form": "corpus",
        "sha256": described.rows_sha256,
        "tokenizer": described.tokenizer["sha256"],
    }


def test_objectives_have_data_sets_of_their_own_under_one_name(tmp_path):
    folder = write_folder(tmp_path / "files")
    cache = tmp_path / "cache"
    make_task(cache, folder)
    request = CorpusRequest(
        paths=(str(folder),), objective="next", vocabulary="tokenizer", vocab_size=300
    )
    with pytest.raises(OptionError, match="'mine' is the name of another corpus"):
        import_corpus(cache, "mine", request, ignore)
    masked = TASKS["mine"].description.origin
    import_corpus(cache, "mine", request, ignore, replace=True)
    assert register_imported(cache) == imported_names() == ["mine"]
    following = TASKS["mine"].description.origin
    assert following["tokenizer"] == masked["tokenizer"]
    assert following != masked
    bytes_ = CorpusRequest(paths=(str(folder),), objective="next")
    import_corpus(cache, "mine", bytes_, ignore, replace=True)
    assert not (cache / "corpora" / "mine" / "tokenizer").exists()
    register_imported(cache)
    assert TASKS["mine"].description.origin["tokenizer"] == "bytes"


def test_binary_and_empty_documents_are_refused_or_counted(tmp_path):
    folder = write_folder(tmp_path / "files", [*TEXTS, " \n"])
    assert make_task(tmp_path, folder, objective="next").description.counts["empty"] == 1
    (folder / "x.txt").write_bytes(b"a\0b")
    with pytest.raises(DataError, match=r"x\.txt, line 1: binary"):
        make_task(tmp_path, folder, objective="next", name="other")
