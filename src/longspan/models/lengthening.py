"""Trained models for inputs longer than those that they were built for."""

import copy
import re
from typing import TypeVar

import torch
from torch import nn

from longspan.attention import Attention
from longspan.errors import OptionError
from longspan.models.base import LongspanPreTrainedModel

Model = TypeVar("Model", bound=LongspanPreTrainedModel)
MAX_NAMES = 3  # parameters that the message lists


def lengthen(model: Model, length: int) -> Model:
    """Return a model for inputs of up to `length` tokens, with the parameters of another.

    What follows the maximum length but is no parameter is that of the longer model: options that
    default to it, such as a stride of its square root, and random blocks or hashes, which are drawn
    from their seeds. Device, dtype, mode and frozen parameters are those of the given model.

    Args:
        model: trained model; it is not changed.
        length: maximum number of input tokens; a model for as many is returned as it is.

    Raises:
        OptionError: the shape of a parameter, learned or random, depends on the maximum length;
            the message names them.
    """
    config = copy.deepcopy(model.config)
    if length <= config.max_position_embeddings:
        return model
    config.max_position_embeddings = length
    # Weights are initialized on the CPU and then replaced.
    with torch.random.fork_rng(devices=()):
        longer = type(model)(config)
    saved, shapes = model.state_dict(), longer.state_dict()
    fixed = [
        name
        for name in _trained_numbers(longer)
        if name not in saved or saved[name].shape != shapes[name].shape
    ]
    if fixed:
        raise OptionError(_refusal(model, length, fixed))
    tensors = {name: x for name, x in saved.items() if x.shape == shapes[name].shape}
    longer.load_state_dict(tensors, strict=False)
    frozen = {name for name, x in model.named_parameters() if not x.requires_grad}
    for name, x in longer.named_parameters():
        x.requires_grad_(name not in frozen)
    torch.nn.Module.to(longer, device=model.device, dtype=model.dtype)
    return longer.train(model.training)


def _trained_numbers(model: nn.Module) -> list[str]:
    """Return the names of parameters, and of random numbers that training does not draw anew."""
    redrawn = tuple(
        f"{name}."
        for name, module in model.named_modules()
        if isinstance(module, Attention) and module.redraw_every is not None
    )
    return [
        name
        for name, x in model.state_dict(keep_vars=True).items()
        if isinstance(x, nn.Parameter) or (x.is_floating_point() and not name.startswith(redrawn))
    ]


def _refusal(model: LongspanPreTrainedModel, length: int, fixed: list[str]) -> str:
    # One name for all layers.
    names = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in fixed))
    listed = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
    config = model.config
    return (
        f"a model with {config.position} positions and {config.attention} attention has "
        f"parameters for inputs of up to {config.max_position_embeddings:,} tokens ({listed}), "
        f"{length:,} are needed; train one with model.position=sinusoidal, rotary, t5, relative or "
        "none, and a mechanism without parameters for each position"
    )
