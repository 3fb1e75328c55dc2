"""The processes that train one run together, as torchrun or `accelerate launch` start them.

Every process makes every batch, the same in all of them, and works on its share of it. A share is
of the rows, padded as the whole batch is (data parallel), or of the positions (context parallel).
"""

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

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
    known,
)

PARALLEL = {
    "ddp": "rows shared out, the model whole in each process",
    "fsdp": "rows shared out, the model too",
    "context": "positions shared out, the model whole in each process",
}
# Longer than a check of large data or a write by the main process; torch's own is 10 min for NCCL.
TIMEOUT = datetime.timedelta(minutes=30)
RANK_SEED_STRIDE = (
    0x9E3779B97F4A7C15  # between the seeds of two processes: odd, and far from any user's
)

# What every process finds in the same recipe, and in numbers that are the same for all.
COMMON = (OptionError, UnknownNameError, InputError, DivergedError)

CPU = torch.device("cpu")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of a batch for one forward pass; without any, one row that does not count."""

    rows: slice
    weight: int  # 1, or 0


@dataclasses.dataclass(frozen=True)
class Processes:
    """What a process knows of those it trains with; by default it is alone."""

    number: int = 1
    rank: int = 0
    parallelism: str = "none"
    device: torch.device = CPU

    @property
    def main(self) -> bool:
        """Whether this is the one that writes files."""
        return self.rank == 0

    @property
    def shares(self) -> int:
        """Into how many shares the rows of a batch are cut."""
        return 1 if self.parallelism == "context" else self.number

    def parts(self, rows: int, parts: int = 1) -> list[Part]:
        """This process's rows out of `rows`, cut into at most `parts` parts.

        Every process gets the same number of parts, of which some may be empty, so that all of
        them call the model equally often.
        """
        first, last = (rows * n // self.shares for n in self._share)
        most = -(-rows // self.shares)
        size = -(-most // parts)
        cuts = range(first, first + most, size)
        return [
            Part(slice(cut, min(cut + size, last)), 1) if cut < last else Part(slice(0, 1), 0)
            for cut in cuts
        ]

    @property
    def _share(self) -> tuple[int, int]:
        return (0, 1) if self.shares == 1 else (self.rank, self.rank + 1)

    def seed(self, seed: int) -> int:
        """The seed of this process's own dropout; the main process has that of a run alone."""
        return (seed + self.rank * RANK_SEED_STRIDE) % 2**63

    def summed(self, x: Tensor) -> Tensor:
        """`x` with what all shares have added to it, in place."""
        if self.shares > 1:
            distributed.all_reduce(x)
        return x

    def largest(self, value: int | float | None) -> float | None:
        """The largest value of all processes; None if one has none."""
        values = [None if x < 0 else float(x) for x in self.gathered(_told(value))]
        return None if None in values else max(x for x in values if x is not None)

    def gathered(self, x: Tensor) -> list[Tensor]:
        """The tensors that the processes hold, equal in shape and type, on the CPU."""
        if self.number == 1:
            return [x]
        mine = x.to(self.device)
        found = [torch.empty_like(mine) for _ in range(self.number)]
        distributed.all_gather(found, mine)
        return [y.cpu() for y in found]

    def agreed(self, value: T) -> T:
        """What the main process has, for all; anything small."""
        if self.number == 1:
            return value
        held: list[Any] = [value]
        distributed.broadcast_object_list(held, src=0)
        return held[0]

    def on_main(self, function: Callable[[], T]) -> T:
        """Let the main process do something while the others wait; its result, or its error."""
        result, error = None, None
        if self.main:
            try:
                result = function()
            except Exception as raised:  # whatever it is, the others must not go on
                error = raised
        result, error = self.agreed((result, error))
        if error is not None:
            raise _of_all(error)
        return result  # type: ignore[return-value]

    def alike(self, flag: bool, what: str) -> bool:
        """The flag, which is the same in all processes.

        Args:
            flag: what this process finds.
            what: what the processes do where it is true, to say that not all of them do.

        Raises:
            RunError: it is true in some and false in others.
        """
        flags = [bool(x) for x in self.gathered(torch.tensor([int(flag)]))]
        if len(set(flags)) > 1:
            raise _of_all(RunError(f"not all {self.number} processes {what}"))
        return flag

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Within it, an error that the others may not have ends this process, and so all of them.

        A launcher stops the others when one ends; going on would leave them waiting for it. All
        have what is `COMMON`, and what `on_main` and `alike` raise.
        """
        try:
            yield
        except Exception as error:
            if self.number == 1 or isinstance(error, COMMON) or getattr(error, "of_all", False):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SystemExit(
                f"process {self.rank} of {self.number} ends ({reason}); "
                "the same command again continues from the last checkpoint"
            ) from error


SINGLE_PROCESS = Processes()


def current_group(device: str | None = None, parallel: str | None = None) -> Processes:
    """The processes that this one was started with.

    Args:
        device: "cpu" to stay off a CUDA device.
        parallel: how they work together, one of `PARALLEL`. None: "fsdp" where `accelerate
            launch` was told to use it, else "ddp".

    Raises:
        UnknownNameError: no such way.
        RunError: the others cannot be reached.
    """
    if parallel is not None:
        known(parallel, PARALLEL, "way to train in parallel")
    try:
        state = _state(device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"the other processes of the run cannot be reached ({reason})") from error
    if state.num_processes == 1:
        return SINGLE_PROCESS
    launched = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    way = parallel or ("fsdp" if launched else "ddp")
    return Processes(state.num_processes, state.process_index, way, state.device)


def accelerator(precision: str, folder: Path, device: str | None) -> Accelerator:
    """The device and precision of a run ("no", "bf16", "fp16"); trackers write below `folder`.

    Raises:
        OptionError: the device cannot train in this precision.
    """
    if precision == "fp16" and _on_cpu(device):
        raise OptionError("precision fp16 needs a CUDA device, this run is on CPU; use bf16 or no")
    _state(device)
    # The model is sharded by `spread`, on every device and with shared parameters.
    with patch_environment(accelerate_use_fsdp="false"):
        return Accelerator(
            mixed_precision=precision,
            cpu=_on_cpu(device),
            log_with="tensorboard",
            project_dir=folder,
        )


def _state(device: str | None) -> PartialState:
    """Accelerate's state, anew: a run in the same process may have another device or precision."""
    if PartialState._shared_state:
        AcceleratorState._reset_state(reset_partial_state=True)
    return PartialState(cpu=_on_cpu(device), timeout=TIMEOUT)


def _on_cpu(device: str | None) -> bool:
    """Whether there is no CUDA device, or none is wanted; other ones accelerate would choose."""
    return device == "cpu" or not torch.cuda.is_available()


def _of_all(error: Exception) -> Exception:
    """The error, marked as one that every process raises."""
    error.of_all = True  # type: ignore[attr-defined]
    return error


def _told(value: int | float | None) -> Tensor:
    return torch.tensor([-1.0 if value is None else value], dtype=torch.float64)
