"""Examples of the documentation: scripts that run on real text, learn, and save the model."""

import os
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, AutoTokenizer

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
DATA = os.environ.get("LONGSPAN_TEST_DATA")


def data(name):
    """Return a file of the test data."""
    if not DATA:
        pytest.skip("LONGSPAN_TEST_DATA is not set")
    path = Path(DATA) / name
    if not path.exists():
        pytest.skip(f"LONGSPAN_TEST_DATA has no {name}")
    return path


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Function that runs a script and returns its variables."""

    def call(name, *arguments, out=tmp_path):
        script = FOLDER / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [script.name, *map(str, arguments), "--out", str(out)])
        return runpy.run_path(str(script))

    return call


def reviews():
    return ("--train", data("imdb/train.parquet"), "--test", data("imdb/test.parquet"))


@pytest.mark.slow
def test_a_roberta_made_long_learns_to_classify_reviews(run):
    found = run("classify_imdb", *reviews())
    assert found["losses"][-1] < 0.75 * found["losses"][0]
    # Half of the 300 reviews are positive; 0.6 is 3.5 standard errors above guessing.
    assert found["scores"]["eval_accuracy"] > 0.6


def test_a_roberta_made_long_classifies_reviews(run):
    small = ("--train-examples", 160, "--test-examples", 16, "--pretraining-steps", 5)
    found = run("classify_imdb", *reviews(), *small, "--batch-size", 8)
    assert len(found["test_reviews"]) == 16
    assert found["losses"][-1] < found["losses"][0]
    actions = {weight.target: weight.action for weight in found["converted"].weights}
    tiled = "tiled, 64 to 256 rows, without the first 2 (padding)"
    assert actions["model.embeddings.positions.weight"] == tiled
    assert found["classify"]("A wonderful film.")[0]["label"] in ("negative", "positive")
    assert max(len(row["input_ids"]) for row in found["trainer"].train_dataset) == 256


@pytest.mark.slow
def test_answers_are_found_in_articles(run, tmp_path):
    small = ("--articles", 3, "--epochs", 6)
    found = run("answer_questions", "--data", data("qa/xquad.en.json.gz"), *small)
    assert found["losses"][-1] < 0.75 * found["losses"][0]
    assert found["reachable"] == {"exact match": 100, "F1": 100}
    assert 0 <= found["scores"]["exact match"] <= found["scores"]["F1"] < 100
    for question, text in zip(found["test_questions"], found["answers"], strict=True):
        assert text in question["document"]
    assert_scores_are_those_of_squad(found["exact_match"], found["f1"])
    row = found["test_rows"][0]
    begin = row["in_document"].index(1)
    assert row["global_attention_mask"] == [1] * begin + [0] * (len(row["in_document"]) - begin)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "reader")
    question = tokenizer.decode(row["input_ids"][:begin], skip_special_tokens=True)
    assert question.strip() == found["test_questions"][0]["question"]
    batch = found["collate"]([row])
    loaded = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "reader").eval()
    with torch.no_grad():
        expected = found["model"](**batch)
        torch.testing.assert_close(loaded(**batch).end_logits, expected.end_logits)


def assert_scores_are_those_of_squad(exact_match, f1):
    """Check that words count without case, punctuation and articles."""
    assert exact_match("the Broncos!", "Broncos") == 1
    assert exact_match("Denver Broncos", "Broncos") == 0
    assert f1("Denver Broncos", "the Broncos") == pytest.approx(2 / 3)
    assert f1("a b b", "b b c") == pytest.approx(0.8)
    assert f1("", "Broncos") == 0


@pytest.mark.slow
def test_papers_are_summarized(run, tmp_path):
    folder = "pubmed_sum"
    files = (data(f"{folder}/train.jsonl.gz"), data(f"{folder}/test.jsonl.gz"))
    small = ("--train-examples", 40, "--test-examples", 4, "--max-length", 512, "--batch-size", 4)
    found = run("summarize_papers", "--train", files[0], "--test", files[1], *small)
    assert found["losses"][-1] < 0.85 * found["losses"][0]
    assert found["perplexity"] < len(found["tokenizer"]) / 3
    assert len(found["summaries"]) == len(found["test_papers"]) == 4
    assert all(0 <= score <= 100 for score in found["scores"].values())
    # The first words of a paper share some with its abstract.
    assert found["baseline"]["rouge1"] > 5
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "summarizer").eval()
    assert loaded.model.encoder.config.layer_options(0)["first_global"]
    ids = torch.tensor([found["encode"](found["test_papers"][0])["input_ids"]])
    options = {"num_beams": 4, "max_length": 64}
    generated = loaded.generate(ids, **options)[0]
    text = found["tokenizer"].decode(generated, skip_special_tokens=True)
    assert text == found["summaries"][0]


@pytest.mark.slow
def test_saved_models_are_sources(run, tmp_path):
    """The road of a GPU: a checkpoint in place of the small model."""
    few = ("--epochs", 1, "--learning-rate", 1e-4)
    made, again = tmp_path / "made", tmp_path / "again"
    small = (*few, "--train-examples", 8, "--test-examples", 2)
    first = run("classify_imdb", *reviews(), *small, "--pretraining-steps", 1, out=made)
    options = ("--source", made / "short", "--attention", "local", "--max-length", 100)
    second = run("classify_imdb", *reviews(), *small, *options, out=again)
    assert len(second["tokenizer"]) == len(first["tokenizer"])
    assert second["model"].config.attention == "local"
    assert not (again / "short").exists()

    questions = ("--data", data("qa/xquad.en.json.gz"), *few, "--articles", 2)
    first = run("answer_questions", *questions, out=made)
    second = run("answer_questions", *questions, "--source", made / "reader", out=again)
    assert second["test_rows"] == first["test_rows"]

    papers = data("pubmed_sum/train.jsonl.gz")
    papers = ("--train", papers, "--test", papers, *small)
    first = run("summarize_papers", *papers, out=made)
    second = run("summarize_papers", *papers, "--source", made / "summarizer", out=again)
    assert second["encode"](second["test_papers"][0]) == first["encode"](first["test_papers"][0])


def test_every_example_is_listed_and_has_commands():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f"({path.name})" in listed
        assert f"python docs/examples/{path.name}" in path.read_text(encoding="utf-8")
