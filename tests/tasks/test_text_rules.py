"""Rules by which tasks compare texts: options, metrics, notes on what a rule does not read."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from task_calls import open_task

import paper_files
from longspan.arena.experiment import hash_config
from longspan.errors import DataError
from longspan.metrics import get_metric
from longspan.metrics.answers import normalize_answer
from longspan.metrics.summaries import ROUGE, rouge
from longspan.results import load_results
from longspan.tasks import build
from longspan.tasks.questions.squad import Language
from longspan.tasks.scoring import IGNORE
from question_files import squad_question, write_squad

RESULTS = Path(__file__).parents[2] / "results"
CHINESE = "今天天气很好，我们去公园散步。公园里有一座很高的塔。"
ANSWER = "一座很高的塔"
SMALL = {"length": 160, "question_length": 32}


def chinese_article(number):
    question = squad_question(f"q{number}", "公园里有什么？", ANSWER, CHINESE.index(ANSWER))
    return {"title": f"t{number}", "paragraphs": [{"context": CHINESE, "qas": [question]}]}


@pytest.fixture
def folder(tmp_path):
    write_squad(tmp_path / "xquad.zh.json", [chinese_article(number) for number in range(12)])
    return tmp_path


def test_answers_in_chinese_are_scored_in_characters(tmp_path, folder):
    task = open_task("xquad", tmp_path / "cache", folder, language="zh", **SMALL)
    assert [metric.name for metric in task.metrics] == ["token_f1_mlqa", "exact_match_mlqa"]
    (batch,) = task.batches("test", batch_size=9)
    firsts, context = int((batch.targets[0] != IGNORE).int().argmax()), CHINESE.encode()
    # The answer without its first two characters, of three bytes each.
    start = firsts + context.index(ANSWER.encode()) + 6
    logits = np.zeros((len(batch.rows), 2, batch.targets.shape[1]), np.float32)
    logits[:, 0, start] = logits[:, 1, start + 3 * 4 - 1] = 9
    logits = batch.targets.new_tensor(logits.tolist()).float()
    assert set(task.answers("test", batch.rows, logits, batch.targets).values()) == {ANSWER[2:]}
    found = task.example_statistics(task.metrics, "test", batch.rows, logits, batch.targets)
    assert found["token_f1_mlqa"][:, 0].tolist() == pytest.approx([0.8] * len(batch.rows))
    assert found["exact_match_mlqa"][:, 0].tolist() == [0] * len(batch.rows)
    assert task.build_notes == []


def test_files_of_another_language_are_refused(tmp_path, folder):
    for language in ("en", "de"):
        with pytest.raises(
            DataError, match=f"language={language}, got .*; set the option language=zh"
        ):
            open_task("xquad", tmp_path / "cache", folder / "xquad.zh.json", language=language)
    wanted = r"expected xquad.en.json in .*, got xquad.zh.json; set the option language=zh"
    with pytest.raises(DataError, match=wanted):
        open_task("xquad", tmp_path / "cache", folder)
    french = (folder / "xquad.zh.json").rename(folder / "xquad.fr.json")
    with pytest.raises(DataError, match="set the option language=other"):
        open_task("xquad", tmp_path / "cache", french)


def test_answers_that_the_rule_does_not_split_are_noted(tmp_path, folder):
    path = (folder / "xquad.zh.json").rename(folder / "own.json")
    task = open_task("xquad", tmp_path / "cache", path, **SMALL)
    assert [metric.name for metric in task.metrics] == ["token_f1", "exact_match"]
    (note,) = task.build_notes
    assert "12 questions have answers in a script without spaces" in note


def test_answers_without_a_token_are_noted(tmp_path):
    articles = [chinese_article(number) for number in range(12)]
    for article in articles:
        article["paragraphs"][0]["qas"][0]["answers"] = [{"text": "。", "answer_start": 14}]
    write_squad(tmp_path / "xquad.zh.json", articles)
    task = open_task("xquad", tmp_path / "cache", tmp_path, language="zh", **SMALL)
    assert "12 questions have no answer with a token" in task.build_notes[0]


@pytest.mark.parametrize("name", ["squad", "xquad"])
@pytest.mark.parametrize("language", Language.__args__)
def test_metrics_of_each_language_name_its_rule(name, language):
    task = build(name, {"language": language})
    assert all(metric.name.endswith("_mlqa") == (language != "en") for metric in task.metrics)
    assert task.normalize("The “end”") == ("“end”" if language == "en" else normalize_answer(
        "The “end”", language
    ))  # fmt: skip


def write_russian_papers(folder):
    """Write papers of Cyrillic words, but one whose abstract is in English."""
    changes = {}
    for part, count in paper_files.SIZES.items():
        for number in range(count):
            paper = paper_files.paper(number, part)
            if (part, number) != ("test", 0):
                for name in ("article_text", "abstract_text"):
                    paper[name] = [x.replace("word", "слово ") for x in paper[name]]
            if (part, number) == ("test", 1):
                paper["abstract_text"] = ["<S> слово река . </S>"]
            changes[part, number] = json.dumps(paper)
    return paper_files.write_papers(folder, changes=changes)


@pytest.mark.parametrize("rule", ROUGE)
def test_rule_of_rouge_is_an_option(tmp_path, rule):
    data = write_russian_papers(tmp_path / "papers")
    task = open_task(
        "arxiv_summarization", tmp_path / "cache", data, rouge=rule, vocabulary="bytes"
    )
    assert [metric.name for metric in task.metrics] == [*ROUGE[rule], "perplexity"]
    metrics = [get_metric(name) for name in ROUGE[rule]]
    (batch,) = task.batches("test", batch_size=9)
    generated = batch.targets.masked_fill(batch.targets < 0, 0)
    found = task.generation_statistics(metrics, "test", batch.rows, generated)
    for place, row in enumerate(batch.rows.tolist()):
        text, reference = (task.reference("test", row) for _ in range(2))
        expected = rouge(text, reference, rule)
        assert {x: found[x][place, 0].item() for x in ROUGE[rule]} == pytest.approx(expected)
    assert 0.5 < task.rule_scores("test")["lead"] < 1
    notes = " ".join(task.build_notes)
    if rule == "unicode":
        assert "ROUGE" not in notes
    else:
        assert "1 summary has no token under the rule of ROUGE" in notes
        assert "23 summaries have letters that the rule of ROUGE drops" in notes
        assert "rouge=unicode" in notes


def test_committed_records_have_the_published_rule():
    """They are older than the option; another language is another configuration."""
    records = load_results([RESULTS / "xiong-small"])
    records = [x for x in records if x.task == "xquad"]
    assert len(records) > 10
    for one in records:
        config = one.config
        assert config.task.options["language"] == "en"
        assert hash_config(config) == one.config_hash
        assert set(one.scores["test"].metrics) == {x.name for x in build("xquad").metrics}
        options = {**config.task.options, "language": "zh"}
        task = dataclasses.replace(config.task, options=options)
        assert hash_config(dataclasses.replace(config, task=task)) != one.config_hash


def test_published_tasks_have_the_published_rule():
    for name in ("arxiv_summarization", "pubmed_summarization"):
        task = build(name)
        assert task.options.rouge == "rouge-score"
        assert [metric.name for metric in task.metrics] == list(task.info.metrics)
        assert {x.metric for x in task.info.published} <= set(task.info.metrics)
