"""Memorization, compression and duplication: what they score, and their options."""

import pytest
import torch
from task_calls import make_experiment, open_task, read_whole

from longspan.arena.model import model_config
from longspan.errors import OptionError
from longspan.models import LongspanForReconstruction
from longspan.tasks import build
from longspan.tasks.scoring import IGNORE

SMALL = {"train": 300, "validation": 40, "test": 30}


def test_facts_are_the_same_in_every_split_and_differ_by_seed(tmp_path):
    facts = {}
    for seed in (0, 1):
        task = open_task("memorization", tmp_path, **SMALL, seed=seed)
        known = {}
        for split in ("train", "validation", "test"):
            batch = read_whole(task, split)
            ids, targets = batch.inputs["input_ids"][:, :32], batch.targets[:, :32]
            assert (ids[:, 1::2] == 1).all()
            assert (targets[:, ::2] == IGNORE).all()
            pairs = zip(
                ids[:, ::2].flatten().tolist(), targets[:, 1::2].flatten().tolist(), strict=True
            )
            for key, value in pairs:
                assert known.setdefault(key, value) == value
        assert len(set(known.values())) == len(known) == 127
        facts[seed] = known
    assert facts[0] != facts[1]


def test_duplication_scores_the_second_half(tmp_path):
    task = open_task("duplication", tmp_path, **SMALL, length=32, symbols=5)
    batch = read_whole(task, "test")
    ids, targets = batch.inputs["input_ids"][:, :32], batch.targets[:, :32]
    assert ids[:, :16].equal(ids[:, 16:])
    assert (ids[:, 0] == 1).all()
    assert (targets[:, :16] == IGNORE).all()
    assert (targets[:, -1] == IGNORE).all()
    assert targets[:, 16:-1].equal(ids[:, 17:] - 2)
    assert targets[:, 16:-1].unique().tolist() == [0, 1, 2, 3, 4]


def test_compression_scores_every_symbol_but_not_the_marker(tmp_path):
    task = open_task("compression", tmp_path, **SMALL)
    batch = read_whole(task, "test")
    ids, targets = batch.inputs["input_ids"][:, :32], batch.targets[:, :32]
    assert targets[:, :-1].equal(ids[:, :-1] - 2)
    assert (targets[:, -1] == IGNORE).all()
    assert (ids[:, -1] == 1).all()
    assert task.show("test", 0).split() == [f"s{x}" for x in targets[0, :-1].tolist()]


def test_compression_reads_the_state_of_the_marker_alone(tmp_path):
    """Two texts with the same pooled state are reconstructed alike."""
    task = open_task("compression", tmp_path, **SMALL)
    config = model_config(make_experiment(task, "full", {"model.pooling": "mean"}).config, task)
    assert config.pooling == "last"
    model = LongspanForReconstruction(config).double().eval()
    batch = read_whole(task, "test")
    inputs = {name: x[:4, :32] for name, x in batch.inputs.items()}
    states = []
    model.model.register_forward_hook(
        lambda module, args, output: states.append(output.pooler_output) or output
    )
    with torch.no_grad():
        logits = model(**inputs).logits
        model.model.register_forward_hook(
            lambda module, args, output: setattr(
                output, "pooler_output", states[0][:1].expand(4, -1)
            )
        )
        alike = model(**inputs).logits
    assert logits.shape == (4, 32, 15)
    assert not torch.isclose(logits[0], logits[1]).all(-1).any()
    torch.testing.assert_close(alike, logits[:1].expand_as(alike))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("memorization", {"length": 31}, "expected an even number"),
        ("memorization", {"keys": 129}, "values=128 are too few for keys=129"),
        ("memorization", {"keys": 66_000, "values": 66_000}, "lower keys"),
        ("duplication", {"length": 33}, "expected an even number of 4 or more"),
        ("duplication", {"symbols": 66_000}, "lower symbols"),
        ("compression", {"symbols": 66_000}, "lower symbols"),
        ("compression", {"length": 1}, "expected 2 or more"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(name, change, message):
    with pytest.raises(OptionError, match=message):
        build(name, change)
