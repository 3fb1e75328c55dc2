"""Tensors of a mechanism that accelerate keeps on disk or another device between calls."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


def loaded(module: nn.Module) -> contextlib.AbstractContextManager:
    """Hold all tensors of a module, its children's too, where they compute.

    accelerate loads the tensors of each module for its `forward` alone, while a mechanism reads
    those of its children, and has other entries than `forward`. Elsewhere this does nothing.
    """
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    hooked = []
    for each in module.modules():
        if hasattr(each, "_hf_hook"):
            hooked.append(each)
    return _loaded(hooked) if hooked else contextlib.nullcontext()


@contextlib.contextmanager
def _loaded(hooked: list[nn.Module]) -> Iterator[None]:
    for each in hooked:
        each._hf_hook.pre_forward(each)  # type: ignore[operator,union-attr]
    try:
        yield
    finally:
        for each in hooked:
            each._hf_hook.post_forward(each, None)  # type: ignore[operator,union-attr]
