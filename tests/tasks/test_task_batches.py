"""Batches: contents, order, and resumption; registration and metadata of tasks."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from longspan.data import cache as cached
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.errors import DataError, OptionError, RunError, UnknownNameError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.base import Task
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import register
from longspan.tasks.scoring import IGNORE

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


class Pairs(Task):
    """Row i: i + 1 tokens of value i + 1, paired with 2 tokens; not registered."""

    Options = PairOptions
    info = TaskInfo(
        name="pairs",
        title="",
        summary="",
        source="",
        license="",
        vocab_size=100,
        num_classes=2,
        metrics=("accuracy",),
        chance=0.5,
        head="pair_classification",
    )
    length = 9

    def build_splits(self, data, scratch, progress):
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


def test_batch_is_padded_to_a_multiple_of_64_within_the_task_length(task):
    examples = task.dataset.splits["train"]
    for batch in itertools.islice(task.batches("train", batch_size=8), 20):
        lengths = [len(examples.tokens[row]) for row in batch.rows.tolist()]
        width = min(math.ceil(max(lengths) / 64) * 64, task.length)
        assert batch.inputs["input_ids"].shape == batch.inputs["attention_mask"].shape == (8, width)
        assert batch.inputs["input_ids"].dtype == batch.targets.dtype == torch.int64
        for line, row in enumerate(batch.rows.tolist()):
            real = torch.tensor(examples.tokens[row].astype(np.int64))
            padding = batch.inputs["input_ids"].shape[1] - len(real)
            assert torch.equal(
                batch.inputs["input_ids"][line], torch.nn.functional.pad(real, (0, padding))
            )
            assert batch.targets[line] == task.labels("train")[row] == examples.labels[row]
        assert torch.equal(batch.inputs["attention_mask"], batch.inputs["input_ids"] > 0)
        assert "input_ids_b" not in batch.inputs


def test_batch_of_pairs_has_the_second_sequences(tmp_path):
    task = Pairs()
    task.open(tmp_path)
    task.open(tmp_path)
    (batch,) = task.batches("test", batch_size=10)
    assert batch.rows.tolist() == list(range(7))
    padding = [0] * (task.length - 2)
    assert batch.inputs["input_ids_b"].tolist() == [[9, n + 1, *padding] for n in range(7)]
    assert torch.equal(batch.inputs["attention_mask_b"], batch.inputs["input_ids_b"] > 0)
    assert batch.inputs["input_ids"].shape == (7, task.length)


def of_length(length):
    """Return a task whose examples have up to this many tokens."""
    return type("OfLength", (Pairs,), {"length": length})()


@pytest.mark.parametrize(
    ("longest", "width"),
    [(1, 64), (64, 64), (65, 128), (128, 128), (129, 192), (193, 200), (200, 200)],
)
def test_batch_widths_are_multiples_of_64(longest, width):
    sequences = [np.ones(longest, np.uint8), np.ones(1, np.uint8)]
    examples = Examples(tokens=Ragged.pack(sequences, np.uint8), labels=np.zeros(2, np.uint8))
    for rows in ([0], [0, 1]):
        batch = of_length(200).collate(examples, np.array(rows))
        assert batch.inputs["input_ids"].shape == (len(rows), width)
        assert batch.inputs["attention_mask"].sum().item() == sum(
            len(sequences[row]) for row in rows
        )


def test_unscored_tokens_have_ignored_targets():
    examples = Examples(
        tokens=Ragged.pack([np.array([7, 8, 9]), np.array([6])], np.uint8),
        targets=Ragged.pack([np.array([0, 4, 1]), np.array([2])], np.uint8),
        labels=np.zeros(2, np.uint8),
    )
    batch = of_length(3).collate(examples, np.array([1, 0]))
    assert batch.targets.tolist() == [[1, IGNORE, IGNORE], [IGNORE, 3, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[True, False, False], [True, True, True]]


def test_row_changed_on_disk_is_rejected(tmp_path, monkeypatch):
    """A file too large to be verified when it is opened is verified row by row."""
    monkeypatch.setattr(cached, "_READ_THROUGH", 0)
    Pairs().open(tmp_path)
    (path,) = tmp_path.rglob("test.arrow")
    raw = bytearray(path.read_bytes())
    raw[raw.index(bytes([5] * 5)) + 2] ^= 1  # row 4
    path.write_bytes(raw)
    task = Pairs()
    task.open(tmp_path)
    batches = task.batches("test", batch_size=2)
    assert take(batches, 2) == [(0, 1), (2, 3)]
    with pytest.raises(DataError, match=r"test\.arrow: row 4 has changed since it was written"):
        next(batches)


def test_epoch_is_a_permutation_without_its_partial_batch(task):
    rows = take(task.batches("train", batch_size=16, seed=1), 12)
    first, second, third = (sum(rows[4 * n : 4 * n + 4], ()) for n in range(3))
    for epoch in (first, second, third):
        assert len(set(epoch)) == 64
    assert len({first, second, third}) == 3


def test_seeds_give_different_orders(task):
    orders = {tuple(take(task.batches("train", batch_size=7, seed=seed), 10)) for seed in range(4)}
    assert len(orders) == 4


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 29, 30])
def test_resumed_batches_are_those_of_an_uninterrupted_run(task, start):
    whole = take(task.batches("train", batch_size=7, seed=3), 40)
    assert (
        take(task.batches("train", batch_size=7, seed=3, start=start), 40 - start) == whole[start:]
    )


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_evaluation_yields_every_example_once_by_length(task, split, batch_size):
    batches = list(task.batches(split, batch_size=batch_size, seed=5))
    rows = torch.cat([one.rows for one in batches]).tolist()
    assert sorted(rows) == list(range(task.size(split)))
    lengths = torch.cat([one.inputs["attention_mask"].sum(1) for one in batches]).tolist()
    assert lengths == sorted(lengths)
    whole = take(iter(batches), 1000)
    assert take(task.batches(split, batch_size=batch_size, start=2), 1000) == whole[2:]


def test_batch_size_is_limited_by_the_train_split(task):
    assert len(next(task.batches("train", batch_size=70)).rows) == 70
    with pytest.raises(OptionError, match=r"batch_size=71 is larger than the train split \(70"):
        task.batches("train", batch_size=71)


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"batch_size": 1, "seed": -1}, {"batch_size": 1, "start": -1}]
)
def test_arguments_out_of_range_are_rejected(task, wrong):
    with pytest.raises(OptionError, match="expected batch_size >= 1, seed >= 0 and start >= 0"):
        task.batches("train", **wrong)


def test_task_that_is_not_open_is_rejected():
    with pytest.raises(RunError, match=r"task 'listops' is not open; call open\(cache\) first"):
        build("listops").size("train")


def test_order_of_batches_is_the_same_in_every_process_and_version(task):
    first, *_, second = take(task.batches("train", batch_size=7, seed=2), 11)
    assert first == (14, 33, 62, 51, 19, 56, 41)
    assert second == (28, 11, 16, 36, 66, 31, 23)


def test_batches_do_not_use_the_global_random_state(task):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = take(task.batches("train", batch_size=7), 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert take(task.batches("train", batch_size=7), 5) == first


OF_LANGUAGE_MODELS = {
    *("longformer-char", "transformer-xl", "shortformer"),
    *("compressive-transformer", "long-short-char"),
}


OF_MAD = ("compression", "copying", "fuzzy_recall", "memorization", "noisy_recall")


@pytest.mark.parametrize("name", TASKS)
def test_metadata_of_every_task_is_complete(name):
    task = TASKS[name]()
    info = task.info
    assert info.name == name
    assert all((info.title, info.summary, info.source, info.license, info.metrics))
    # Without sizes the build alone tells them.
    assert len({size is None for size in task.sizes.values()}) == 1
    assert task.vocab_size > 1
    # Examples of WikiHop have their own numbers of candidates.
    has_classes = info.metrics[0] == "accuracy" and name != "wikihop"
    # Answers of recall in context are values, and classes all tokens.
    classes = getattr(task.options, "values", task.num_classes)
    assert task.chance == (1 / classes if has_classes else None)
    protocols = {one.protocol for one in info.published}
    # No model of Long Range Arena learned Path-X.
    if name in {"listops", "text", "retrieval", "image", "pathfinder"}:
        assert {"lra-paper", "lra-small"} <= protocols
    else:
        of_papers = {"wikihop": {"wikihop-ablation"}, "arxiv_summarization": {"documents"}}
        of_papers |= {name: {"mad"} for name in OF_MAD}
        if info.head == "causal_lm":
            assert protocols <= OF_LANGUAGE_MODELS
            assert bool(protocols) == (name != "wikitext_2")
        else:
            assert protocols == of_papers.get(name, set())
    keys = [(one.mechanism, one.source, one.metric) for one in info.published]
    assert len(set(keys)) == len(keys)
    bounds = (0.5, 60) if info.head == "causal_lm" else (0.1, 0.9)
    above = {"copying": 0.959, "noisy_recall": 1.0}.get(name)  # solved as published
    values = [one.value for one in info.published if one.value != above]
    assert all(bounds[0] < x < bounds[1] for x in values)
    assert all(one.source for one in info.published)
    assert task.length > 0
    for field in dataclasses.fields(task.Options):
        assert field.metadata["help"]


def registered_with(**changes):
    """Register a copy of the task above with other metadata; return it."""

    class Copy(Pairs):
        info = dataclasses.replace(Pairs.info, **changes)

    return register(Copy)


def test_registration_rejects_a_second_task_of_one_name():
    with pytest.raises(OptionError, match="task 'listops' is already registered by ListOps"):
        registered_with(name="listops")


def test_registration_rejects_an_unknown_metric():
    with pytest.raises(UnknownNameError, match="no metric called 'acuracy'; did you mean accuracy"):
        registered_with(metrics=("acuracy",))
    assert "pairs" not in TASKS


def test_registration_rejects_a_metric_without_statistics():
    with pytest.raises(OptionError, match="no per-example statistics of rouge1; override"):
        registered_with(metrics=("accuracy", "rouge1"))
    assert "pairs" not in TASKS


@pytest.mark.parametrize("size", ["vocab_size", "num_classes"])
def test_registration_rejects_a_task_without_sizes(size):
    with pytest.raises(OptionError, match=f"task 'pairs' has no {size}; set it in its TaskInfo"):
        registered_with(**{size: 0})
    assert "pairs" not in TASKS


def test_published_percentages_become_fractions():
    one = TASKS["listops"].info.published[0]
    assert (one.mechanism, one.value, one.metric) == ("full", 0.3637, "accuracy")
    assert (one.protocol, one.source) == ("lra-paper", "Tay et al. 2021, Long Range Arena, table 1")
