"""Memory of a training step, counted from its tensors: the same on every machine and device.

A dispatch mode sees every operator and counts the storages that are alive between two of them, as
torch's own memory tracker does. Tensors are fake (shapes without values), so a step of any size
takes a fraction of a second and no memory. A mechanism whose shapes depend on values is measured
with real tensors. Scratch memory inside an operator and the allocator's rounding are not counted;
the operators are those of the CPU.
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
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from longspan.attention import Attention
from longspan.config import TrainingConfig
from longspan.tasks.base import Task
from longspan.training.arguments import logit_arguments, model_inputs
from longspan.training.distributed.sharding import recompute_activations

NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Memory of a training step after the first one, in bytes.

    Attributes:
        parameters: parameters and buffers.
        optimizer: state of the optimizer.
        working: peak of everything else: gradients, activations, the batch, temporaries.
    """

    parameters: int
    optimizer: int
    working: int

    @property
    def total(self) -> int:
        """Peak memory."""
        return self.parameters + self.optimizer + self.working


class LiveTensorBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of live tensors.

    A storage counts once, however many views it has, until neither Python nor the autograd graph
    holds it.

    Attributes:
        current: bytes alive now.
        peak: largest number of bytes alive at one time.
    """

    def __init__(self) -> None:
        """Start with no live tensors."""
        super().__init__()
        self.bytes: dict[weakref.ref, int] = {}
        self.current = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator and count its outputs."""
        out = func(*args, **(kwargs or {}))
        self.count(x for x in tree_leaves(out) if isinstance(x, Tensor))
        return out

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors, which may have been made outside the mode."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            reference = weakref.ref(storage, self._release)
            if reference not in self.bytes:
                self.bytes[reference] = storage.nbytes()
                self.current += storage.nbytes()
        self.peak = max(self.peak, self.current)

    def _release(self, reference: weakref.ref) -> None:
        self.current -= self.bytes.pop(reference)


def measure_step_memory(model: PreTrainedModel, task: Task, config: TrainingConfig) -> StepMemory:
    """Measure the memory of a training step whose examples have the task's full length.

    Args:
        model: the model; it is not changed.
        task: the task; it need not be open.
        config: training configuration; of several microbatches one is alive at a time.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.random.fork_rng(devices=()):  # the step runs on the CPU
        try:
            with FakeCopyMode(fake):
                copied = copy.deepcopy(model)
            with fake:
                return _measure(copied, task, config)
        except NEEDS_VALUES:
            return _measure(copy.deepcopy(model), task, config)


def _measure(model: PreTrainedModel, task: Task, config: TrainingConfig) -> StepMemory:
    _limit_global_tokens(model, _count_global_tokens(task))
    model.train()
    if config.gradient_checkpointing:
        recompute_activations(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    with LiveTensorBytes() as live:
        live.count([*parameters, *model.buffers()])
        parameter_bytes = live.current
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        # A step with zero gradients creates the optimizer's state.
        optimizer.step()
        optimizer.zero_grad()
        persistent = live.peak = live.current
        _run_step(model, task, config, optimizer)
        return StepMemory(
            parameters=parameter_bytes,
            optimizer=persistent - parameter_bytes,
            working=live.peak - persistent,
        )


def _limit_global_tokens(model: PreTrainedModel, count: int) -> None:
    """Fix the number of global tokens, which mechanisms without a limit count from values."""
    count += getattr(model.config, "pooling", None) == "cls"
    for module in model.modules():
        if not isinstance(module, Attention) or not module.traits.global_tokens:
            continue
        if module.max_global_tokens is None:
            module.max_global_tokens = count


def make_dummy_batch(task: Task, num_rows: int) -> dict[str, Tensor]:
    """Return arguments of zeros with examples of full length, for a task that need not be open."""
    shapes, count = task.input_shapes, _count_global_tokens(task)
    return task.head.dummy_batch(shapes, num_rows, task.input_features, count)


def _count_global_tokens(task: Task) -> int:
    """Return the largest number of global tokens of a text, also where tensors have no values."""
    with unset_fake_temporarily():
        return task.num_global_tokens


def _run_step(
    model: PreTrainedModel, task: Task, config: TrainingConfig, optimizer: torch.optim.Optimizer
) -> None:
    inputs = model_inputs(model, make_dummy_batch(task, config.batch_size), CPU)
    logit_options = logit_arguments(model, task.training_metrics)
    microbatches = torch.arange(config.batch_size).chunk(config.gradient_accumulation_steps)
    dtype = AUTOCAST.get(config.precision)
    # From the second microbatch on, the gradients of the first are alive too: two show the peak.
    for microbatch in microbatches[:2]:
        rows = slice(0, len(microbatch))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            microbatch_inputs = {name: x[rows] for name, x in inputs.items()}
            output = model(**microbatch_inputs, **logit_options)
        output.loss.backward()
        del output
    if config.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    optimizer.step()
