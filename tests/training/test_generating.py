"""Scores of generated texts: the search itself, batches, selection, clocks."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
import torch

import paper_files
import tiny
from longspan.arena import make_model, run
from longspan.arena.finished_run import evaluate_run
from longspan.config import TaskConfig
from longspan.metrics.summaries import ROUGE, rouge
from longspan.tasks import build
from longspan.training.arguments import model_inputs
from longspan.training.distributed.group import SINGLE_PROCESS
from longspan.training.evaluate import evaluate
from longspan.training.generating import generate_tokens

CPU = torch.device("cpu")
OPTIONS = {
    "length": 24,
    "target_length": 10,
    "vocabulary": 32,
    "beams": 3,
    "global_tokens": "first",
    "no_repeat_ngram_size": 2,
}
WIDE = {"model.initializer_range": 1.0}  # so that texts differ between documents
SMALL = {"mechanism.window": 4, "training.steps": 4, "training.batch_size": 8}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    paper_files.write_papers(folder / "papers")
    return folder


def build_task(cache, **options):
    task = build("pubmed_summarization", {**OPTIONS, **options})
    task.open(cache, cache / "papers")
    return task


def experiment(task, changes=None, mechanism="longformer"):
    base = tiny.experiment(mechanism, changes={**SMALL, **(changes or {})})
    config = TaskConfig(name=task.info.name, version=1, options=dataclasses.asdict(task.options))
    return dataclasses.replace(base, config=dataclasses.replace(base.config, task=config))


def generated(model, task, rows, batch_size=4):
    """Return the texts of some rows of test."""
    texts = {}
    for batch in task.batches("test", batch_size=batch_size, rows=np.array(rows)):
        inputs = model_inputs(model, batch.inputs, CPU)
        with torch.no_grad():
            output = model(**inputs)
        ids = generate_tokens(model, inputs, output, task.generation, SINGLE_PROCESS)
        texts |= dict(
            zip(batch.rows.tolist(), map(task.decode_generated, ids.numpy()), strict=True)
        )
    return [texts[row] for row in rows]


def greedy(model, task, row):
    """Return the most probable tokens, from forward passes over the whole text so far."""
    (batch,) = task.batches("test", batch_size=1, rows=np.array([row]))
    inputs = model_inputs(model, batch.inputs, CPU)
    chosen, ids = task.generation, [task.generation["decoder_start_token_id"]]
    while len(ids) <= chosen["max_new_tokens"] and (
        len(ids) == 1 or ids[-1] != chosen["eos_token_id"]
    ):
        given = {**inputs, "decoder_input_ids": torch.tensor([ids])}
        del given["decoder_attention_mask"]
        with torch.no_grad():
            scores = model(**given).logits[0, -1]
        scores[chosen["suppress_tokens"] or []] = -torch.inf
        if len(ids) <= chosen["min_new_tokens"]:
            scores[chosen["eos_token_id"]] = -torch.inf
        # The start is the end token, as in BART: a repeated pair of tokens is no pair of a text.
        pairs = set(itertools.pairwise(ids))
        for token in range(len(scores)):
            if (ids[-1], token) in pairs:
                scores[token] = -torch.inf
        ids.append(int(scores.argmax()))
    return task.decode_generated(np.array(ids[1:]))


def test_greedy_texts_are_those_of_whole_forward_passes(cache):
    task = build_task(cache, beams=1, min_tokens=4)
    model = make_model(experiment(task, WIDE), task).eval()
    found = generated(model, task, [0, 1])
    assert found == [greedy(model, task, row) for row in (0, 1)]
    assert all(found)


def test_texts_do_not_depend_on_the_batch(cache):
    task = build_task(cache, min_tokens=4)
    model = make_model(experiment(task, WIDE), task).eval()
    alone = [generated(model, task, [row])[0] for row in range(4)]
    assert generated(model, task, [2, 0, 3, 1]) == [alone[row] for row in (2, 0, 3, 1)]
    assert len(set(alone)) > 1


def test_scores_are_of_every_example(cache):
    task = build_task(cache)
    model = make_model(experiment(task), task).eval()
    found = evaluate(model, task, "test", batch_size=3, device=CPU)
    texts = generated(model, task, list(range(4)))
    references = [task.reference("test", row) for row in range(4)]
    expected = [rouge(*x, "rouge-score") for x in zip(texts, references, strict=True)]
    assert found.score.num_examples == 4
    for name in ROUGE["rouge-score"]:
        mean = sum(one[name] for one in expected) / 4
        assert found.score.metrics[name] == pytest.approx(mean)
    assert found.statistics[:, 0] == pytest.approx([one["rouge1"] for one in expected])
    assert next(iter(found.score.metrics)) == "rouge1"
    assert found.score.metrics["perplexity"] == pytest.approx(np.exp(found.score.loss))


def test_selection_generates_nothing(cache, monkeypatch):
    task = build_task(cache)
    model = make_model(experiment(task), task).eval()
    monkeypatch.setattr(type(model), "generate", None)
    found = evaluate(model, task, "validation", batch_size=3, device=CPU, generate=False)
    assert list(found.score.metrics) == ["perplexity"]
    assert found.score.num_examples == 5


def test_generation_is_timed_and_counts_once(cache):
    task = build_task(cache)
    model = make_model(experiment(task), task).eval()
    entered = []

    @contextlib.contextmanager
    def timed():
        entered.append(1)
        yield

    evaluate(model, task, "test", batch_size=2, device=CPU, timed=timed)
    assert len(entered) == 2


def test_run_selects_by_perplexity_and_scores_by_rouge(cache, tmp_path):
    task = build_task(cache)
    made = experiment(task, {"training.evaluate_every": 2})
    result = run(made, task, tiny.paths(tmp_path / "runs", cache))
    assert result.metric == "rouge1"
    assert result.selection_metric == "perplexity"
    assert [list(point.validation_metrics) for point in result.curve] == [["perplexity"]] * 2
    best = min(result.curve, key=lambda point: point.validation_metrics["perplexity"])
    assert result.selected_step == best.step
    sizes = {split: score.num_examples for split, score in result.scores.items()}
    assert sizes == {"train": 5, "validation": 5, "test": 4}
    for score in result.scores.values():
        assert set(score.metrics) == {*ROUGE["rouge-score"], "perplexity"}
    assert result.rules == {"validation": {"lead": 1.0}, "test": {"lead": 1.0}}
    # how texts were generated
    assert result.config.task.options["beams"] == 3
    assert result.inference.examples_per_second > 0
    (path,) = (tmp_path / "runs").rglob("longformer-*.json")
    paths = dataclasses.replace(tiny.paths(tmp_path / "runs", cache), data=cache / "papers")
    again, _ = evaluate_run(path, "test", paths)
    expected = result.scores["test"]
    assert again.score.metrics == pytest.approx(expected.metrics)
    assert again.score.loss == pytest.approx(expected.loss)


def test_checkpoint_generates_as_it_was_scored(cache):
    task = build_task(cache)
    chosen = make_model(experiment(task), task).generation_config
    assert (chosen.num_beams, chosen.max_new_tokens, chosen.no_repeat_ngram_size) == (3, 10, 2)
    assert chosen.eos_token_id == chosen.decoder_start_token_id == task.end_token
