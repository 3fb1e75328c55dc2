"""Batches: what is in them, in which order, and that a resumed run sees the same ones."""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from longspan.data import cache as cached
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.errors import DataError, OptionError, RunError, UnknownNameError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.base import TaskInfo, check_whole, published
from longspan.tasks.scoring import IGNORE
from longspan.tasks.sequence import SequenceTask, collate

SMALL = {
    "train": 70,
    "validation": 23,
    "test": 11,
    "max_depth": 4,
    "max_args": 5,
    "min_length": 10,
    "max_length": 40,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairOptions:
    rows: int = 7


class Pairs(SequenceTask):
    """Row i: i + 1 tokens of value i + 1, beside 2 tokens; it is not registered."""

    Options = PairOptions
    info = TaskInfo(
        name="pairs",
        version=1,
        title="",
        summary="",
        source="",
        checksum=None,
        license="",
        sizes={},
        vocabulary=100,
        classes=2,
        metric="accuracy",
        higher_is_better=True,
        chance=0.5,
        pair=True,
        published=(),
    )
    length = 9

    def make(self, data, scratch, report):
        rows = self.options.rows
        examples = Examples(
            tokens=Ragged.pack([np.full(n + 1, n + 1, np.uint8) for n in range(rows)], np.uint8),
            second=Ragged.pack([np.array([9, n + 1], np.uint8) for n in range(rows)], np.uint8),
            labels=np.arange(rows, dtype=np.uint8) % 2,
        )
        return BuildOutput(splits=dict.fromkeys(SPLITS, examples), source="", license="", facts={})

    def show(self, split, row):
        return str(self._example(split, row))


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    task = build("listops", SMALL)
    task.open(tmp_path_factory.mktemp("cache"))
    return task


def take(batches, count):
    return [tuple(batch.rows.tolist()) for batch in itertools.islice(batches, count)]


def test_batch_is_its_rows_padded_to_the_longest_rounded_up_within_the_length_of_the_task(task):
    examples = task.built.splits["train"]
    for batch in itertools.islice(task.batches("train", batch=8), 20):
        lengths = [len(examples.tokens[row]) for row in batch.rows.tolist()]
        width = min(math.ceil(max(lengths) / 64) * 64, task.length)
        assert batch.inputs.shape == batch.key_mask.shape == (8, width)
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        for line, row in enumerate(batch.rows.tolist()):
            real = torch.tensor(examples.tokens[row].astype(np.int64))
            padding = batch.inputs.shape[1] - len(real)
            assert torch.equal(batch.inputs[line], torch.nn.functional.pad(real, (0, padding)))
            assert batch.targets[line] == task.labels("train")[row] == examples.labels[row]
        assert torch.equal(batch.key_mask, batch.inputs > 0)
        assert batch.inputs_b is None


def test_pairs_have_their_second_sequence(tmp_path):
    task = Pairs()
    task.open(tmp_path)
    task.open(tmp_path)
    (batch,) = task.batches("test", batch=10)
    assert batch.rows.tolist() == list(range(7))
    padding = [0] * (task.length - 2)
    assert batch.inputs_b.tolist() == [[9, n + 1, *padding] for n in range(7)]
    assert torch.equal(batch.key_mask_b, batch.inputs_b > 0)
    assert batch.inputs.shape == (7, task.length)


def ids(padded):
    return torch.from_numpy(padded.astype(np.int64))


@pytest.mark.parametrize(
    "lengths", [[5] * 9, [5] * 4 + [3] * 5, [1] * 9, [7, 5, 5, 5, 1, 2, 3, 4, 9]]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("most", [9, 63, 64, 65])
def test_rows_of_one_length_are_gathered_like_any_others(lengths, dtype, most):
    draw = np.random.default_rng(0)
    sequences = [draw.integers(0, 200, length).astype(dtype) for length in lengths]
    examples = Examples(tokens=Ragged.pack(sequences, dtype), labels=np.arange(9, dtype=np.uint8))
    for rows in ([0, 1, 2, 3], [3, 0, 3], [8], list(range(9)), [1, 2]):
        batch = collate(examples, np.array(rows), ids, most)
        width = min(64, most)
        for line, row in enumerate(rows):
            padding = [0] * (width - lengths[row])
            assert batch.inputs[line].tolist() == [*sequences[row].tolist(), *padding]
            assert batch.key_mask[line].tolist() == [True] * lengths[row] + [False] * len(padding)
        assert batch.targets.tolist() == rows


@pytest.mark.parametrize(
    ("longest", "width"),
    [(1, 64), (64, 64), (65, 128), (128, 128), (129, 192), (193, 200), (200, 200)],
)
def test_few_widths_serve_many_lengths(longest, width):
    sequences = [np.ones(longest, np.uint8), np.ones(1, np.uint8)]
    examples = Examples(tokens=Ragged.pack(sequences, np.uint8), labels=np.zeros(2, np.uint8))
    for rows in ([0], [0, 1]):
        batch = collate(examples, np.array(rows), ids, 200)
        assert batch.inputs.shape == (len(rows), width)
        assert batch.key_mask.sum().item() == sum(len(sequences[row]) for row in rows)


def test_targets_of_tokens_are_their_classes_and_the_rest_is_left_out():
    examples = Examples(
        tokens=Ragged.pack([np.array([7, 8, 9]), np.array([6])], np.uint8),
        targets=Ragged.pack([np.array([0, 4, 1]), np.array([2])], np.uint8),
        labels=np.zeros(2, np.uint8),
    )
    batch = collate(examples, np.array([1, 0]), ids, 3)
    assert batch.targets.tolist() == [[1, IGNORE, IGNORE], [IGNORE, 3, 0]]
    assert batch.key_mask.tolist() == [[True, False, False], [True, True, True]]


def test_a_row_changed_on_the_disk_is_never_in_a_batch(tmp_path, monkeypatch):
    """Not even of a file that is too large to be read through when it is opened."""
    monkeypatch.setattr(cached, "_READ_THROUGH", 0)
    Pairs().open(tmp_path)
    (path,) = tmp_path.rglob("test.arrow")
    raw = bytearray(path.read_bytes())
    raw[raw.index(bytes([5] * 5)) + 2] ^= 1  # row 4
    path.write_bytes(raw)
    task = Pairs()
    task.open(tmp_path)
    batches = task.batches("test", batch=2)
    assert take(batches, 2) == [(0, 1), (2, 3)]
    with pytest.raises(DataError, match=r"test\.arrow: row 4 is not as it was written"):
        next(batches)


def test_an_epoch_is_a_permutation_and_drops_only_its_partial_batch(task):
    rows = take(task.batches("train", batch=16, seed=1), 12)
    first, second, third = (sum(rows[4 * n : 4 * n + 4], ()) for n in range(3))
    for epoch in (first, second, third):
        assert len(set(epoch)) == 64
    assert len({first, second, third}) == 3


def test_seeds_give_different_orders(task):
    orders = {tuple(take(task.batches("train", batch=7, seed=seed), 10)) for seed in range(4)}
    assert len(orders) == 4


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 29, 30])
def test_resumed_batches_are_those_of_an_uninterrupted_run(task, start):
    whole = take(task.batches("train", batch=7, seed=3), 40)
    assert take(task.batches("train", batch=7, seed=3, start=start), 40 - start) == whole[start:]


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("batch", [1, 4, 11, 100])
def test_evaluation_yields_every_example_once_by_length(task, split, batch):
    batches = list(task.batches(split, batch=batch, seed=5))
    rows = torch.cat([one.rows for one in batches]).tolist()
    assert sorted(rows) == list(range(task.size(split)))
    lengths = torch.cat([one.key_mask.sum(1) for one in batches]).tolist()
    assert lengths == sorted(lengths)
    whole = take(iter(batches), 1000)
    assert take(task.batches(split, batch=batch, start=2), 1000) == whole[2:]


