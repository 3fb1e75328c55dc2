"""The copying task: scored tokens, its three settings, validation of options."""

from functools import partial

import pytest
import torch
from task_calls import open_task

from longspan.tasks import build
from longspan.tasks.scoring import IGNORE

SMALL = {
    "train": 300,
    "validation": 40,
    "test": 30,
    "length": 30,
    "count": 4,
    "symbols": 5,
    "noise": 3,
}
opened = partial(open_task, "copying", **SMALL)


@pytest.mark.parametrize(
    "change", [{}, {"together": True, "depth": 0.0}, {"count": 1, "depth": 0.5}], ids=str
)
def test_targets_are_the_symbols_in_order_at_the_markers_only(tmp_path, change):
    task = opened(tmp_path, **change)
    assert (task.vocab_size, task.num_classes, task.length) == (10, 5, 30)
    count = task.options.count
    for batch in task.batches("test", batch_size=16):
        assert batch.inputs["attention_mask"].all()
        for tokens, targets in zip(batch.inputs["input_ids"], batch.targets, strict=True):
            symbols = tokens[tokens >= 5] - 5
            assert torch.equal(targets[-count:], symbols)
            assert (targets[:-count] == IGNORE).all()
            assert (tokens[-count:] == 1).all()


def test_default_options_are_those_of_selective_copying():
    options = build("copying").options
    assert (options.length, options.count, options.symbols, options.noise) == (1_024, 16, 14, 1)
    assert (options.together, options.depth) == (False, None)


def test_show_gives_the_symbols_and_the_targets(tmp_path):
    task = opened(tmp_path)
    for row in range(30):
        body, answer = task.show("test", row).split(" (4 markers) = ")
        words = body.replace("(", "").replace(" filler)", "f").split()
        assert " ".join(word for word in words if word[0] == "s") == answer
        assert sum(int(word[:-1]) for word in words if word[-1] == "f") == 22
    assert task.svg("test", 0) is None
