"""The processes that train one run, started by torchrun or `accelerate launch`.

Every process builds the same batches and works on its own shard of each: some of the rows, padded
like the whole batch (data parallel), or some of the positions (context parallel).
"""

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import patch_environment
from torch import Tensor, distributed

from longspan.errors import (
    DivergedError,
    InputError,
    OptionError,
    RunError,
    UnknownNameError,
    check_name,
)
from longspan.launch import without_leftovers

PARALLELISM = {
    "ddp": "rows are sharded, the model is replicated",
    "fsdp": "rows and the model are sharded",
    "context": "positions are sharded, the model is replicated",
}
# Longer than checking large data or a write by the main process; torch's own is 10 min for NCCL.
TIMEOUT = datetime.timedelta(minutes=30)
RANK_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, and far from any difference of two users' seeds

# Errors that every process raises: they follow from the recipe or from reduced values.
_SHARED_ERRORS = (OptionError, UnknownNameError, InputError, DivergedError)

CPU = torch.device("cpu")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RowShard:
    """Rows of a batch for one forward pass.

    Attributes:
        rows: the rows; one arbitrary row if the shard is empty.
        weight: weight of their losses: 1, or 0 if the shard is empty.
    """

    rows: slice
    weight: int


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """This process's view of the processes that train one run; by default there is one.

    Attributes:
        world_size: number of processes.
        rank: rank of this process.
        parallelism: "none", or one of `PARALLELISM`.
        device: device of this process.
    """

    world_size: int = 1
    rank: int = 0
    parallelism: str = "none"
    device: torch.device = CPU

    @property
    def is_main(self) -> bool:
        """Return whether this is the main process, the one that writes files."""
        return self.rank == 0

    @property
    def num_shards(self) -> int:
        """Number of shards that the rows of a batch are split into."""
        return 1 if self.parallelism == "context" else self.world_size

    def shard_rows(self, num_rows: int, num_microbatches: int = 1) -> list[RowShard]:
        """Return this process's rows of a batch, split into microbatches.

        Every process gets the same number of microbatches, some of them possibly empty: all
        processes must call the model equally often.

        Args:
            num_rows: rows of the batch.
            num_microbatches: largest number of microbatches.
        """
        shard = 0 if self.num_shards == 1 else self.rank
        first, last = (num_rows * n // self.num_shards for n in (shard, shard + 1))
        most = -(-num_rows // self.num_shards)
        size = -(-most // num_microbatches)
        starts = range(first, first + most, size)
        return [
            RowShard(slice(start, min(start + size, last)), 1)
            if start < last
            else RowShard(slice(0, 1), 0)
            for start in starts
        ]

    def rank_seed(self, seed: int) -> int:
        """Return the seed of this process's dropout; the main process uses the run's seed."""
        return (seed + self.rank * RANK_SEED_STRIDE) % 2**63

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Sum a tensor over all shards, in place, and return it."""
        if self.num_shards > 1:
            distributed.all_reduce(x)
        return x

    @overload
    def all_reduce_max(self, value: int | float) -> float: ...

    @overload
    def all_reduce_max(self, value: int | float | None) -> float | None: ...

    def all_reduce_max(self, value: int | float | None) -> float | None:
        """Return the largest value of all processes; None if a process has none."""
        # Values are not negative, so -1 can stand for None.
        local_value = torch.tensor([-1.0 if value is None else value], dtype=torch.float64)
        values = [float(x) for x in self.all_gather(local_value)]
        return None if min(values) < 0 else max(values)

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, equal in shape and dtype, on the CPU."""
        if self.world_size == 1:
            return [x]
        local_tensor = x.to(self.device)
        gathered = [torch.empty_like(local_tensor) for _ in range(self.world_size)]
        distributed.all_gather(gathered, local_tensor)
        return [y.cpu() for y in gathered]

    def broadcast(self, value: T) -> T:
        """Return the main process's value, a small picklable object, in every process."""
        if self.world_size == 1:
            return value
        objects: list[Any] = [value]
        distributed.broadcast_object_list(objects, src=0)
        return objects[0]

    def run_on_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process; return its result, or raise its error, in all."""
        result, error = None, None
        if self.is_main:
            try:
                result = function()
            except Exception as raised:  # any error must reach the waiting processes
                error = raised
        result, error = self.broadcast((result, error))
        if error is not None:
            raise _mark_shared(error)
        return result  # type: ignore[return-value]

    def check_same(self, flag: bool, action: str) -> bool:
        """Return a flag after checking that it is the same in all processes.

        Args:
            flag: value in this process.
            action: phrase for the message: "not all N processes <action>".

        Raises:
            RunError: the flag is set in some processes only.
        """
        flags = [bool(x) for x in self.all_gather(torch.tensor([int(flag)]))]
        if len(set(flags)) > 1:
            raise _mark_shared(RunError(f"not all {self.world_size} processes {action}"))
        return flag

    @contextlib.contextmanager
    def exit_on_local_error(self) -> Iterator[None]:
        """Exit this process on an error that the other processes may not raise.

        torchrun stops all processes when one exits; otherwise the others would wait for this one
        forever. `_SHARED_ERRORS`, and errors of `run_on_main` and `check_same`, are raised by all
        processes and pass through.
        """
        try:
            yield
        except Exception as error:
            is_shared = isinstance(error, _SHARED_ERRORS) or getattr(error, "is_shared", False)
            if self.world_size == 1 or is_shared:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SystemExit(
                f"process {self.rank} of {self.world_size} failed ({reason}); "
                "run the same command to resume from the last checkpoint"
            ) from error


SINGLE_PROCESS = ProcessGroup()


def current_group(device: str | None = None, parallel: str | None = None) -> ProcessGroup:
    """Return the group of processes that this process was started with.

    Args:
        device: "cpu", or None for the available accelerator.
        parallel: one of `PARALLELISM`. None: "fsdp" if `accelerate launch` is configured for it,
            otherwise "ddp".

    Raises:
        UnknownNameError: there is no such parallelism.
        RunError: the other processes cannot be reached.
    """
    if parallel is not None:
        check_name(parallel, PARALLELISM, "parallelism")
    try:
        state = _reset_state(device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"the other processes of the run cannot be reached ({reason})") from error
    if state.num_processes == 1:
        return SINGLE_PROCESS
    uses_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    parallelism = parallel or ("fsdp" if uses_fsdp else "ddp")
    return ProcessGroup(state.num_processes, state.process_index, parallelism, state.device)


def make_accelerator(precision: str, folder: Path, device: str | None) -> Accelerator:
    """Return an accelerator for a run.

    Args:
        precision: "no", "bf16" or "fp16".
        folder: folder for the files of trackers.
        device: "cpu", or None for the available accelerator.

    Raises:
        OptionError: the device does not support the precision.
    """
    if precision == "fp16" and _uses_cpu(device):
        raise OptionError("precision fp16 needs a CUDA device, this run is on CPU; use bf16 or no")
    _reset_state(device)
    # `wrap_model` shards the model itself: on every device, and with shared parameters.
    with patch_environment(accelerate_use_fsdp="false"):
        return Accelerator(
            mixed_precision=precision,
            cpu=_uses_cpu(device),
            log_with="tensorboard",
            project_dir=folder,
        )


def _reset_state(device: str | None) -> PartialState:
    """Return a new accelerate state: an earlier run may have used another device or precision."""
    if PartialState._shared_state:
        AcceleratorState._reset_state(reset_partial_state=True)
    with without_leftovers():
        return PartialState(cpu=_uses_cpu(device), timeout=TIMEOUT)


def _uses_cpu(device: str | None) -> bool:
    """Return whether to train on the CPU: accelerators other than CUDA are not used."""
    return device == "cpu" or not torch.cuda.is_available()


def _mark_shared(error: Exception) -> Exception:
    """Mark an error as one that every process raises, and return it."""
    error.is_shared = True  # type: ignore[attr-defined]
    return error
