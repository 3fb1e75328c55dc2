"""A run on an imported corpus, from batches to a record with scores by document."""

import dataclasses

import numpy as np
import pytest
import torch
from callbacks import LogRuns, StopAtStep, reproducible_fields

import tiny
from corpus_files import make_task, prose, write_folder
from longspan.arena import arena, make_model, run
from longspan.results import load_results, pack_scores
from longspan.tasks import build, configure, register_imported
from longspan.training.evaluate import evaluate
from longspan.validation.scores import check_example_scores


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    make_task(folder, write_folder(folder / "files"), test=0.2)
    yield folder
    register_imported(folder / "none")


def experiment(**changes):
    base = tiny.experiment("local", changes=changes)
    task = configure("mine", {"length": 32})
    return dataclasses.replace(base, config=dataclasses.replace(base.config, task=task))


def opened(cache):
    register_imported(cache)
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
    assert load_results([tmp_path / "runs"]) == [result]


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


def spied_batches(cache, tmp_path, mechanism):
    """Train a mechanism; return the masked inputs of each batch by its number."""
    task, seen = opened(cache), {}
    collate = task.collate

    def spy(examples, rows, draw=None):
        batch = collate(examples, rows, draw)
        if draw is not None:
            seen[draw] = batch.rows.tolist(), batch.inputs["input_ids"].tolist()
        return batch

    task.collate = spy
    base = experiment()
    made = tiny.experiment(mechanism)
    config = dataclasses.replace(made.config, task=base.config.task)
    run(dataclasses.replace(made, config=config), task, tiny.paths(tmp_path / mechanism, cache))
    return seen


def test_every_mechanism_has_the_same_masks_at_one_seed(cache, tmp_path):
    first, *others = (spied_batches(cache, tmp_path, x) for x in ("full", "linear", "reformer"))
    steps = range(experiment().config.training.steps)
    assert {draw for draw in first if draw[1] in steps} == {(0, step) for step in steps}
    for other in others:
        assert all(other[0, step] == first[0, step] for step in steps)


def test_an_interrupted_run_goes_on_with_the_next_batch(cache, tmp_path):
    """Sources are mixed by weight, so that the position of each one follows from the batch."""
    few = write_folder(tmp_path / "few", [f"{n} {prose(80, n)}" for n in range(6)])
    many = write_folder(tmp_path / "many", [f"{n} {prose(80, n)}" for n in range(50, 80)])
    own = tmp_path / "cache"
    make_task(own, few, many, name="mixed", weights=(3.0, 1.0), test=0.1)
    changed = {"length": 32, "pack": "stream"}
    made = tiny.experiment()
    config = dataclasses.replace(made.config, task=configure("mixed", changed))
    made = dataclasses.replace(made, config=config)
    assert made.config.task.options["weights"] == [3.0, 1.0]
    whole, other = (tiny.paths(tmp_path / name, own) for name in ("whole", "other"))
    expected, _ = arena([made], whole, LogRuns())
    with pytest.raises(KeyboardInterrupt):
        arena([made], other, StopAtStep(7))
    callback = StopAtStep()
    found, _ = arena([made], other, callback)
    assert callback.steps == list(range(7, 13))
    assert reproducible_fields(found) == reproducible_fields(expected)
