"""Coreference on made documents: splits, batches, scores of known clusters, and a run."""

from functools import partial

import numpy as np
import pytest
import torch
from task_calls import make_experiment, open_task, read_whole, score_logits

import tiny
from conll_files import column_document, write_conll
from longspan.arena import run
from longspan.arena.model import forward_flops, make_model
from longspan.errors import DataError
from longspan.metrics.coreference import CONLL, conll_counts
from longspan.models.heads.coreference import CoreferenceOutput
from longspan.models.heads.coreference_head import pair_losses, unpack_scores
from longspan.results import load_results
from longspan.tasks import IGNORE, SPLITS
from longspan.tasks.documents.conll import read_documents
from longspan.training.arguments import model_inputs
from longspan.training.evaluate import evaluate
from longspan.training.footprint import make_dummy_batch, measure_step_memory

SMALL = {"length": 64, "span_width": 24, "antecedents": 8}
CLUSTERS = [[(0, 0), (5, 5), (10, 10)], [(2, 6), (8, 8)]]
opened = partial(open_task, "coreference", **SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_conll(tmp_path_factory.mktemp("conll"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def right_logits(task, batch):
    """Return the output in which every mention is linked to the one before it in its cluster."""
    found = []
    for labels in batch.targets:
        mentions = sorted(tuple(x) for x in labels.tolist() if x[0] != IGNORE)
        spans = torch.tensor([x[:2] for x in mentions])
        antecedents = torch.full((len(mentions), 1), -1)
        for number, (*_, cluster) in enumerate(mentions):
            before = [n for n in range(number) if mentions[n][2] == cluster]
            antecedents[number, 0] = before[-1] if before else -1
        scores = torch.cat((torch.zeros(len(mentions), 1), (antecedents >= 0) * 20.0 - 10), dim=1)
        found.append((spans, antecedents, scores))
    spans, antecedents, scores = (torch.stack(x) for x in zip(*found, strict=True))
    output = CoreferenceOutput(spans=spans, antecedents=antecedents, antecedent_scores=scores)
    return task.head.scores(output)


def test_right_links_have_full_scores_and_no_loss(cache, folder):
    task = opened(cache, folder)
    assert [task.size(split) for split in SPLITS] == [6, 2, 2]
    for split in SPLITS:
        batch = read_whole(task, split)
        logits = right_logits(task, batch)
        assert task.clusters(split, batch.rows, logits) == [CLUSTERS] * len(batch.rows)
        assert set(score_logits(task, split, batch, logits).values()) == {1.0}
        for scores, labels in zip(unpack_scores(logits), batch.targets, strict=True):
            assert pair_losses(scores, labels).sum() < 1e-3
        counts = task.head.count_targets(task.label_arguments(batch.targets), len(batch.rows))
        assert counts.tolist() == [1] * len(batch.rows)


def test_mentions_behind_the_last_window_count_as_missed(cache, folder):
    """The second sentence has two of five mentions, and one of each cluster."""
    task = opened(cache, folder, length=40)
    batch = read_whole(task, "test")
    assert (batch.targets[..., 0] != IGNORE).sum(1).tolist() == [3, 3]
    found = score_logits(task, "test", batch, right_logits(task, batch))
    # One of three right links is left.
    assert found["muc_f1"] == pytest.approx(2 * (1 / 1) * (1 / 3) / (1 + 1 / 3))
    both = opened(cache, folder, length=40, windows=2)
    assert both.checksum == task.checksum
    batch = read_whole(both, "test")
    assert batch.inputs["input_ids"].shape[1] == 2
    assert score_logits(both, "test", batch, right_logits(both, batch))["conll_f1"] == 1


def test_predicted_clusters_are_written_as_columns(cache, folder, tmp_path):
    """The file of the right clusters is read as the annotated one; words that are cut are there."""
    task = opened(cache, folder, length=30)
    batch = read_whole(task, "test")
    found = task.answers("test", batch.rows, right_logits(task, batch), batch.targets)
    (tmp_path / "response").write_text("".join(found.values()))
    read = list(read_documents(tmp_path / "response"))
    key = list(read_documents(folder / "test.english.v4_gold_conll"))
    assert list(found) == [x.id for x in read] == [x.id for x in key]
    for ours, theirs in zip(read, key, strict=True):
        assert ours.sentences == theirs.sentences
        assert list(map(list, ours.clusters)) == [[(0, 0), (5, 5)]]


def test_features_are_those_of_the_words(cache, folder):
    task = opened(cache, folder)
    batch = read_whole(task, "test")
    names = ("sentence_ids", "word_ids", "speaker_ids")
    sentence, word, speaker = (batch.inputs[name][1, 0] for name in names)
    assert sentence[0] == -1
    assert word[sentence >= 0].diff().max() == 1
    assert word.max() == 11
    assert speaker[sentence == 0].unique().tolist() == [0]
    assert speaker[sentence == 1].unique().tolist() == [1]
    assert batch.inputs["genre_ids"][1] == 0  # bc
    assert task.class_name(int(batch.inputs["genre_ids"][0])) == "nw"
    assert {g.name: sorted(set(g.group)) for g in task.groupings("test")} == {"genre": [0, 3]}


def test_unknown_genres_are_refused(tmp_path):
    write_conll(tmp_path)
    text = column_document("xx/made/0001")
    (tmp_path / "test.english.v4_gold_conll").write_text(text)
    with pytest.raises(DataError, match="xx/made/0001_0 is of genre 'xx'; expected one of bc"):
        opened(tmp_path / "cache", tmp_path)


def test_loss_of_the_task_is_that_of_the_model(cache, folder):
    task = opened(cache, folder)
    model = make_model(make_experiment(task), task).eval()
    batch = read_whole(task, "test")
    inputs = model_inputs(model, batch.inputs, torch.device("cpu"))
    with torch.no_grad():
        expected = model(**inputs, labels=batch.targets).loss.item()
    found = evaluate(model, task, "test", batch_size=2, device=torch.device("cpu")).score
    assert found.loss == pytest.approx(expected, rel=1e-5)


def test_dummy_batches_are_those_of_the_longest_documents(cache, folder):
    task = opened(cache, folder)
    batch, dummy = read_whole(task, "train"), make_dummy_batch(task, 6)
    assert dummy.keys() == batch.inputs.keys() | {"labels"}
    assert {k: x.shape for k, x in batch.inputs.items()} == {
        k: x.shape for k, x in dummy.items() if k != "labels"
    }
    made = make_experiment(task)
    assert measure_step_memory(make_model(made, task), task, made.config.training).working > 0
    assert forward_flops(made.config, task) > 0


def test_answers_of_a_run_are_a_file_for_the_reference_scorer(cli, tmp_path, cache, folder):
    paths = tiny.paths(tmp_path / "runs", cache)
    task = opened(cache, folder)
    made = make_experiment(task, changes={"training.steps": 15, "training.evaluate_every": 15})
    run(made, task, paths)
    (record,) = load_results([paths.runs])
    assert set(record.scores["test"].metrics) == {"conll_f1", "muc_f1", "b_cubed_f1", "ceaf_f1"}
    assert record.scores["test"].num_targets == 2
    output = tmp_path / "test.conll"
    places = ["--cache", cache, "--data", folder, "--device", "cpu"]
    out, _ = cli.done("answers", paths.record_file(made), "--output", output, *places)
    assert "answers to 2 documents of test in" in out
    response = {x.id: x.clusters for x in read_documents(output)}
    key = {x.id: x.clusters for x in read_documents(folder / "test.english.v4_gold_conll")}
    assert response.keys() == key.keys()
    assert any(response.values())
    counts = [conll_counts(response[x], key[x]) for x in key]
    score = CONLL.finalize(np.sum(counts, axis=0))
    assert float(score) == pytest.approx(record.scores["test"].metrics["conll_f1"], abs=1e-9)


@pytest.mark.parametrize("most", [128, 1])
def test_first_tokens_of_sentences_are_global_on_request(cache, folder, most):
    task = opened(cache, folder, global_tokens="boundaries", boundaries=most, windows=3)
    assert task.num_global_tokens == min(64, 1 + most)
    batch = next(task.batches("test", batch_size=2))
    numbers = batch.inputs["sentence_ids"]
    for own, mask, sentences in zip(
        batch.inputs["attention_mask"].flatten(0, 1),
        batch.inputs["global_attention_mask"].flatten(0, 1),
        numbers.flatten(0, 1),
        strict=True,
    ):
        firsts = [
            place
            for place, number in enumerate(sentences.tolist())
            if number >= 0 and number != sentences[place - 1]
        ]
        assert mask.nonzero().flatten().tolist() == ([0, *firsts[:most]] if own.any() else [])
    first = next(opened(cache, folder, global_tokens="first").batches("test", batch_size=2))
    assert first.inputs["global_attention_mask"].sum(-1).flatten().tolist() == [1, 1]
    plain = next(opened(cache, folder).batches("test", batch_size=2))
    assert "global_attention_mask" not in plain.inputs
