"""Choice of the backend of a call, or of each document, and the context in which it runs."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention.documents import Documents, cut_tokens
from longspan.attention.registry import KERNELS, PACKED_KERNELS, Kernel
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.attention.base import Attention


def select_backend(attention: "Attention", *inputs) -> tuple[str, Callable]:
    """Return the requested backend, or the first kernel that supports the inputs.

    Raises:
        InputError: the requested kernel does not support the inputs.
    """
    cls, requested = type(attention), attention.backend
    own = {"torch": cls.attend, "reference": cls.reference}
    if requested in own:
        return requested, own[requested]
    found = _first_kernel(attention, KERNELS.get(cls, {}), *inputs)
    return found or ("torch", cls.attend)


def _first_kernel(
    attention: "Attention", kernels: dict[str, Kernel], *inputs
) -> tuple[str, Callable] | None:
    """Return the requested kernel, or the first automatic one that supports the inputs.

    Raises:
        InputError: the requested kernel does not support the inputs.
    """
    requested = attention.backend
    for name, kernel in kernels.items():
        if requested == "auto" and not kernel.automatic:
            continue
        if requested in ("auto", name):
            reasons = kernel.refusals(attention, *inputs)
            if not reasons:
                return name, kernel.run
            if requested == name:
                refused = f"{attention.name}: kernel {name!r} does not support these inputs"
                raise InputError(f"{refused}: {'; '.join(reasons)}")
    return None


def attend_documents(
    attention: "Attention", q: Tensor, k: Tensor, v: Tensor, documents: Documents, *extra
) -> Tensor:
    """Compute the documents of a row (1, H, N, D) at once if a body can, else one after another.

    Raises:
        InputError: the requested kernel does not support the documents.
    """
    inputs, cls = (q, k, v, documents, *extra), type(attention)
    found = _first_kernel(attention, PACKED_KERNELS.get(cls, {}), *inputs)
    if found is None and attention.traits.packed and attention.backend in ("auto", "torch"):
        found = "torch", cls.attend_packed
    if found is None:
        return attend_each(attention, *inputs)
    attention.backend_used, body = found
    return body(attention, *inputs)


def attend_each(
    attention: "Attention", q: Tensor, k: Tensor, v: Tensor, documents: Documents, *extra
) -> Tensor:
    """Compute the documents of a row (1, H, N, D) one after another; see `attend_packed`."""
    outs = []
    for piece in documents.slices:
        tokens = (x[:, :, piece] for x in (q, k, v))
        inputs = (*tokens, None, *(cut_tokens(x, piece) for x in extra))
        attention.backend_used, body = select_backend(attention, *inputs)
        outs.append(body(attention, *inputs))
    return torch.cat(outs, 2)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    """Disable autocast on a device that has it; the meta device has none."""
    if device.type == "meta":  # torch.compile of 2.11 cannot trace `is_autocast_available`
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
