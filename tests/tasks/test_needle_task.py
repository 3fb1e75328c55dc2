"""The needle task: one symbol among random filler, asked for at the end."""

from functools import partial

import pytest
import torch
from task_calls import open_task

from longspan.errors import OptionError
from longspan.tasks import build
from longspan.tasks.scoring import IGNORE

SMALL = {"train": 300, "validation": 40, "test": 30, "length": 30, "symbols": 5, "noise": 3}
opened = partial(open_task, "needle", **SMALL)


@pytest.mark.parametrize("depth", [None, 0.0, 0.5, 1.0])
def test_target_at_the_end_is_the_one_symbol(tmp_path, depth):
    task = opened(tmp_path, depth=depth)
    assert (task.vocab_size, task.num_classes, task.chance, task.length) == (10, 5, 0.2, 30)
    for batch in task.batches("test", batch_size=16):
        is_symbol = batch.inputs["input_ids"] >= 5
        assert (is_symbol.sum(1) == 1).all()
        assert torch.equal(batch.targets[:, -1], batch.inputs["input_ids"][is_symbol] - 5)
        assert (batch.targets[:, :-1] == IGNORE).all()
        assert (batch.inputs["input_ids"][:, -1] == 1).all()
        if depth is not None:
            assert (is_symbol.int().argmax(1) == int(depth * 28 + 0.5)).all()


def test_examples_are_grouped_by_position(tmp_path):
    (grouping,) = opened(tmp_path).groupings("test")
    assert grouping.name == "position"
    assert opened(tmp_path, depth=0.5).groupings("test") == []


@pytest.mark.parametrize("change", [{"length": 1}, {"depth": 1.5}, {"symbols": 70_000}])
def test_invalid_options_are_refused(change):
    with pytest.raises(OptionError):
        build("needle", {**SMALL, **change})
