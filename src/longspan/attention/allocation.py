"""Refusal of mechanisms whose tensors cannot fit into memory, before they are allocated."""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import NoMemoryError
from longspan.space import check_memory

SMALL = 1 << 28  # bytes of a tensor that is always tried
REMEDY = "choose smaller sizes or options"


@contextlib.contextmanager
def refuse_large_tensors(name: str) -> Iterator[None]:
    """Refuse, inside the context, to create a CPU tensor larger than the available memory.

    This covers functions that create a tensor from its shape (`torch.empty`, `randn`, ...), which
    is how parameters are made. What is computed from tensors is left to the allocator.

    Args:
        name: name of the mechanism, for the message.

    Raises:
        NoMemoryError: the mechanism creates such a tensor.
    """
    try:
        with _RefuseLargeTensors(name):
            yield
    except (RuntimeError, MemoryError) as error:
        # The allocator refuses at once what exceeds all memory of the machine.
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise NoMemoryError(f"{name} needs more memory than there is; {REMEDY}") from error
        raise


class _RefuseLargeTensors(TorchDispatchMode):
    """Dispatch mode that checks the size of each tensor that is created from a shape."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Check the shape, which is the first argument of a factory function."""
        kwargs = kwargs or {}
        device = torch.device(kwargs.get("device") or "cpu")
        shape = args[0] if args and isinstance(args[0], list | tuple) else ()
        if shape and device.type == "cpu" and all(isinstance(size, int) for size in shape):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            needed = math.prod(shape) * dtype.itemsize
            if needed > SMALL:
                check_memory(needed, f"a tensor of {self.name}", REMEDY)
        return func(*args, **kwargs)
