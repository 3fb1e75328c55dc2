"""Final evaluation: a sample of the training split without dropout, and the cost of inference."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tiny
from longspan.arena import make_model
from longspan.data.store import Examples, Ragged
from longspan.memory import PeakMemory
from longspan.tasks.batching import sample_rows, scored_targets
from longspan.training import fit, inference
from longspan.training.evaluate import evaluate
from longspan.training.final_evaluation import evaluate_final
from longspan.training.inference import evaluate_timed

CPU = torch.device("cpu")


@pytest.fixture
def model(listops):
    return make_model(tiny.experiment(changes={"model.hidden_dropout_prob": 0.5}), listops)


def score_rows(model, task, split, rows):
    """Compute accuracy, loss and the largest class, example by example, without dropout."""
    model.eval()
    examples = task.dataset.splits[split]
    hits, losses = [], []
    for row in rows:
        ids = torch.from_numpy(examples.tokens[row].astype(np.int64))[None]
        with torch.no_grad():
            logits = model(ids).logits[0]
        label = torch.tensor(int(examples.labels[row]))
        hits.append(int(logits.argmax() == label))
        losses.append(float(F.cross_entropy(logits, label)))
    model.train()
    majority = np.bincount(examples.labels[rows]).max() / len(rows)
    return np.array(hits), np.mean(losses), majority


def test_rows_of_training_split_are_scored_in_their_order(model, listops):
    rows = sample_rows(200, 30)
    hits, loss, majority = score_rows(model, listops, "train", rows)
    found = evaluate(model, listops, "train", batch_size=7, device=CPU, rows=rows)
    assert found.statistics.tolist() == [[hit, 1] for hit in hits.tolist()]
    assert found.num_targets.tolist() == [1] * 30
    assert found.score.metrics["accuracy"] == hits.mean()
    assert found.score.loss == pytest.approx(loss, rel=1e-5)
    assert (found.score.num_examples, found.score.majority_baseline) == (30, majority)


def test_targets_of_sampled_tokens_are_in_order_of_rows():
    # Stored targets are a class plus 1, or 0 where unscored.
    targets = Ragged.pack([np.array(x) for x in ([0, 2, 2], [3, 0], [3, 3, 1])], np.uint16)
    examples = Examples(tokens=targets, labels=np.zeros(3, np.uint8), targets=targets)
    assert scored_targets(examples, None).tolist() == [1, 1, 2, 2, 2, 0]
    assert scored_targets(examples, np.array([2, 0])).tolist() == [2, 2, 0, 1, 1]


def test_samples_are_nested_random_and_equal_in_every_run():
    small, large = sample_rows(1_000, 100), sample_rows(1_000, 500)
    assert len(small) == 100
    assert set(small) < set(large)
    assert (np.diff(small) > 0).all()
    assert 400 < small.mean() < 600
    assert sample_rows(10, 100).tolist() == list(range(10))
    assert sample_rows(1_000, 100).tolist() == small.tolist()


@pytest.mark.parametrize(("count", "size"), [(None, 40), (0, None), (25, 25), (10_000, 200)])
def test_training_sample_has_configured_size(model, listops, count, size):
    final = evaluate_final(model, listops, count, batch_size=16, device=CPU)
    assert final.scores.keys() == ({"test"} if size is None else {"test", "train"})
    assert final.test.score == evaluate(model, listops, "test", batch_size=16, device=CPU).score
    if size is not None:
        rows = sample_rows(200, size)
        _, loss, _ = score_rows(model, listops, "train", rows)
        assert final.train.num_examples == size
        assert final.train.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("test", [True, False])
def test_run_scores_training_sample_of_selected_model_and_trial_does_not(
    model, listops, tmp_path, test
):
    config = tiny.experiment(changes={"training.train_eval_examples": 50}).config.training
    outcome = fit(model, listops, config, seed=0, folder=tmp_path, device="cpu", test=test)
    if not test:
        assert outcome.scores.keys() == {"validation"}
        assert outcome.final is None
        return
    assert outcome.scores.keys() == {"validation", "test", "train"}
    # `fit` leaves the selected weights in the model.
    hits, loss, _ = score_rows(model, listops, "train", sample_rows(200, 50))
    assert outcome.scores["train"].metrics["accuracy"] == hits.mean()
    assert outcome.scores["train"].loss == pytest.approx(loss, rel=1e-5)


def test_inference_time_is_that_of_forward_passes_after_warm_up(model, listops, monkeypatch):
    """Use a fake clock: a forward pass takes 2 s, the first one 50 s, metrics take 1,000 s."""
    now, calls = [0.0], []

    class Clock:
        perf_counter = staticmethod(lambda: now[0])

    def statistics(*args):
        now[0] += 1_000.0
        return plain_statistics(*args)

    def forward(*args, **kwargs):
        now[0] += 2.0 if calls else 50.0
        calls.append(len(kwargs["input_ids"]))
        return plain(*args, **kwargs)

    plain, plain_statistics = model.forward, listops.example_statistics
    monkeypatch.setattr(inference, "time", Clock)
    monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(listops, "example_statistics", statistics)
    found, cost = evaluate_timed(model, listops, "test", batch_size=16, device=CPU)
    assert calls == [16, 16, 16, 12]
    assert found.score.num_examples == 44
    assert cost.examples_per_second == pytest.approx(44 / 6)
    # The clock is detached.
    evaluate(model, listops, "test", batch_size=16, device=CPU)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_inference_memory_is_peak_of_evaluation(model, listops, monkeypatch):
    plain, held = model.forward, torch.zeros(2**22)

    def forward(*args, **kwargs):
        held.clone().add_(1)
        torch.ones(2**25).sum()
        return plain(*args, **kwargs)

    monkeypatch.setattr(model, "forward", forward)
    _, cost = evaluate_timed(model, listops, "test", batch_size=16, device=CPU)
    probe = PeakMemory("cpu")
    probe.start()
    if probe.peak() is None:
        assert cost.peak_memory is None
    else:
        assert 2**27 <= cost.peak_memory < 2**28
