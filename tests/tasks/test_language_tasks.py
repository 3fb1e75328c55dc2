"""Tasks of published texts: documents, vocabularies and counts, from miniature files."""

import numpy as np
import pytest
import torch

from longspan.errors import DataError
from longspan.metrics import get_metric
from longspan.tasks import IGNORE, SPLITS, TASKS
from published_folders import make_source
from text_sources import ARTICLES, BOOKS, SIZES, documents_of, letters, markup, wiki_tokens

NAMES = ("text8", "enwik8", "wikitext_2", "wikitext_103", "pg19")


pytestmark = pytest.mark.usefixtures("nowhere")


def make(name, folder, monkeypatch):
    """Write the miniature files of a task, and make it expect their sizes."""
    return type(make_source(name, folder, monkeypatch)[0])


def open_task(name, tmp_path, monkeypatch, **options):
    cls = make(name, tmp_path / "data", monkeypatch)
    task = cls(cls.Options(**{"length": 16, **options}))
    task.open(tmp_path / "cache", tmp_path / "data")
    return task


def expected_documents(name):
    """Return the documents of each split as text, joined by nothing where they are bytes."""
    if name == "pg19":
        return {
            split: [text for _, text in sorted(books.items()) if len(text) > 1]
            for split, books in BOOKS.items()
        }
    if name.startswith("wikitext"):
        return {split: [wiki_tokens(x)] for split, x in ARTICLES.items()}
    content = (letters if name == "text8" else markup)(sum(SIZES.values()))
    ends = np.cumsum([0, *SIZES.values()])
    return {
        split: [content[ends[n] : ends[n + 1]].decode(errors="replace")]
        for n, split in enumerate(SIZES)
    }


@pytest.mark.parametrize("name", NAMES)
def test_stored_documents_are_those_of_the_files(name, tmp_path, monkeypatch):
    task = open_task(name, tmp_path, monkeypatch)
    for split, expected in expected_documents(name).items():
        found = documents_of(task.dataset.splits[split])
        if name.startswith("wikitext"):
            assert len(found) == len(ARTICLES[split])
            joined = np.concatenate(found).tolist()
            assert [task.class_name(x) for x in joined] == expected[0]
        else:
            assert [task.decode(ids) for ids in found] == expected


@pytest.mark.parametrize("name", NAMES)
def test_all_tokens_but_the_first_of_a_document_are_scored_once(name, tmp_path, monkeypatch):
    task = open_task(name, tmp_path, monkeypatch, evaluation="sliding", stride=5)
    for split in ("validation", "test"):
        expected = [ids[1:] for ids in documents_of(task.dataset.splits[split])]
        np.testing.assert_array_equal(task.labels(split), np.concatenate(expected))
        scored = sum(
            int((batch.targets != IGNORE).sum()) for batch in task.batches(split, batch_size=3)
        )
        assert scored == sum(map(len, expected))
        assert len(np.unique(task.segments(split).documents)) == len(expected)


def total_of(task, split, metric):
    """Return the sums of the statistics of uniform predictions over a split."""
    sums = torch.zeros(2, dtype=torch.float64)
    for batch in task.batches(split, batch_size=4):
        logits = torch.zeros(*batch.targets.shape, task.vocab_size, dtype=torch.float64)
        found = task.example_statistics([metric], split, batch.rows, logits, batch.targets)
        sums += found[metric.name].double().sum(0)
    return sums.numpy()


@pytest.mark.parametrize("name", NAMES)
def test_metrics_divide_by_the_counts_of_the_text(name, tmp_path, monkeypatch):
    task = open_task(name, tmp_path, monkeypatch)
    for split in ("validation", "test"):
        texts = [task.decode(x) for x in documents_of(task.dataset.splits[split])]
        documents = documents_of(task.dataset.splits[split])
        scored = sum(len(x) - 1 for x in documents)
        for metric in task.metrics:
            nats, units = total_of(task, split, metric)
            assert nats == pytest.approx(scored * np.log(task.vocab_size))
            if metric.name == "word_perplexity":
                # the first word of a text that begins with one is not predicted whole
                starts = sum(not text[0].isspace() for text in texts)
                assert units == sum(len(text.split()) for text in texts) - starts
                assert metric.finalize(np.array([nats, units])) == pytest.approx(
                    np.exp(nats / units)
                )
            else:
                assert units == scored


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_copy_is_refused_when_the_task_is_opened(name, tmp_path, monkeypatch):
    cls = make(name, tmp_path / "data", monkeypatch)
    files = [x for x in sorted((tmp_path / "data").rglob("*")) if x.is_file()]
    chosen = next(x for x in files if x.name in (name, "wiki.test.tokens", "30.txt"))
    if name == "pg19":
        chosen.unlink()
    else:
        chosen.write_bytes(chosen.read_bytes()[:-12])
    (tmp_path / "empty").mkdir()
    task = cls()
    with pytest.raises(DataError, match=r"refused.*import corpus \S+ --objective next"):
        task.open(tmp_path / "cache", tmp_path / "data")
    with pytest.raises(DataError, match="is not here"):
        task.open(tmp_path / "cache", tmp_path / "empty")


def test_words_are_those_of_the_open_data_set(tmp_path, monkeypatch):
    task = open_task("wikitext_2", tmp_path, monkeypatch)
    assert "cat" in task.vocabulary.words
    for path in sorted((tmp_path / "data").iterdir()):
        path.write_bytes(path.read_bytes().replace(b" cat ", b" tiger "))
    task.open(tmp_path / "cache", tmp_path / "data")
    assert "tiger" in task.vocabulary.words
    assert "cat" not in task.vocabulary.words


def test_ids_of_the_published_sets_fit_their_vocabularies():
    sizes = {name: TASKS[name].info.vocab_size for name in NAMES}
    assert sizes == {
        "text8": 28,
        "enwik8": 257,
        "wikitext_2": 33_279,
        "wikitext_103": 267_736,
        "pg19": 257,
    }
    for name in NAMES:
        task = TASKS[name]()
        assert dict.fromkeys(SPLITS) == task.sizes
        assert "not predicted" in task.info.notes


def test_word_perplexity_is_of_the_nats_of_a_word():
    metric = get_metric("word_perplexity")
    assert metric.columns == ("nats", "words")
    sums = np.array([[3.0, 2.0], [1.0, 2.0]]).sum(0)
    assert metric.finalize(sums) == pytest.approx(np.exp(1.0))
    assert not metric.higher_is_better
