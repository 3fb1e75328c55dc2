"""Large tensors of mechanisms: refused before they exceed memory, or left without values."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import NoMemoryError
from longspan.space import check_memory

SMALL = 1 << 28  # bytes of a tensor that is always tried
REMEDY = "choose smaller sizes or options"
T = TypeVar("T")
_COUNTS_SIZES = contextvars.ContextVar("counts_sizes", default=False)


@contextlib.contextmanager
def sizes_alone() -> Iterator[None]:
    """Build modules inside the context for their sizes: no large tensor is allocated.

    Weights are on the meta device, and so are large tensors of mechanisms, whose other tensors
    keep their values.
    """
    token = _COUNTS_SIZES.set(True)
    try:
        with torch.device("meta"):
            yield
    finally:
        _COUNTS_SIZES.reset(token)


def build_within_memory(name: str, make: Callable[[], T]) -> T:
    """Return what a function builds; its large tensors fit into memory or have no values.

    Args:
        name: name of the mechanism, for the message.
        make: function that builds it.

    Raises:
        NoMemoryError: see `refuse_large_tensors`.
    """
    if _COUNTS_SIZES.get():
        # A mechanism that reads the values of a large tensor needs them.
        with contextlib.suppress(RuntimeError), _LargeTensors(_omit):
            return make()
    with refuse_large_tensors(name):
        return make()


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

    def refuse(needed: int, kwargs: dict[str, Any]) -> dict[str, Any]:
        check_memory(needed, f"a tensor of {name}", REMEDY)
        return kwargs

    try:
        with _LargeTensors(refuse):
            yield
    except (RuntimeError, MemoryError) as error:
        # The allocator refuses at once what exceeds all memory of the machine.
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise NoMemoryError(f"{name} needs more memory than there is; {REMEDY}") from error
        raise


class _Creation:
    """Other arguments, or a refusal, of large tensors that are created from a shape."""

    def __init__(self, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__()
        self.change = change

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Check the size before the tensor is created."""
        kwargs = kwargs or {}
        needed = _created_bytes(args, kwargs)
        return func(*args, **(self.change(needed, kwargs) if needed > SMALL else kwargs))


# Torch imports its compiler where the class of a mode itself defines `__torch_dispatch__`. That
# takes a second, and slows every call; nothing that is compiled runs in this mode.
class _LargeTensors(_Creation, TorchDispatchMode):
    """Dispatch mode of the creation of large tensors."""


def _omit(needed: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Create a tensor on the meta device; numbers that nothing holds need no generator."""
    kwargs = {**kwargs, "device": torch.device("meta")}
    return {**kwargs, "generator": None} if "generator" in kwargs else kwargs


def _created_bytes(args: tuple, kwargs: dict) -> int:
    """Return the bytes of a CPU tensor that an operator creates from its first argument, or 0."""
    device = torch.device(kwargs.get("device") or "cpu")
    shape = args[0] if args and isinstance(args[0], list | tuple) else ()
    if not shape or device.type != "cpu" or not all(isinstance(size, int) for size in shape):
        return 0
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return math.prod(shape) * dtype.itemsize
