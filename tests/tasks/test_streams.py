"""Streams: segments, windows and walks against a plain reading of the documents."""

import itertools

import numpy as np
import pytest
import torch

import toy_streams
from longspan.errors import OptionError
from longspan.metrics import get_metric
from longspan.tasks import IGNORE
from longspan.tasks.batching import find_mask
from longspan.tasks.language.segments import cut_windows, evaluation_walks, training_walks

TEXTS = toy_streams.documents("train")
STORED = toy_streams.stored(TEXTS)


def open_task(tmp_path, **options):
    task = toy_streams.ToyStream(toy_streams.ToyStream.Options(**options))
    task.open(tmp_path)
    return task


def scored_targets(segments):
    """Return (document, place) of every scored target, in the order of the segments."""
    begins = np.cumsum([0, *(len(x) for x in TEXTS)])
    found = []
    for row in range(len(segments)):
        document = int(segments.documents[row])
        start = int(segments.starts[row] - begins[document])
        own = segments.tokens(row)
        np.testing.assert_array_equal(own, TEXTS[document][start : start + len(own)])
        last = start + int(segments.lengths[row])
        found += [(document, place) for place in range(last - segments.scored[row] + 1, last + 1)]
    return found


@pytest.mark.parametrize(("length", "stride"), [(16, 16), (16, 5), (50, 1), (7, 3), (1_000, 2)])
def test_windows_score_every_target_once_with_enough_context(length, stride):
    segments = cut_windows(STORED, length, stride)
    expected = [(i, place) for i, x in enumerate(TEXTS) for place in range(1, len(x))]
    assert scored_targets(segments) == expected
    begins = np.cumsum([0, *(len(x) for x in TEXTS)])[segments.documents]
    context = segments.lengths - segments.scored
    later = segments.starts > begins
    assert (context[later] >= length - stride).all()
    assert (segments.lengths <= length).all()


def test_a_limit_keeps_the_first_tokens_of_each_document():
    segments = cut_windows(STORED, 16, 16, limit=50)
    kept = [(i, place) for i, x in enumerate(TEXTS) for place in range(1, min(len(x), 50))]
    assert scored_targets(segments) == kept


def test_a_document_of_one_token_has_no_segment():
    stored = toy_streams.stored([TEXTS[0], TEXTS[1][:1], TEXTS[2]])
    segments = cut_windows(stored, 16, 16)
    assert set(segments.documents) == {0, 2}


def test_training_walks_read_documents_in_order_and_say_where_they_continue():
    segments, rows = cut_windows(STORED, 16, 16), 4
    per_epoch = len(segments) // rows
    steps = list(itertools.islice(training_walks(segments, rows, 3, 0), 2 * per_epoch))
    for epoch in (steps[:per_epoch], steps[per_epoch:]):
        seen = np.concatenate([chosen for chosen, _ in epoch])
        assert len(set(seen.tolist())) == rows * per_epoch
        assert not epoch[0][1].any()
        for (before, _), (chosen, continues) in itertools.pairwise(epoch):
            for one, other, flag in zip(before, chosen, continues, strict=True):
                ends = segments.starts[one] + segments.lengths[one]
                same = segments.documents[one] == segments.documents[other]
                assert flag == (same and segments.starts[other] == ends)
    first, second = (np.stack([x for x, _ in steps[at:][:per_epoch]]) for at in (0, per_epoch))
    assert (first != second).any()
    resumed = list(itertools.islice(training_walks(segments, rows, 3, per_epoch - 2), 4))
    for (one, flags), (other, others) in zip(steps[per_epoch - 2 :][:4], resumed, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(flags, others)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10_000])
def test_evaluation_walks_read_every_row_once(batch_size):
    segments = cut_windows(STORED, 16, 16)
    steps = list(evaluation_walks(segments, np.arange(len(segments)), batch_size, 0))
    assert sorted(np.concatenate([x for x, _ in steps]).tolist()) == list(range(len(segments)))
    for (before, _), (rows, continues) in itertools.pairwise(steps):
        np.testing.assert_array_equal(rows, before[: len(rows)] + 1)
        same = segments.documents[rows] == segments.documents[rows - 1]
        np.testing.assert_array_equal(continues, same)


def test_targets_are_the_next_tokens(tmp_path):
    task = open_task(tmp_path)
    for batch in itertools.islice(task.batches("train", batch_size=3), 20):
        inputs, targets = batch.inputs["input_ids"].numpy(), batch.targets.numpy()
        both = (targets[:, :-1] != IGNORE) & find_mask(batch.inputs, "input_ids").numpy()[:, 1:]
        np.testing.assert_array_equal(targets[:, :-1][both], inputs[:, 1:][both])
        assert (find_mask(batch.inputs, "input_ids").numpy() == (targets != IGNORE)).all()


def test_sliding_windows_continue_nothing_and_score_their_last_tokens(tmp_path):
    task = open_task(tmp_path, evaluation="sliding", evaluation_length=24, stride=4)
    batches = list(task.batches("validation", batch_size=5))
    assert all(batch.continues is None for batch in batches)
    total = sum(int((batch.targets != IGNORE).sum()) for batch in batches)
    assert total == sum(size - 1 for size in toy_streams.SIZES["validation"])
    assert task.length == 24


def test_a_sample_of_the_training_split_is_one_walk(tmp_path):
    task = open_task(tmp_path)
    rows = task.sample_rows("train", 12)
    assert (np.diff(rows) == 1).all()
    assert len(rows) == 12


def test_statistics_count_what_the_metric_names(tmp_path):
    task = open_task(tmp_path)
    batch = next(task.batches("validation", batch_size=2))
    logits = torch.randn(*batch.targets.shape, task.vocab_size)
    metrics = [get_metric(name) for name in ("bits_per_byte", "accuracy")]
    found = task.example_statistics(metrics, "validation", batch.rows, logits, batch.targets)
    log_p = logits.log_softmax(-1)
    for row, targets in enumerate(batch.targets):
        scored = targets != IGNORE
        nats = -log_p[row, scored].gather(1, targets[scored, None]).sum()
        torch.testing.assert_close(found["bits_per_byte"][row, 0], nats.double())
        assert found["bits_per_byte"][row, 1] == scored.sum()
        assert found["accuracy"][row, 1] == scored.sum()


def test_units_are_blocks_where_there_are_few_documents(tmp_path):
    task = open_task(tmp_path)
    units = task.units("test")
    assert (np.diff(units) >= 0).all()
    assert len(set(units.tolist())) == min(100, task.size("test"))
    many = toy_streams.stored([x[:20] for x in TEXTS] * 3)
    segments = cut_windows(many, 8, 8)
    task._segments["test"] = segments
    np.testing.assert_array_equal(task.units("test"), segments.documents)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stride": 4}, "evaluation=sliding"),
        ({"evaluation": "sliding", "stride": 17}, "at most the 16 tokens"),
        ({"evaluation": "sliding", "stride": 0}, "greater than 0"),
        ({"length": 0}, "greater than 0"),
        ({"held_out_tokens": 1}, "nothing to predict"),
    ],
)
def test_windows_that_cannot_be_are_refused(options, reason):
    with pytest.raises(OptionError, match=reason):
        toy_streams.ToyStream.Options(**options)


def test_documents_round_trip_through_the_vocabulary(tmp_path):
    task = open_task(tmp_path)
    text = task.decode(TEXTS[0])
    np.testing.assert_array_equal(task.encode(text), TEXTS[0])
    assert task.show("train", 0).endswith(text[:17])
