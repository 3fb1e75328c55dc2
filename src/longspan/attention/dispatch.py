"""Choice of the backend of a call, or of each document, and the context in which it runs."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention.documents import Documents, cut_tokens
from longspan.attention.registry import KERNELS
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
    for name, kernel in KERNELS.get(cls, {}).items():
        if requested == "auto" and not kernel.automatic:
            continue
        if requested in ("auto", name):
            reasons = kernel.refusals(attention, *inputs)
            if not reasons:
                return name, kernel.run
            if requested == name:
                refused = f"{attention.name}: kernel {name!r} does not support these inputs"
                raise InputError(f"{refused}: {'; '.join(reasons)}")
    return "torch", cls.attend


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
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
