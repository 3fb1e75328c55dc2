"""Choice of the backend of a call, or of each document, and the context in which it runs."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention.inputs import Inputs
from longspan.attention.registry import KERNELS
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.attention.base import Attention


def select_backend(attention: "Attention", x: Inputs) -> tuple[str, Callable]:
    """Return the requested backend, or the first kernel that supports the inputs.

    Raises:
        InputError: the requested kernel does not support the inputs.
    """
    cls, requested = type(attention), attention.backend
    if requested in ("torch", "reference"):
        return requested, cls.attend if requested == "torch" else cls.reference
    kernel = _first_kernel(attention, x) if cls in KERNELS else None
    return kernel or ("torch", cls.attend)


def _first_kernel(attention: "Attention", x: Inputs) -> tuple[str, Callable] | None:
    """Return the requested kernel, or the first automatic one that supports the inputs.

    Raises:
        InputError: the requested kernel does not support the inputs.
    """
    requested = attention.backend
    for name, kernel in KERNELS.get(type(attention), {}).items():
        if x.documents is not None and not kernel.packed:
            continue
        if requested == name or (requested == "auto" and kernel.automatic):
            reasons = kernel.refusals(attention, x)
            if not reasons:
                return name, kernel.run
            if requested == name:
                refused = f"{attention.name}: kernel {name!r} does not support these inputs"
                raise InputError(f"{refused}: {'; '.join(reasons)}")
    return None


def attend_documents(attention: "Attention", x: Inputs) -> Tensor:
    """Compute the documents of a row (1, H, N, D) at once if a body can, else one after another.

    Raises:
        InputError: the requested kernel does not support the documents.
    """
    backend = _first_kernel(attention, x)
    if backend is None and attention.traits.packed and attention.backend in ("auto", "torch"):
        backend = "torch", type(attention).attend_packed
    if backend is None:
        return attend_each(attention, x)
    attention.backend_used, body = backend
    return body(attention, x)


def attend_each(attention: "Attention", x: Inputs) -> Tensor:
    """Compute the documents of a row (1, H, N, D) one after another."""
    outs = []
    for piece in x.documents.slices if x.documents else ():
        document = x.take_tokens(piece)
        attention.backend_used, body = select_backend(attention, document)
        outs.append(body(attention, document))
    return torch.cat(outs, 2)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    """Disable autocast on a device that has it; the meta device has none."""
    if device.type == "meta":  # torch.compile of 2.11 cannot trace `is_autocast_available`
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
