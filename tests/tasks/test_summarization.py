"""Summarization tasks: reading, encoding, generation, scores, the rule of leading sentences."""

import json

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

import paper_files
from longspan.data.summarized_document import leading_sentences, split_sentences
from longspan.errors import DataError
from longspan.metrics import get_metric
from longspan.metrics.summaries import ROUGE
from longspan.tasks import IGNORE, build
from longspan.tasks.base import HELD_OUT, SPLITS
from own_files import save_tokenizer

OPTIONS = {"length": 24, "target_length": 14, "vocabulary": 40}
WORD_TASK = "pubmed_summarization"


def opened(tmp_path, options=None, **files):
    folder = paper_files.write_papers(tmp_path / "papers", **files)
    task = build(WORD_TASK, {**OPTIONS, **(options or {})})
    task.open(tmp_path / "cache", folder)
    return task


@pytest.fixture
def tokenizer(tmp_path):
    texts = [" ".join(paper_files.paper(n)["article_text"]) for n in range(8)]
    return f"tokenizer:{save_tokenizer(tmp_path / 'tokenizer', texts)}"


@pytest.mark.parametrize("vocabulary", ["words", "bytes", "characters", "pieces"])
def test_decoder_reads_what_it_has_predicted(tmp_path, tokenizer, vocabulary):
    named = {"words": 40, "pieces": tokenizer}.get(vocabulary, vocabulary)
    task = opened(tmp_path, {"vocabulary": named, "target_length": 60})
    (batch,) = task.batches("test", batch_size=8)
    chosen = task.generation
    assert (
        batch.inputs["decoder_input_ids"][:, 0].tolist() == [chosen["decoder_start_token_id"]] * 4
    )
    for row, target, mask in zip(
        batch.inputs["decoder_input_ids"],
        batch.targets,
        batch.inputs["decoder_attention_mask"],
        strict=True,
    ):
        length = int(mask.sum())
        assert mask[:length].all()
        assert (target[length:] == IGNORE).all()
        assert row[1:length].equal(target[: length - 1])
        assert target[length - 1] == task.end_token
        assert (target[: length - 1] != task.end_token).all()
        assert target[:length].max() < task.vocab_size
    reference = paper_files.paper(0, "test")["abstract_text"]
    text = " ".join(reference).replace("<S> ", "").replace(" </S>", "")
    ids = batch.targets[batch.rows == 0][0].numpy()
    # rare characters have no id
    decoded = task.decode_generated(ids[ids != IGNORE]).replace("\ufffd", ".")
    if vocabulary == "bytes":
        text = text[:59].strip()  # 60 with the end
    kept = text.replace(" .", "") if vocabulary == "words" else text
    assert decoded.replace(" ", "") == kept.replace(" ", "")[: len(decoded.replace(" ", ""))]
    assert len(decoded) > 40


def test_targets_fit_the_decoder(tmp_path):
    task = opened(tmp_path, {"target_length": 5})
    for batch in task.batches("validation", batch_size=2):
        assert batch.inputs["decoder_input_ids"].shape[1] == batch.targets.shape[1] == 5
        assert (batch.targets[:, -1] == task.end_token).all()
    assert "summaries are longer than 5 tokens" in " ".join(task.build_notes)
    # scores are against the whole summary
    assert len(task.reference("validation", 0).split()) == 12


def test_statistics_are_those_of_rouge_score(tmp_path):
    task = opened(tmp_path)
    (batch,) = task.batches("test", batch_size=8)
    generated = batch.targets.masked_fill(batch.targets == IGNORE, 0)
    generated[0, 3:6] = generated[1, 3:6]
    rows = batch.rows
    metrics = [get_metric(name) for name in ROUGE["rouge-score"]]
    found = task.generation_statistics(metrics, "test", rows, generated)
    scorer = RougeScorer(list(ROUGE["rouge-score"]), use_stemmer=True)
    for place, row in enumerate(rows.tolist()):
        text = task.decode_generated(generated[place].numpy())
        scores = scorer.score(task.reference("test", row), text)
        for name in ROUGE["rouge-score"]:
            assert found[name][place].tolist() == pytest.approx([scores[name].fmeasure, 1])


def test_text_ends_at_its_first_end_token(tmp_path):
    task = opened(tmp_path)
    end = task.end_token
    assert task.decode_generated(np.array([5, 6, end, 7, end, 0])) == task.decode(np.array([5, 6]))
    assert task.decode_generated(np.array([end])) == ""


def test_lead_has_as_many_words_as_the_mean_summary(tmp_path):
    """The abstracts are the first two sentences, which the rule finds."""
    task = opened(tmp_path)
    assert task.facts["lead_words"] == 12
    assert task.rule_names == ("lead",)
    for split in HELD_OUT:
        assert task.rule_scores(split) == {"lead": 1.0}
    sentences = ("a b c", "d e", "f")
    assert leading_sentences(sentences, 3) == sentences[:1]
    assert leading_sentences(sentences, 3.5) == sentences[:2]
    assert leading_sentences((), 3) == ()


def test_sentences_end_in_punctuation_or_lines():
    assert split_sentences("One.  Two 2.5\n\nThree? four! ") == (
        "One.",
        "Two 2.5",
        "Three?",
        "four!",
    )


