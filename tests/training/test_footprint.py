"""Memory of a training step, compared with sums by hand, real tensors and the training loop."""

import contextlib
import dataclasses
import inspect
import warnings

import pytest
import torch
from torch import nn

import tiny
from longspan.arena import get
from longspan.arena.model import make_model
from longspan.attention import MECHANISMS, Attention
from longspan.attention.mechanisms.full import FullAttention
from longspan.tasks import TASKS, build
from longspan.tasks.batching import Batch
from longspan.training import Callback
from longspan.training import footprint as module
from longspan.training.footprint import LiveTensorBytes, make_dummy_batch, measure_step_memory


def build_step(mechanism="local", changes=None):
    """Return the tiny experiment's model, its task (not open) and its training configuration."""
    experiment = tiny.experiment(mechanism, changes=changes)
    task = build("listops", experiment.config.task.options)
    return make_model(experiment, task), task, experiment.config.training


def test_storages_count_until_released():
    with LiveTensorBytes() as live:
        a = torch.zeros(100)  # 400 bytes
        b = a.view(10, 10)[2:]
        assert live.current == 400
        del a
        assert live.current == 400, "a view holds the storage"
        del b
        assert (live.current, live.peak) == (0, 400)
        c, d = torch.zeros(10, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)
        assert live.current == 80 + 3
        c.add_(1)
        assert live.current == 83, "in-place operators allocate nothing"
        del c, d
    assert (live.current, live.peak) == (0, 400)


def test_tensors_held_by_autograd_graph_count():
    w, x = torch.zeros(5, 7, requires_grad=True), torch.zeros(3, 5)
    inputs = 4 * 35 + 4 * 15
    with LiveTensorBytes() as live:
        live.count([w, x])
        # Backward of the product needs x, which is counted; backward of exp needs its output.
        y = (x @ w).exp()
        assert live.current == inputs + 4 * 21
        total = y.sum()
        del y
        assert live.current == inputs + 4 * 21 + 4
        total.backward()
        assert live.current == inputs + 4 + 4 * 35, (
            "the output is freed, the gradient of w is alive"
        )
        # The peak: the sum and its gradient, the gradient of the product, and that of w.
        assert live.peak == inputs + 4 + 4 + 4 * 21 + 4 * 35


def test_parameters_and_optimizer_state_are_counted():
    model, task, config = build_step("performer")
    parameters, buffers = list(model.parameters()), list(model.buffers())
    found = measure_step_memory(model, task, config)
    numbers = sum(p.numel() for p in parameters)
    assert buffers, "random features are a buffer"
    assert found.parameters == 4 * numbers + sum(b.numel() * b.element_size() for b in buffers)
    assert found.optimizer == 4 * (2 * numbers + len(parameters))
    assert found.total == found.parameters + found.optimizer + found.working
    assert found.working > 4 * numbers, "gradients are included"
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())


def test_tensors_kept_by_mechanism_count_in_every_layer(monkeypatch):
    """Compare with a mechanism that keeps one more tensor of shape (B, H, T, T)."""

    def attend(self, x):
        weights = (x.q @ x.k.mT).softmax(-1)
        return (weights.exp() if self.twice else weights) @ x.v

    monkeypatch.setattr(FullAttention, "attend", attend)
    working = {}
    for twice in (False, True):
        monkeypatch.setattr(FullAttention, "twice", twice, raising=False)
        # Long enough for the scores to dominate the peak.
        changes = {"task.max_length": 400, "model.num_hidden_layers": 3}
        working[twice] = measure_step_memory(*build_step("full", changes)).working
    _, task, config = build_step("full", {"task.max_length": 400})
    scores = 4 * config.batch_size * 2 * task.length**2
    assert working[True] - working[False] == pytest.approx(3 * scores, rel=0.01)


