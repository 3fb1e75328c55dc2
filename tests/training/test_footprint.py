"""Bytes of a step: against sums by hand, and the same with fake tensors as with real ones."""

import contextlib
import dataclasses
import warnings

import pytest
import torch
from torch import nn

import tiny
from longspan.arena.model import make_model
from longspan.attention import MECHANISMS
from longspan.attention.full import FullAttention
from longspan.tasks import TASKS, build
from longspan.training import footprint as module
from longspan.training.footprint import LiveTensorBytes, make_dummy_batch, measure_step_memory
from longspan.training.loop import fit


def made(mechanism="local", changes=None):
    """The tiny experiment's model, its task (not open) and recipe."""
    experiment = tiny.experiment(mechanism, changes=changes)
    task = build("listops", dict(experiment.task.options))
    return make_model(experiment, task), task, experiment.train


def test_what_is_alive_is_counted_by_storage_until_nothing_holds_it():
    with LiveTensorBytes() as alive:
        a = torch.zeros(100)  # 400 bytes
        b = a.view(10, 10)[2:]
        assert alive.now == 400
        del a
        assert alive.now == 400, "a view holds the storage"
        del b
        assert (alive.now, alive.most) == (0, 400)
        c, d = torch.zeros(10, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)
        assert alive.now == 80 + 3
        c.add_(1)
        assert alive.now == 83, "in place makes nothing"
        del c, d
    assert (alive.now, alive.most) == (0, 400)


def test_the_graph_of_the_backward_pass_holds_what_it_needs():
    w, x = torch.zeros(5, 7, requires_grad=True), torch.zeros(3, 5)
    there = 4 * 35 + 4 * 15
    with LiveTensorBytes() as alive:
        alive.count([w, x])
        # the product's gradient needs x, which was there; that of exp needs its own output
        y = (x @ w).exp()
        assert alive.now == there + 4 * 21
        total = y.sum()
        del y
        assert alive.now == there + 4 * 21 + 4
        total.backward()
        assert alive.now == there + 4 + 4 * 35, "the output is gone, the gradient of w is there"
        # at one time: the sum and its gradient, that of the product, that of w
        assert alive.most == there + 4 + 4 + 4 * 21 + 4 * 35


def test_weights_and_state_are_those_of_the_parameters():
    model, task, train = made("performer")
    parameters, buffers = list(model.parameters()), list(model.buffers())
    found = measure_step_memory(model, task, train)
    numbers = sum(p.numel() for p in parameters)
    assert buffers, "random features are a buffer"
    assert found.weights == 4 * numbers + sum(b.numel() * b.element_size() for b in buffers)
    assert found.optimizer == 4 * (2 * numbers + len(parameters))
    assert found.total == found.weights + found.optimizer + found.working
    assert found.working > 4 * numbers, "gradients are among it"
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())


def test_working_bytes_of_a_mechanism_by_hand(monkeypatch):
    """One more tensor (B, H, T, T) kept by the mechanism costs its bytes, for each layer."""

    def attend(self, q, k, v, key_mask, global_mask):
        weights = (q @ k.mT).softmax(-1)
        return (weights.exp() if self.twice else weights) @ v

    monkeypatch.setattr(FullAttention, "attend", attend)
    seen = {}
    for twice in (False, True):
        monkeypatch.setattr(FullAttention, "twice", twice, raising=False)
        # so long that nothing but the scores matters for the peak
        changes = {"task.max_length": 400, "model.layers": 3}
        seen[twice] = measure_step_memory(*made("full", changes)).working
    _, task, train = made("full", {"task.max_length": 400})
    scores = 4 * train.batch * 2 * task.length**2
    assert seen[True] - seen[False] == pytest.approx(3 * scores, rel=0.01)


QUICK = {"full", "local", "reformer"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in sorted(MECHANISMS)],
)
def test_fake_tensors_and_real_ones_weigh_the_same(name, monkeypatch):
    model, task, train = made(name)
    fake = measure_step_memory(model, task, train)
    monkeypatch.setattr(module, "FakeTensorMode", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(module, "FakeCopyMode", contextlib.nullcontext)
    assert measure_step_memory(model, task, train) == fake


def test_shapes_that_depend_on_numbers_are_measured_with_real_ones(monkeypatch):
    plain = measure_step_memory(*made("full"))
    attend = FullAttention.attend

    def picky(self, q, k, v, key_mask, global_mask):
        chosen = key_mask[0].nonzero()[:, 0]
        assert len(chosen) == q.shape[2]
        return attend(self, q, k, v, key_mask, global_mask)

    monkeypatch.setattr(FullAttention, "attend", picky)
    assert measure_step_memory(*made("full")).total >= plain.total


class _Enough(Exception):
    pass


class _Log:
    """A callback of two steps that notes the most that was alive."""

    def __init__(self):
        self.most = []

    def on_train_begin(self, steps): ...

    def on_step(self, step, loss, tokens, seconds):
        self.most.append(self.alive.most)
        if step == 2:
            raise _Enough

    def on_evaluate(self, point):
        pass

    def on_alarm(self, alarm):
        pass


def test_it_is_what_the_training_loop_holds(listops, tmp_path, monkeypatch):
    """The loop itself, under the same count; it has other counters and losses."""
    experiment = tiny.experiment("local", changes={"train.steps": 3, "model.width": 64})
    longest = make_dummy_batch(listops, experiment.train.batch)
    monkeypatch.setattr(type(listops), "batches", lambda self, split, **_: iter([longest] * 3))
    model, log = make_model(experiment, listops), _Log()
    with LiveTensorBytes() as log.alive:
        log.alive.count([*model.parameters(), *model.buffers()])
        with contextlib.suppress(_Enough):
            fit(
                model,
                listops,
                experiment.train,
                seed=0,
                folder=tmp_path,
                device="cpu",
                callback=log,
            )
    expected = measure_step_memory(make_model(experiment, listops), listops, experiment.train).total
    assert log.most[1] == pytest.approx(expected, rel=0.001)


def test_memory_follows_batch_parts_precision_and_recomputation():
    model, task, train = made("full", {"task.max_length": 100, "train.batch": 8})
    plain = measure_step_memory(model, task, train).working

    def working(**changes):
        return measure_step_memory(model, task, dataclasses.replace(train, **changes)).working

    assert working(batch=16) > 1.7 * plain
    assert working(accumulate=4) < 0.5 * plain
    assert working(gradient_checkpointing=True) < plain
    assert working(precision="bf16") != plain
    assert not model.is_gradient_checkpointing


def test_recomputation_is_asked_for_by_its_present_name():
    model, task, train = made(changes={"train.gradient_checkpointing": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        measure_step_memory(model, task, train)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_filled_batch(name):
    task = TASKS[name]()
    batch = make_dummy_batch(task, 3)
    assert batch.inputs.shape[:2] == batch.key_mask.shape == (3, task.length)
    assert batch.inputs.is_floating_point() == (task.features is not None)
    assert (batch.inputs_b is not None) == task.info.pair
    assert batch.targets.shape == ((3, task.length) if task.info.per_token else (3,))
