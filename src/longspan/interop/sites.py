"""Attention modules of a model, found by running it once."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from longspan.attention import Attention, build
from longspan.attention.ops.linear_maps import base_map
from longspan.errors import InputError
from longspan.interop.calls import AttentionFunction, Choice, Request, find_causality
from longspan.interop.masks import create_padding_mask
from longspan.interop.projections import Projection, find_projection

_PROBE = "longspan:probe"


@dataclasses.dataclass(frozen=True)
class Site:
    """Attention module of a model, and the sizes of its call.

    Attributes:
        name: name within the base model.
        module: the module.
        causal: whether keys after the query are excluded.
        heads: heads of queries.
        head_dim: head dimension.
        window: sliding window of the module's own, or None.
        scale: whether products have another factor than 1 / sqrt(D).
        bias: whether the module adds numbers to the scores.
        sink_logits: whether the module has logits in the denominators (s_aux).
        projections: projections to "q", "k" and "v", as far as they were found.
    """

    name: str
    module: nn.Module
    causal: bool
    heads: int
    head_dim: int
    window: int | None
    scale: bool
    bias: bool
    sink_logits: bool
    projections: dict[str, Projection]


def choose_full(module: nn.Module, request: Request) -> Choice:
    """Return exact attention, for modules that keep theirs."""
    return Choice(_build_full(request.causal, request.dropout))


@functools.lru_cache(maxsize=8)
def _build_full(causal: bool, dropout: float) -> Attention:
    return build("full", causal=causal, weight_dropout=dropout).train(dropout > 0)


_CALLS: contextvars.ContextVar[dict[nn.Module, dict[str, Any]]] = contextvars.ContextVar("calls")
_OUTPUTS: contextvars.ContextVar[dict[nn.Module, Tensor]] = contextvars.ContextVar("outputs")


def _probe(module, query, key, value, attention_mask=None, **kwargs):
    """Record a call, then compute exact attention."""
    projections = {
        letter: projection
        for letter, heads in (("q", query), ("k", key), ("v", value))
        if (projection := find_projection(module, _OUTPUTS.get(), heads)) is not None
    }
    _CALLS.get()[module] = {
        "causal": find_causality(module, kwargs.get("is_causal")),
        "heads": query.shape[1],
        "head_dim": query.shape[3],
        "window": kwargs.get("sliding_window"),
        "scale": kwargs.get("scaling") not in (None, query.shape[3] ** -0.5),
        "bias": kwargs.get("position_bias") is not None,
        "sink_logits": kwargs.get("s_aux") is not None,
        "projections": projections,
    }
    return _EXACT(module, query, key, value, attention_mask, **kwargs)


_EXACT = AttentionFunction(choose_full)
AttentionInterface.register(_PROBE, _probe)
AttentionMaskInterface.register(_PROBE, create_padding_mask)


def find_sites(model: PreTrainedModel) -> list[Site]:
    """Find the attention modules that call transformers' AttentionInterface.

    The model runs once, on transformers' dummy inputs of a few tokens.

    Raises:
        InputError: the model cannot run, or no module of it calls the interface.
    """
    base = cast(PreTrainedModel, model.base_model)
    calls_token = _CALLS.set({})
    outputs_token = _OUTPUTS.set({})
    try:
        with _probing(base), torch.no_grad():
            base(**_dummy_inputs(base))
        calls = _CALLS.get()
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot run on transformers' dummy inputs, by which its "
            f"attention modules are found ({error}); swap takes models of texts, others call "
            "build(...) in a module of their own"
        ) from error
    finally:
        _CALLS.reset(calls_token)
        _OUTPUTS.reset(outputs_token)
    names = {module: name for name, module in base.named_modules()}
    sites = [Site(names[module], module, **call) for module, call in calls.items()]
    if not sites:
        raise InputError(
            f"no attention module of {type(model).__name__} calls transformers' AttentionInterface"
        )
    return sites


def _dummy_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return transformers' dummy inputs, and those of a decoder that it leaves out."""
    inputs = {name: x.to(model.device) for name, x in model.dummy_inputs.items()}
    if "input_ids" in inputs and "decoder_input_ids" in signature(model.forward).parameters:
        inputs.setdefault("decoder_input_ids", inputs["input_ids"])
    return inputs


@contextlib.contextmanager
def _probing(model: PreTrainedModel) -> Iterator[None]:
    """Run in evaluation mode with the probe as attention, and record outputs of linear maps.

    An adapter stands in the place of a map, and comes before it among the modules.
    """

    def record(linear: nn.Module, inputs: Any, output: Tensor) -> None:
        _OUTPUTS.get()[linear] = output

    modules = [x for x in model.modules() if base_map(x) is not None]
    hooks = [x.register_forward_hook(record) for x in modules]
    training = [x for x in model.modules() if x.training]
    configs = [x.config for x in model.modules() if isinstance(x, PreTrainedModel)]
    before = [config._attn_implementation for config in configs]
    try:
        model.eval()
        set_implementation(model, _PROBE)
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name
        for module in training:
            module.training = True
        for hook in hooks:
            hook.remove()


def set_implementation(model: PreTrainedModel, name: str) -> None:
    """Set the attention implementation, and raise InputError if the model has no choice of one."""
    model.set_attn_implementation(name)
    # transformers 5.17 leaves out stacks that copy the configuration of the whole, as those of T5.
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and type(part.config) is type(model.config):
            part.config._attn_implementation = model.config._attn_implementation
    if model.config._attn_implementation != name:
        raise InputError(
            f"{type(model).__name__} does not use transformers' AttentionInterface, so its "
            "attention cannot be replaced"
        )
