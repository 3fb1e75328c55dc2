"""Tasks of questions: splits, batches, scores of known answers, and a run that learns."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from task_calls import make_experiment, open_task, read_whole, score_logits

import tiny
from longspan.arena import get, make_model, run
from longspan.arena.protocols.files import register_imports
from longspan.data.own_splits import TEST, VALIDATION
from longspan.data.sources.text import FileFormat
from longspan.errors import DataError, OptionError
from longspan.metrics.answers import exact_match, normalize_triviaqa_answer, token_f1
from longspan.models.heads.question_answering import span_loss
from longspan.results import load_results
from longspan.tasks import IGNORE, SPLITS
from longspan.tasks.questions.encoding import ENDS, STARTS
from longspan.tasks.questions.imports import QuestionColumns, import_questions
from longspan.tasks.questions.squad import read_squad
from longspan.tasks.source_report import Report
from longspan.training.footprint import make_dummy_batch, measure_step_memory
from question_files import (
    extract_triviaqa,
    published,
    squad_article,
    write_squad,
    write_triviaqa,
    xquad_file,
)

ARTICLES = 12
SMALL = {"length": 128, "question_length": 24}
opened = partial(open_task, **SMALL)


@pytest.fixture(scope="module")
def articles(tmp_path_factory):
    """Folder with twelve articles of two questions each."""
    folder = tmp_path_factory.mktemp("articles")
    write_squad(folder / "xquad.en.json", [squad_article(f"T{n}") for n in range(ARTICLES)])
    return folder


@pytest.fixture(scope="module")
def trivia(tmp_path_factory):
    return write_triviaqa(tmp_path_factory.mktemp("triviaqa"))


def right_logits(batch):
    """Return logits that are largest at the first marked answer of each example."""
    logits = torch.zeros(len(batch.rows), 2, batch.targets.shape[1])
    for row, targets in enumerate(batch.targets):
        for side, bit in enumerate((STARTS, ENDS)):
            places = [i for i, x in enumerate(targets.tolist()) if x != IGNORE and x & bit]
            if places:
                logits[row, side, places[0]] = 9
    return logits


@pytest.mark.usefixtures("no_imports")
def test_own_protocol_leaves_room_for_answers_in_bytes(tmp_path):
    """An answer of ten words has more bytes than the word pieces that are usual."""
    answer = "a painter who came from far away to live here"
    with (tmp_path / "faq.csv").open("w", newline="") as file:
        rows = [(f"Who is Ann{n}?", f"Ann{n} is {answer}.", answer) for n in range(12)]
        csv.writer(file).writerows([("question", "context", "answer"), *rows])
    columns = QuestionColumns(question="question", context="context", answer="answer")
    arguments = (tmp_path / "faq.csv", dict.fromkeys((VALIDATION, TEST)), columns, FileFormat())
    import_questions(tmp_path / "cache", "faq", *arguments)
    register_imports(tmp_path / "cache")
    task = open_task("faq", tmp_path / "cache", **get("own").recipe("faq").task_options)
    batch = read_whole(task, "test")
    assert score_logits(task, "test", batch, right_logits(batch))["exact_match"] == 1


@pytest.mark.parametrize("context", ["paragraph", "article"])
def test_marked_answers_have_full_scores(tmp_path, articles, context):
    task = opened("xquad", tmp_path, articles, context=context)
    for split in SPLITS:
        batch = read_whole(task, split)
        found = score_logits(task, split, batch, right_logits(batch))
        assert found == {"exact_match": 1, "token_f1": 1}


def test_marked_answers_of_xquad_have_nearly_full_scores(tmp_path):
    """Some answers begin or end within a token of RoBERTa."""
    folder = published("vocab/roberta-base/vocab.json").parent
    options = {"length": 1024, "vocabulary": f"tokenizer:{folder}"}
    task = opened("xquad", tmp_path, xquad_file(), **options)
    assert sum(task.size(split) for split in SPLITS) == 1190
    batch = read_whole(task, "test")
    found = score_logits(task, "test", batch, right_logits(batch))
    assert 0.97 < found["exact_match"] < 1
    assert 0.98 < found["token_f1"] < 1


def test_articles_are_in_one_split(tmp_path, articles):
    task = opened("xquad", tmp_path, articles)
    ids = {split: list(predict(task, split)) for split in SPLITS}
    titles = {split: {name.split("-")[1] for name in names} for split, names in ids.items()}
    assert sum(map(len, ids.values())) == 2 * ARTICLES
    assert sum(map(len, titles.values())) == ARTICLES
    assert [len(titles[split]) for split in SPLITS] == [9, 1, 2]


def predict(task, split, logits=None):
    batch = read_whole(task, split)
    logits = right_logits(batch) if logits is None else logits
    return task.answers(split, batch.rows, logits, batch.targets)


def test_answers_are_cut_out_of_the_document(tmp_path, articles):
    """Any two tokens give the text between them, one byte a token."""
    task = opened("xquad", tmp_path, articles, answer_length=99)
    contexts = {x.id: x.context for x in read_squad(articles / "xquad.en.json", Report())}
    batch = read_whole(task, "train")
    for start, end in ((0, 0), (3, 11), (20, 35)):
        logits = torch.zeros(len(batch.rows), 2, batch.targets.shape[1])
        firsts = (batch.targets != IGNORE).float().argmax(1)
        rows = torch.arange(len(firsts))
        logits[rows, 0, firsts + start] = 9
        logits[rows, 1, firsts + end] = 9
        for name, text in predict(task, "train", logits).items():
            assert text == contexts[name][start : end + 1]


def test_answers_are_in_the_document_and_of_bounded_length(tmp_path, articles):
    task = opened("xquad", tmp_path, articles, answer_length=5)
    batch = read_whole(task, "train")
    logits = torch.zeros(len(batch.rows), 2, batch.targets.shape[1])
    logits[:, :, :3] = 99  # of the question
    logits[:, 1, -1] = 99
    contexts = {x.id: x.context for x in read_squad(articles / "xquad.en.json", Report())}
    for name, text in predict(task, "train", logits).items():
        assert 1 <= len(text) <= 5
        assert text in contexts[name]


def test_global_tokens_are_an_option(tmp_path, articles):
    masks = {}
    for choice in ("question", "first", "none", "boundaries"):
        task = opened("xquad", tmp_path, articles, global_tokens=choice, context="article")
        batch = read_whole(task, "validation")
        masks[choice] = batch.inputs.get("global_attention_mask")
        most = 0 if masks[choice] is None else int(masks[choice].sum(1).max())
        assert most <= task.num_global_tokens
    assert masks["none"] is None
    assert masks["first"].sum(1).tolist() == [1] * len(batch.rows)
    assert masks["first"][:, 0].all()
    for mask, ids in zip(masks["question"], batch.inputs["input_ids"], strict=True):
        assert mask.sum() == mask.long().argmin()
        shown = "".join(task.ids_to_tokens(ids[mask].numpy()))
        assert shown in ("[CLS]WhoĠmetĠBabbage?[SEP]", "[CLS]WhatĠwasĠit?[SEP]")
    assert (masks["boundaries"] >= masks["question"]).all()
    for mask, ids in zip(
        masks["boundaries"] & ~masks["question"], batch.inputs["input_ids"], strict=True
    ):
        # the two paragraphs begin with "Ada" and "She"
        assert task.ids_to_tokens(ids[mask].numpy()) == ["A", "S"]


def test_number_of_global_boundaries_is_bounded(tmp_path, articles):
    options = {"context": "article", "global_tokens": "boundaries", "boundaries": 1}
    task = opened("xquad", tmp_path, articles, **options)
    batch = read_whole(task, "train")
    mask = batch.inputs["global_attention_mask"] & (batch.targets != IGNORE)
    assert mask.sum(1).tolist() == [1] * len(batch.rows)
    assert task.ids_to_tokens(batch.inputs["input_ids"][mask].numpy()) == ["A"] * len(batch.rows)
    assert task.num_global_tokens == 1 + SMALL["question_length"] + 1 + 1


def test_squad_tests_on_the_published_development_set(tmp_path):
    write_squad(tmp_path / "train-v1.1.json", [squad_article(f"T{n}") for n in range(10)])
    write_squad(tmp_path / "dev-v1.1.json", [squad_article("D")])
    task = opened("squad", tmp_path / "cache", tmp_path)
    assert {split: task.size(split) for split in SPLITS} == {
        "train": 18,
        "validation": 2,
        "test": 2,
    }
    assert set(predict(task, "test")) == {"who-D", "what-D"}


def test_unanswerable_questions_count_in_scores_alone(tmp_path, trivia):
    task = opened("triviaqa", tmp_path, trivia)
    counts = task.facts["answers"]
    held_out = counts["validation"]
    totals = {
        name: sum(counts[split].get(name, 0) for split in ("train", "validation"))
        for name in ("questions", "marked", "behind_cut", "not_in_context")
    }
    assert totals == {"questions": 12, "marked": 10, "behind_cut": 1, "not_in_context": 1}
    train = counts["train"]
    assert train["left_out"] == train.get("behind_cut", 0) + train.get("not_in_context", 0)
    assert task.size("train") == train["marked"]
    assert task.size("validation") == held_out["questions"]
    batch = read_whole(task, "train")
    assert marked(task, batch).all()


def test_all_mentions_are_right(tmp_path, trivia):
    task = opened("triviaqa", tmp_path, trivia)
    batch = read_whole(task, "test")
    for targets in batch.targets:
        inside = targets[targets != IGNORE]
        assert [(inside & bit > 0).sum().item() for bit in (STARTS, ENDS)] == [2, 2]
    # The loss is that of the best mentions together: one alone is enough.
    logits = tuple(50 * x for x in right_logits(batch).unbind(1))
    labels = task.label_arguments(batch.targets)
    assert span_loss(logits, tuple(labels.values()), None) < 1e-6


def marked(task, batch):
    """Return which examples have an answer among their tokens."""
    labels = task.label_arguments(batch.targets)
    return task.head.count_targets(labels, len(batch.rows)).bool()


def test_triviaqa_scores_follow_its_own_normalization(tmp_path):
    """Aliases count, and punctuation separates words."""
    root = extract_triviaqa(tmp_path / "sample")
    for name in ("train", "dev"):
        path = root / "qa" / f"web-{name}.json"
        path.write_text(path.read_text().replace("Sinclair Lewis", "Sinclair-Lewis"))
    task = opened("triviaqa", tmp_path, root, domain="web", length=1024, validation=0.4)
    for split in SPLITS:
        batch = read_whole(task, split)
        known = [json.loads(x.tobytes())["references"] for x in details(task, split)]
        references = [known[row] for row in batch.rows.tolist()]
        draws = torch.Generator().manual_seed(3)
        logits = torch.randn(len(batch.rows), 2, batch.targets.shape[1], generator=draws)
        answers = task.answers(split, batch.rows, logits, batch.targets).values()
        found = score_logits(task, split, batch, logits)
        for name, score in (("exact_match", exact_match), ("token_f1", token_f1)):
            expected = [
                score(x, right, normalize_triviaqa_answer)
                for x, right in zip(answers, references, strict=True)
            ]
            assert found[name] == pytest.approx(np.mean(expected))
        statistics = task.example_statistics(
            task.metrics, split, batch.rows, right_logits(batch), batch.targets
        )
        assert statistics["exact_match"][marked(task, batch), 0].eq(1).all()
    assert task.size("train") > 0


def details(task, split):
    return list(task.dataset.splits[split].details)


def test_official_ids_name_the_predictions(tmp_path):
    root = extract_triviaqa(tmp_path / "sample")
    task = opened("triviaqa", tmp_path, root, domain="web", length=1024, validation=0.4)
    assert "tc_33--Andrew_Lloyd_Webber.txt" in predict(task, "test")


def test_scores_are_grouped_by_where_the_answer_is(tmp_path, trivia):
    task = opened("triviaqa", tmp_path, trivia, validation=0.5)
    (grouping,) = task.groupings("validation")
    assert grouping.name == "answer"
    counts = task.facts["answers"]["validation"]
    found = {
        label: int((grouping.group == number).sum()) for number, label in enumerate(grouping.labels)
    }
    assert found == {label: counts.get(label, 0) for label in grouping.labels}


def test_what_cannot_be_learned_from_is_listed_with_file_and_line(tmp_path, cli):
    root = write_triviaqa(tmp_path / "triviaqa")
    path = root / "qa/wikipedia-train.json"
    content = json.loads(path.read_text())
    content["Data"][3]["EntityPages"] = [{"Filename": "absent.txt"}]
    path.write_text(json.dumps(content, indent=1))
    arguments = [
        "--set",
        "length=128",
        "--set",
        "question_length=24",
        "--cache",
        tmp_path / "cache",
    ]
    out, err = cli.done("data", "import", "triviaqa", root, *arguments)
    (folder,) = [line.removeprefix("folder: ") for line in out.splitlines() if "folder: " in line]
    assert f"listed in {folder}/skipped.tsv" in err
    assert "behind_cut 1, documents_missing 1, not_in_context 1, without_document 1" in err
    head, *rows = (Path(folder) / "skipped.tsv").read_text().splitlines()
    found = [dict(zip(head.split("\t"), row.split("\t"), strict=True)) for row in rows]
    lines = path.read_text().splitlines()
    expected = {"q_1": {"not_in_context"}, "q_2": {"behind_cut"}}
    expected["q_3"] = {"documents_missing", "without_document"}
    reasons = {name: {x["reason"] for x in found if x["id"] == name} for name in expected}
    assert reasons == expected
    for row in found:
        assert f'"{row["id"]}"' in lines[int(row["line"]) - 1]
        number = row["id"].removeprefix("q_")
        assert row["place"].startswith(f"{path}: question {number}")
    assert all(
        "absent.txt" in row["place"] for row in found if row["reason"] == "documents_missing"
    )


def test_documents_of_the_web_are_listed_with_the_line_of_their_question(tmp_path):
    root = extract_triviaqa(tmp_path / "sample")
    task = opened("triviaqa", tmp_path, root, domain="web", length=1024, validation=0.4)
    head, *rows = (task.dataset.folder / "skipped.tsv").read_text().splitlines()
    assert rows
    for row in rows:
        found = dict(zip(head.split("\t"), row.split("\t"), strict=True))
        name, _, document = found["id"].partition("--")
        part = "dev" if found["split"] == "test" else "train"
        path = root / "qa" / f"web-{part}.json"
        line = path.read_text().splitlines()[int(found["line"]) - 1]
        assert f'"{name}"' in line
        assert document
        assert found["place"].startswith(f"{path}: question ")


def test_without_anything_wrong_there_is_no_report(tmp_path, articles):
    task = opened("xquad", tmp_path, articles)
    assert task.build_notes == []
    assert not (task.dataset.folder / "skipped.tsv").exists()


def test_an_empty_split_is_refused_with_its_counts(tmp_path, trivia):
    with pytest.raises(DataError, match=r"'train' has no usable question \(behind_cut .*left_out"):
        opened("triviaqa", tmp_path, trivia, length=16, question_length=8)


def test_a_length_without_room_is_refused(tmp_path, articles):
    with pytest.raises(OptionError, match="leaves no room for a document"):
        opened("xquad", tmp_path, articles, length=24)


def test_dummy_batches_have_the_shape_of_real_ones(tmp_path, articles):
    task = opened("xquad", tmp_path, articles)
    dummy, batch = make_dummy_batch(task, 3), read_whole(task, "train")
    assert dummy.keys() == batch.inputs.keys() | task.label_arguments(batch.targets).keys()
    assert {x.shape for x in dummy.values()} == {(3, task.length)}
    assert dummy["global_attention_mask"].sum(1).tolist() == [task.num_global_tokens] * 3


def test_a_run_learns_answers_and_writes_them(tmp_path, articles, cli):
    """The two questions have each one answer, so the words of the question decide it."""
    paths = tiny.paths(tmp_path / "runs", tmp_path / "cache")
    task = opened("xquad", paths.cache, articles)
    changes = {
        "training.steps": 20,
        "training.learning_rate": 0.02,
        "training.evaluate_every": 10,
        "training.gradient_accumulation_steps": 2,
        "training.batch_size": 8,
    }
    made = make_experiment(task, changes=changes)
    result = run(made, task, paths)
    (record,) = load_results([paths.runs])
    assert record.config == made.config
    assert record.scores["test"].num_targets == task.size("test")
    assert set(record.scores["test"].metrics) == {"token_f1", "exact_match"}
    assert record.slices["answer"][0].label == "marked"
    assert result.scores["test"].metrics == {"token_f1": 1, "exact_match": 1}
    assert measure_step_memory(make_model(made, task), task, made.config.training).working > 0
    output = tmp_path / "answers.json"
    places = ["--cache", paths.cache, "--data", articles, "--device", "cpu"]
    for split in ("test", "train"):
        arguments = ["--output", output, "--split", split, "--batch-size", "5", *places]
        out, _ = cli.done("answers", paths.record_file(made), *arguments, "--json")
        assert json.loads(out)["questions"] == task.size(split)
        expected = {
            name: "Ada Lovelace" if name.startswith("who") else "Analytical Engine"
            for name in predict(task, split)
        }
        assert json.loads(output.read_text()) == expected