def test_unusable_papers_are_counted_and_listed(tmp_path):
    empty = {"article_id": "void", "article_text": [], "abstract_text": ["<S> words </S>"]}
    mute = {"article_id": "mute", "article_text": ["words"], "abstract_text": ["<S> </S>"]}
    changes = {
        ("train", 2): "{broken",
        ("train", 4): json.dumps(empty),
        ("train", 5): json.dumps({"article_text": "no list"}),
        ("val", 1): json.dumps(empty),
        ("test", 0): json.dumps(mute),
    }
    task = opened(tmp_path, changes=changes)
    assert [task.size(split) for split in SPLITS] == [13, 5, 3]
    assert task.facts["cases"] == {"broken_line": 2, "empty_document": 2, "empty_summary": 1}
    lines = (task.dataset.folder / "skipped.tsv").read_text().splitlines()[1:]
    assert [tuple(line.split("\t")) for line in lines] == [
        ("train", "broken_line", "3", "", "train.txt: line 3"),
        ("train", "empty_document", "5", "void", "train.txt: line 5"),
        ("train", "broken_line", "6", "", "train.txt: line 6"),
        ("validation", "empty_document", "2", "void", "val.txt: line 2"),
        ("test", "empty_summary", "1", "mute", "test.txt: line 1"),
    ]
    assert "5 documents are listed in" in task.build_notes[-1]


@pytest.mark.parametrize("vocabulary", ["words", "bytes", "characters", "pieces"])
def test_a_held_out_paper_without_a_text_is_scored(tmp_path, tokenizer, vocabulary):
    named = {"words": 40, "pieces": tokenizer}.get(vocabulary, vocabulary)
    void = json.dumps({"article_text": [], "abstract_text": ["<S> words </S>"]})
    task = opened(tmp_path, {"vocabulary": named}, changes={("val", 1): void, ("test", 0): void})
    assert [task.size(split) for split in SPLITS] == [16, 5, 4]
    (batch,) = task.batches("test", batch_size=4)
    assert batch.inputs["attention_mask"].any(1).all()
    row = batch.rows.tolist().index(0)
    ids = batch.inputs["input_ids"][row][batch.inputs["attention_mask"][row]]
    np.testing.assert_array_equal(ids, task.encode(""))


@pytest.mark.parametrize("vocabulary", ["words", "bytes", "characters", "pieces"])
def test_new_documents_are_read_as_those_of_the_splits(tmp_path, tokenizer, vocabulary):
    """White space between sentences is collapsed in both."""
    named = {"words": 40, "pieces": tokenizer}.get(vocabulary, vocabulary)
    task = opened(tmp_path, {"vocabulary": named, "length": 400})
    for row, ids in enumerate(task.dataset.splits["test"].tokens):
        sentences = paper_files.paper(row, "test")["article_text"]
        for separator in (" ", "  ", "\n", "\n\n\t"):
            np.testing.assert_array_equal(task.encode(separator.join(sentences)), ids)


def test_split_without_summaries_is_refused(tmp_path):
    mute = {"article_id": "mute", "article_text": ["words"], "abstract_text": []}
    changes = {("test", number): json.dumps(mute) for number in range(4)}
    with pytest.raises(DataError, match=r"'test' has no document with a summary \(empty_summary 4"):
        opened(tmp_path, changes=changes)


def test_files_are_found_in_a_folder_of_their_own(tmp_path, monkeypatch):
    paper_files.write_papers(tmp_path / "pubmed-dataset")
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    monkeypatch.delenv("LONGSPAN_TEST_DATA", raising=False)
    task = build(WORD_TASK, OPTIONS)
    assert task.describe_missing_data(None) is None
    assert "arxiv-dataset are not here" in build("arxiv_summarization").describe_missing_data(None)
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "pubmed-dataset"))
    assert "longspan data build" in task.describe_missing_data(None)


def test_unknown_words_are_not_generated(tmp_path):
    task = opened(tmp_path, {"vocabulary": 20})
    symbols = task.tokenizer.symbols
    known = set(range(2, 20))
    assert set(task.generation["suppress_tokens"]) == {1}
    task = opened(tmp_path, {"vocabulary": 60})
    assert len(task.tokenizer.words) == 30
    assert set(task.generation["suppress_tokens"]) == {1, *range(32, 60)}
    assert known <= set(range(len(symbols)))


def test_new_documents_need_no_summary(tmp_path):
    task = opened(tmp_path)
    examples = task._examples("test")
    new = type(examples)(tokens=examples.tokens, labels=examples.labels)
    batch = task.collate(new, np.arange(4))
    assert batch.inputs["input_ids"].equal(task.collate(examples, np.arange(4)).inputs["input_ids"])
    assert batch.inputs["decoder_input_ids"].equal(torch.full((4, 1), task.end_token))


def test_papers_of_pubmed(tmp_path):
    """Reads gzip and the suffix .jsonl; the lead is that of the sentences themselves."""
    folder = paper_files.real_papers()
    found = build(WORD_TASK).identify_source(folder)
    assert set(found["bytes"]) == {"train.jsonl.gz", "val.jsonl.gz", "test.jsonl.gz"}
    from longspan.tasks.source_report import Report
    from longspan.tasks.summaries.papers import read_papers

    report = Report()
    papers = list(read_papers(folder / "val.jsonl.gz", report))
    assert len(papers) == 50
    assert not report.cases
    assert all(len(one.document) > 5 and one.summary for one in papers)
    assert not any("<S>" in one.summary_text for one in papers)
