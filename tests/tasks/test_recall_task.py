"""The recall task: scored tokens, disjoint splits, validation of options."""

import re
from functools import partial

import torch
from task_calls import open_task

from longspan.tasks import build
from longspan.tasks.scoring import IGNORE, accuracy_statistics

SMALL = {
    "train": 300,
    "validation": 40,
    "test": 30,
    "length": 40,
    "pairs": 3,
    "queries": 5,
    "vocabulary": 20,
}
opened = partial(open_task, "recall", **SMALL)


def rows(task, split):
    return [batch for batch in task.batches(split, batch_size=16)]


def test_targets_are_the_bound_values_at_queries_only(tmp_path):
    task = opened(tmp_path, noise=True)
    assert (task.vocab_size, task.num_classes, task.length) == (20, 10, 40)
    for batch in rows(task, "test"):
        assert batch.inputs["attention_mask"].all()
        for tokens, targets in zip(batch.inputs["input_ids"], batch.targets, strict=True):
            bound = dict(zip(tokens[0:6:2].tolist(), tokens[1:6:2].tolist(), strict=True))
            asked = (targets != IGNORE).nonzero().flatten().tolist()
            assert asked == [p for p in range(6, 40) if int(tokens[p]) in bound]
            assert len(asked) == 5
            assert all(int(targets[p]) + 10 == bound[int(tokens[p])] for p in asked)


def test_accuracy_counts_queries(tmp_path):
    task = opened(tmp_path)
    (batch, *_) = rows(task, "test")
    logits = torch.zeros(*batch.targets.shape, task.num_classes)
    scored = batch.targets != IGNORE
    logits[scored] = torch.nn.functional.one_hot(batch.targets[scored], task.num_classes).float()
    queries = [5.0] * len(batch.targets)
    assert accuracy_statistics(logits, batch.targets).T.tolist() == [queries, queries]
    wrong = logits.clone()
    wrong[scored] = wrong[scored].roll(1, -1)
    none = [0.0] * len(batch.targets)
    assert accuracy_statistics(wrong, batch.targets).T.tolist() == [none, queries]


def test_every_key_is_queried_once_by_default():
    options = build("recall", {"length": 64, "pairs": 7}).options
    assert options.num_queries == 7


def test_default_options_are_the_hardest_setting_of_the_paper():
    options = build("recall").options
    assert (options.length, options.pairs, options.vocabulary) == (512, 64, 8_192)
    assert (options.train, options.test) == (100_000, 3_000)
    assert (options.power, options.noise, options.queries) == (0.01, False, None)


def test_show_gives_the_pairs_and_the_queries(tmp_path):
    task = opened(tmp_path)
    pairs, queries, rest = task.show("test", 0).split("\n")
    bound = dict(pair.split("=") for pair in pairs.removeprefix("3 pairs: ").split(", "))
    asked = queries.removeprefix("5 queries, key@position: ").split(", ")
    asked = [re.fullmatch(r"(k\d+)@(\d+)=(v\d+)", one).groups() for one in asked]
    assert len(bound) == 3
    assert all(bound[key] == value for key, _, value in asked)
    assert rest == "the other 29 tokens are blanks"
    (batch, *_) = rows(task, "test")
    places = [int(place) for _, place, _ in asked]
    first = batch.rows.tolist().index(0)
    assert places == (batch.targets[first] != IGNORE).nonzero().flatten().tolist()
    assert task.svg("test", 0) is None