def test_batch_of_the_whole_train_split_works_and_a_larger_one_does_not(task):
    assert len(next(task.batches("train", batch=70)).rows) == 70
    with pytest.raises(OptionError, match=r"batch=71 is larger than the train split \(70"):
        task.batches("train", batch=71)


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"batch": 1, "seed": -1}, {"batch": 1, "start": -1}]
)
def test_arguments_out_of_range_are_refused_at_once(task, wrong):
    with pytest.raises(OptionError, match="expected at least 1, 0 and 0"):
        task.batches("train", **wrong)


def test_unopened_task_says_so():
    with pytest.raises(RunError, match=r"task 'listops' is not open; call open\(cache\) first"):
        build("listops").size("train")


@pytest.mark.parametrize("row", [-1, 11])
def test_row_out_of_range_is_refused(task, row):
    with pytest.raises(OptionError, match=rf"row {row} of 'test': expected 0 to 10"):
        task.show("test", row)


def test_batches_are_the_same_in_another_process(task, tmp_path):
    script = f"""
import itertools, json, pathlib
from longspan.tasks import build
task = build("listops", {SMALL!r})
task.open(pathlib.Path({str(tmp_path)!r}))
batches = itertools.islice(task.batches("train", batch=7, seed=2), 15)
print(json.dumps([task.checksum, [one.inputs.tolist() for one in batches]]))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "99"}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    checksum, inputs = json.loads(run.stdout)
    assert checksum == task.checksum
    batches = itertools.islice(task.batches("train", batch=7, seed=2), 15)
    assert inputs == [one.inputs.tolist() for one in batches]


def test_global_random_state_is_neither_used_nor_changed(task):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = take(task.batches("train", batch=7), 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert take(task.batches("train", batch=7), 5) == first


def test_unknown_task_and_option_are_refused():
    with pytest.raises(UnknownNameError, match="no task called 'listop'; did you mean listops"):
        build("listop")
    with pytest.raises(UnknownNameError, match="'lenght'; did you mean length"):
        build("text", {"lenght": 5})


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_complete_record(name):
    task = TASKS[name]()
    info = task.info
    assert info.name == name
    assert all((info.title, info.summary, info.source, info.license, info.metric))
    assert set(info.sizes) == set(SPLITS)
    assert info.vocabulary > 1
    assert info.chance == 1 / info.classes
    protocols = {one.protocol for one in info.published}
    # diagnostics are nobody's benchmark, and on Path-X none of Long Range Arena's models learned
    unpublished = name in {"copying", "recall", "path_x"}
    assert not protocols if unpublished else {"lra-paper", "lra-small"} <= protocols
    keys = [(one.mechanism, one.source) for one in info.published]
    assert len(set(keys)) == len(keys)
    assert all(0.1 < one.accuracy < 0.9 and one.source for one in info.published)
    assert task.length > 0
    for field in dataclasses.fields(task.Options):
        assert field.metadata["help"]


@dataclasses.dataclass
class Numbers:
    rows: object = 3
    limit: object = None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Numbers(rows=1), "rows=1; expected a whole number, 2 or more"),
        (Numbers(rows=2.5), "rows=2.5; expected"),
        (Numbers(rows="4"), "rows='4'; expected"),
        (Numbers(rows=True), "rows=True; expected"),
        (Numbers(rows=None), "rows=None; expected"),
        (Numbers(limit=4), "limit=4; expected a whole number, 5 or more"),
    ],
    ids=str,
)
def test_options_that_are_no_such_whole_numbers_are_refused(wrong, reason):
    with pytest.raises(OptionError, match=reason):
        check_whole(wrong, {"rows": 2, "limit": 5})
    check_whole(Numbers(rows=2, limit=None), {"rows": 2, "limit": 5})


def test_published_scores_become_fractions():
    (one,) = published("p", "s", {"full": 36.37})
    assert (one.mechanism, one.accuracy, one.protocol, one.source) == ("full", 0.3637, "p", "s")