FAST_MECHANISMS = {"full", "local", "reformer"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=() if x in FAST_MECHANISMS else pytest.mark.slow)
        for x in sorted(MECHANISMS)
    ],
)
def test_fake_and_real_tensors_give_same_memory(name, monkeypatch):
    # The protocol lists windows of two layers.
    model, task, config = build_step(name, {"model.num_hidden_layers": 2})
    fake = measure_step_memory(model, task, config)
    monkeypatch.setattr(module, "FakeTensorMode", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(module, "FakeCopyMode", contextlib.nullcontext)
    assert measure_step_memory(model, task, config) == fake


def refuse_real_steps(monkeypatch):
    """Fail where a step would be measured with real tensors."""
    real = module._measure

    def measure(*given):
        fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        assert fake is not None, "measured with real tensors"
        return real(*given)

    monkeypatch.setattr(module, "_measure", measure)


@pytest.mark.parametrize("name", ["local", "bigbird", "longformer"])
def test_global_tokens_need_no_values(name, monkeypatch):
    """A summary token and global tokens of the task, of which the mechanism has no limit."""
    refuse_real_steps(monkeypatch)
    changes = {"model.pooling": "cls", "model.num_hidden_layers": 2, "task.max_length": 400}
    model, task, config = build_step(name, changes)
    limits = [x.max_global_tokens for x in model.modules() if isinstance(x, Attention)]
    assert set(limits) == {None}
    plain = measure_step_memory(model, task, config).working
    monkeypatch.setattr(type(task), "num_global_tokens", 100)
    assert measure_step_memory(model, task, config).working > plain
    limits = [x.max_global_tokens for x in model.modules() if isinstance(x, Attention)]
    assert set(limits) == {None}, "the model is not changed"


def test_texts_are_measured_without_values(monkeypatch):
    """The positions of their global tokens are tensors."""
    refuse_real_steps(monkeypatch)
    experiment = get("lra-small").experiment("text", "full", 0)
    task = build("text", experiment.config.task.options)
    assert measure_step_memory(make_model(experiment, task), task, experiment.config.training)


def test_value_dependent_shapes_are_measured_with_real_tensors(monkeypatch):
    plain = measure_step_memory(*build_step("full"))
    attend = FullAttention.attend

    def attend_with_nonzero(self, x):
        chosen = x.key_mask[0].nonzero()[:, 0]
        assert len(chosen) == x.q.shape[2] - 1, "one symbol is hidden"
        return attend(self, x)

    monkeypatch.setattr(FullAttention, "attend", attend_with_nonzero)
    assert measure_step_memory(*build_step("full")).total >= plain.total


class _StopError(Exception):
    """Exception that ends the training."""


class _PeakRecorder(Callback):
    """Callback that records the peak after each of two steps, then ends the training."""

    def __init__(self):
        self.peaks = []

    def on_step(self, step, loss, tokens, seconds):
        self.peaks.append(self.live.peak)
        if step == 2:
            raise _StopError


def test_training_loop_uses_measured_memory(listops, tmp_path, monkeypatch):
    """Compare peaks; the loop additionally allocates only counters and losses."""
    experiment = tiny.experiment("local", changes={"training.steps": 3, "model.hidden_size": 64})
    inputs = make_dummy_batch(listops, experiment.config.training.batch_size)
    targets = inputs.pop("labels")
    longest = Batch(inputs=inputs, targets=targets, rows=torch.arange(len(targets)))
    monkeypatch.setattr(type(listops), "batches", lambda self, split, **_: iter([longest] * 3))
    model, recorder = make_model(experiment, listops), _PeakRecorder()
    with LiveTensorBytes() as recorder.live:
        recorder.live.count([*model.parameters(), *model.buffers()])
        with contextlib.suppress(_StopError):
            tiny.train(experiment, listops, tmp_path, recorder, model=model)
    expected = measure_step_memory(
        make_model(experiment, listops), listops, experiment.config.training
    ).total
    assert recorder.peaks[1] == pytest.approx(expected, rel=0.001)


def test_memory_follows_batch_size_accumulation_precision_and_checkpointing():
    model, task, config = build_step("full", {"task.max_length": 100, "training.batch_size": 8})
    plain = measure_step_memory(model, task, config).working

    def working(**changes):
        return measure_step_memory(model, task, dataclasses.replace(config, **changes)).working

    assert working(batch_size=16) > 1.7 * plain
    assert working(gradient_accumulation_steps=4) < 0.5 * plain
    assert working(gradient_checkpointing=True) < plain
    assert working(precision="bf16") != plain
    # As transformers 5.23 and earlier ones name it.
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    assert not any(getattr(model, name, False) for name in names)


def test_activation_checkpointing_uses_no_deprecated_name():
    model, task, config = build_step(changes={"training.gradient_checkpointing": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        measure_step_memory(model, task, config)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_dummy_batch(name):
    task = TASKS[name]()
    batch = make_dummy_batch(task, 3)
    texts = {x: shape for x, shape in task.input_shapes.items() if "input_ids" in x}
    for text, shape in texts.items():
        given = "input_values" if task.input_features else text
        mask = batch[text.replace("input_ids", "attention_mask")]
        assert batch[given].shape[: mask.ndim] == mask.shape == (3, *shape)
        assert int((~mask).sum()) == 1
        assert batch[given].is_floating_point() == (task.input_features is not None)
    labels = [x for x in batch if "label" in x or "positions" in x]
    assert bool(labels) != task.head.compares_examples
    known = {*inspect.signature(task.head.forward).parameters, "shift_labels"}
    assert batch.keys() <= known
