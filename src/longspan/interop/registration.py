"""Registration of mechanisms as attention implementations of transformers."""

import dataclasses
import re
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from longspan.attention import MECHANISMS, Attention
from longspan.attention.build import check_mechanism
from longspan.errors import OptionError
from longspan.interop.building import Recipe, layer_index
from longspan.interop.calls import AttentionFunction, Choice, Request
from longspan.interop.masks import create_padding_mask

PREFIX = "longspan:"
# transformers treats names with these parts as its own implementations.
_RESERVED = ("flash", "flex", "sdpa", "eager", "paged", "swapped", "probe")
# Sizes of BERT base, for a first check of the options; each model has its own.
_TRIAL_SIZES = {"heads": 12, "head_dim": 64}
_TRIAL_LENGTH = 512

_REGISTERED: dict[str, Recipe] = {}


def register_attention(
    attention: str,
    *,
    name: str | None = None,
    backend: str = "auto",
    max_length: int | None = None,
    global_positions: tuple[int, ...] = (),
    **options: Any,
) -> str:
    """Register a mechanism without parameters as an attention implementation of transformers.

    Both the attention function and its mask function are registered, so that padding and causality
    reach the mechanism. Models then run it with `attn_implementation="longspan:local"`, in
    `from_pretrained`, `from_config` or `set_attn_implementation`.

    Args:
        attention: key in `MECHANISMS`.
        name: name of this variant after "longspan:"; None: that of the mechanism.
        backend: backend, as in `longspan.build`.
        max_length: longest input, for mechanisms that need it; None: `max_position_embeddings` of
            the model.
        global_positions: positions of tokens that attend to all and are attended by all, such as
            (0,) for the first; bidirectional models only.
        options: options of the mechanism; `options_of(attention)` lists them.

    Returns:
        The name for `attn_implementation`.

    Raises:
        UnknownNameError: there is no such mechanism, option or backend.
        OptionError: the mechanism has parameters or ignores the keys, an option is invalid, or the
            name is reserved or taken by a variant with other options.
    """
    check_mechanism(attention, options, backend)
    full_name = PREFIX + _check_variant(attention if name is None else name)
    recipe = Recipe(attention, options, backend, max_length, tuple(global_positions))
    previous = _REGISTERED.get(full_name, recipe)
    if previous != recipe:
        raise OptionError(
            f"{full_name} is already registered, with {previous}; give this variant another name="
        )
    if not any(isinstance(x, list) for x in options.values()):
        # Lists may be per head or layer, whose numbers are known in a model only.
        trial = dataclasses.replace(recipe, max_length=max_length or _TRIAL_LENGTH)
        _refuse_parameters(trial.build(**_TRIAL_SIZES))
    AttentionInterface.register(full_name, AttentionFunction(_Builder(recipe)))
    AttentionMaskInterface.register(full_name, create_padding_mask)
    _REGISTERED[full_name] = recipe
    return full_name


def _refuse_parameters(attention: Attention) -> None:
    """Raise OptionError unless the mechanism is a function of queries, keys and values alone."""
    reasons = []
    if any(True for _ in attention.parameters()):
        reasons.append("it has parameters")
    if attention.traits.inputs != "qkv":
        reasons.append(f"it uses {' and '.join(attention.traits.inputs)} only (traits.inputs)")
    if attention.redraw_every is not None:
        reasons.append("redraw_every is set, and no training loop sees it")
    if reasons:
        raise OptionError(
            f"{attention.name} cannot be an attention implementation: {'; '.join(reasons)}; "
            f"use longspan.swap(model, {attention.name!r})"
        )


class _Builder:
    """Mechanisms of all models that use one registration, by what they were built for."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.built: dict[tuple, Attention] = {}

    def __call__(self, module: nn.Module, request: Request) -> Choice:
        config = getattr(module, "config", None)
        length = getattr(config, "max_position_embeddings", None)
        key = (request, layer_index(module), length)
        if key not in self.built:
            self.built[key] = self._build(module, request)
        return Choice(self.built[key], self.recipe.global_positions)

    def _build(self, module: nn.Module, request: Request) -> Attention:
        name = self.recipe.attention
        if request.dropout and not MECHANISMS[name].traits.weight_dropout:
            raise OptionError(
                f"{name} forms no weights that dropout could drop (traits.weight_dropout), got "
                f"dropout={request.dropout}; load the model with its attention dropout set to 0"
            )
        attention = self.recipe.build(
            getattr(module, "config", None),
            causal=request.causal,
            heads=request.heads,
            head_dim=request.head_dim,
            layer=layer_index(module),
            weight_dropout=request.dropout,
        )
        _refuse_parameters(attention)
        with torch.inference_mode(False):
            attention.to(device=request.device, dtype=request.dtype)
        return attention.train(request.dropout > 0)


def _check_variant(name: str) -> str:
    """Return the name of a variant, if transformers takes it for no implementation of its own."""
    if not re.fullmatch(r"[\w.-]+", name) or any(part in name.lower() for part in _RESERVED):
        raise OptionError(
            f"name must have letters, digits, '_', '.' and '-' only and contain none of "
            f"{', '.join(_RESERVED)}; got {name!r:.60}"
        )
    return name
