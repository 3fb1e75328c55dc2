"""A run on an imported corpus, from batches to a record with scores by document."""

import dataclasses

import numpy as np
import pytest
import torch

import tiny
from corpus_files import make_task, write_folder
from longspan.arena import make_model, run
from longspan.results import load_results, pack_scores
from longspan.tasks import build, configure, register_corpora
from longspan.training.evaluate import evaluate
from longspan.validation.scores import check_example_scores


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    make_task(folder, write_folder(folder / "files"), test=0.2)
    yield folder
    register_corpora(folder / "none")


def experiment(**changes):
    base = tiny.experiment("local", changes=changes)
    task = configure("mine", {"length": 32})
    return dataclasses.replace(base, config=dataclasses.replace(base.config, task=task))


def opened(cache):
    register_corpora(cache)
    task = build("mine", {"length": 32})
    task.open(cache)
    return task


def test_record_has_the_perplexity_and_its_statistics_by_document(cache, tmp_path):
    task = opened(cache)
    result = run(experiment(), task, tiny.paths(tmp_path / "runs", cache))
    scores = result.example_scores
    assert result.metric == "perplexity"
    assert set(result.scores["test"].metrics) == {"perplexity", "accuracy"}
    # of 300 ids, hardly trained
    assert 20 < result.score() < 3000
    assert scores.unit == "document"
    statistics = scores.unpack()
    assert len(statistics) == 5
    assert result.scores["test"].num_examples > 5
    assert np.exp(statistics[:, 0].sum() / statistics[:, 1].sum()) == pytest.approx(result.score())
    assert statistics[:, 1].sum() == result.scores["test"].num_targets
    assert load_results(tmp_path / "runs") == [result]


def test_statistics_of_windows_are_summed_by_document(cache):
    task = opened(cache)
    model = make_model(experiment(), task)
    scored = evaluate(model, task, "test", batch_size=4, device=torch.device("cpu"))
    packed = pack_scores("perplexity", scored.statistics, task.units("test"), task.unit)
    units = task.units("test")
    expected = [scored.statistics[units == unit].sum(0) for unit in range(units.max() + 1)]
    assert np.allclose(packed.unpack(), expected)
    assert pack_scores("perplexity", scored.statistics).unit == "example"


def test_more_documents_than_examples_are_an_error(cache, tmp_path):
    task = opened(cache)
    result = run(experiment(), task, tiny.paths(tmp_path / "runs", cache))

    class File:
        record = result

        def finding(self, *parts):
            return parts

        def compare(self, field, found, expected):
            if found != pytest.approx(expected):
                yield field

    assert list(check_example_scores(File())) == []
    many = pack_scores("perplexity", np.repeat(result.example_scores.unpack(), 50, axis=0))
    packed = dataclasses.replace(many, unit="document")
    File.record = dataclasses.replace(result, example_scores=packed)
    assert [x[0] for x in check_example_scores(File())] == ["example_scores"]
