"""Bytes of a training step, counted from its tensors: the same on every machine and device.

A mode sees every operator and counts the storages that are alive between two of them, as torch's
own memory tracker does. Tensors are fake (shapes without numbers), so that a step of any size
takes a fraction of a second and no memory; a mechanism whose shapes depend on numbers gets real
ones. Scratch memory inside an operator and an allocator's rounding are not seen; the operators are
those of the CPU.
"""

import copy
import dataclasses
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from longspan.tasks.base import Batch, Task
from longspan.training.config import TrainConfig
from longspan.training.distributed.sharding import recompute
from longspan.training.evaluate import to_device

NEEDS_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one step of a training that has begun."""

    weights: int  # parameters and buffers
    optimizer: int  # state of the optimiser
    working: int  # most of all else at one time: gradients, activations, the batch, temporaries

    @property
    def total(self) -> int:
        """The most bytes alive at one time."""
        return self.weights + self.optimizer + self.working


class Alive(TorchDispatchMode):
    """Counts the bytes of tensors that operators make inside the mode, while they are alive.

    A storage counts once, whatever views there are of it, and until nothing holds it: Python,
    or the graph of the backward pass.
    """

    def __init__(self) -> None:
        """Nothing is alive yet."""
        super().__init__()
        self.bytes: dict[weakref.ref, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator and count what it returns."""
        out = func(*args, **(kwargs or {}))
        self.count(x for x in tree_leaves(out) if isinstance(x, Tensor))
        return out

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors, also ones that were there before."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            reference = weakref.ref(storage, self._died)
            if reference not in self.bytes:
                self.bytes[reference] = storage.nbytes()
                self.now += storage.nbytes()
        self.most = max(self.most, self.now)

    def _died(self, reference: weakref.ref) -> None:
        self.now -= self.bytes.pop(reference)


def footprint(model: PreTrainedModel, task: Task, config: TrainConfig) -> Footprint:
    """Bytes of one training step with a batch of the recipe, its examples at the task's length.

    Args:
        model: left as it is.
        task: need not be open.
        config: the recipe; of a batch in parts, one part is alive at a time.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.random.fork_rng(devices=()):  # a step on the CPU draws from its generator alone
        try:
            with FakeCopyMode(fake):
                copied = copy.deepcopy(model)
            with fake:
                return _measured(copied, task, config)
        except NEEDS_NUMBERS:
            return _measured(copy.deepcopy(model), task, config)


def _measured(model: PreTrainedModel, task: Task, config: TrainConfig) -> Footprint:
    model.train()
    if config.gradient_checkpointing:
        recompute(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    with Alive() as alive:
        alive.count([*parameters, *model.buffers()])
        weights = alive.now
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        # A first step with nothing learned makes the state.
        optimizer.step()
        optimizer.zero_grad()
        held = alive.most = alive.now
        _step(model, task, config, optimizer)
        return Footprint(weights=weights, optimizer=held - weights, working=alive.most - held)


def _step(
    model: PreTrainedModel, task: Task, config: TrainConfig, optimizer: torch.optim.Optimizer
) -> None:
    batch = filled(task, config.batch)
    inputs = to_device(batch, CPU)
    rows = torch.arange(config.batch).chunk(config.accumulate)
    dtype = AUTOCAST.get(config.precision)
    # The gradients of the first part are there while the second works; so they stay.
    for part in rows[:2]:
        own = slice(0, len(part))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            logits = model(**{name: x[own] for name, x in inputs.items()}).logits
        task.losses(logits, batch.targets[own]).mean().backward()
        del logits
    if config.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    optimizer.step()


def filled(task: Task, rows: int) -> Batch:
    """A batch of a task that need not be open: zeros, as long as examples can be."""
    shape = (rows, task.length)
    inputs = torch.zeros(shape, dtype=torch.long)
    if task.features is not None:
        inputs = torch.zeros(*shape, task.features)
    mask = torch.ones(shape, dtype=torch.bool)
    pair = {"inputs_b": inputs.clone(), "key_mask_b": mask.clone()} if task.info.pair else {}
    return Batch(
        inputs=inputs,
        key_mask=mask,
        targets=torch.zeros(shape if task.info.per_token else rows, dtype=torch.long),
        rows=torch.arange(rows),
        **pair,
    )
