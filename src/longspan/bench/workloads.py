"""Workloads: the callable of a case, and the work that it has to do."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from longspan.attention import Attention, Cache, LayerInput
from longspan.bench.cases import IDENTITY, Case, Identity
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForSequenceClassification,
)
from longspan.models.attention_layer import LayerContext, SelfAttention, build_mechanism
from longspan.models.layer_cache import LayerCache
from longspan.results.efficiency import Sizes

DENSE = "full"  # stands where a model needs a mechanism that `Identity` replaces
_PASSES_OF_TRAINING = 3  # forward, gradients of the inputs, gradients of the parameters
M = TypeVar("M", bound=nn.Module)
_ADAMW_TRAFFIC = 7  # reads weight, gradient and two moments; writes weight and moments


@dataclasses.dataclass(frozen=True)
class Workload:
    """A measured pass.

    Attributes:
        call: runs it once.
        attention: mechanism that it runs, or one of several equal ones.
        flops: floating-point operations that the formulas of the mechanism and of the maps around
            it ask for; None for decoding, for which there are none.
        traffic: bytes of inputs, outputs and parameters, each read or written once a pass.
    """

    call: Callable[[], object]
    attention: Attention
    flops: int | None
    traffic: int


def make_workload(case: Case, sizes: Sizes, device: torch.device) -> Workload:
    """Build the workload of a case with random weights and inputs.

    Raises:
        OptionError: an option of the mechanism is invalid.
    """
    # The prefix of a workload needs no gradients.
    with contextlib.nullcontext() if case.has_gradients else torch.inference_mode():
        makers = {"operator": _operator, "layer": _layer, "model": _model}
        return makers[case.scope](case, sizes, device)


def _config(case: Case, sizes: Sizes) -> LongspanConfig:
    name = DENSE if case.name == IDENTITY else case.name
    config = LongspanConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.intermediate_size,
        max_position_embeddings=case.length + (case.work == "decoding"),
        hidden_dropout_prob=0.0,
        attention_dropout=0.0,
        attention=name,
        attention_backend=case.backend,
        attention_options=case.options,
        is_decoder=case.work == "decoding",
    )
    config.num_labels = sizes.num_labels
    return config


def _layer_of(case: Case, sizes: Sizes, device: torch.device) -> SelfAttention:
    dtype = getattr(torch, case.precision)
    return _build(case, lambda: SelfAttention(_config(case, sizes), 0), device, dtype)


def _build(case: Case, make: Callable[[], M], device: torch.device, dtype: torch.dtype) -> M:
    """Build a module on a device; under a fake mode, with fake copies of its weights.

    `Module.to` does not move fake tensors.
    """
    with unset_fake_temporarily():
        module = make()
    for layer in [x for x in module.modules() if isinstance(x, SelfAttention)]:
        if case.name == IDENTITY:
            layer.mechanism, layer.query, layer.key = Identity(), None, None
    # Tied weights are one parameter, and stay so.
    moved = {x: nn.Parameter(x.detach().to(device, dtype)) for x in module.parameters()}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                part._parameters[name] = moved[weight]
        for name, x in part._buffers.items():
            if x is not None:
                part._buffers[name] = x.to(device, dtype if x.is_floating_point() else x.dtype)
    return module


def _operator(case: Case, sizes: Sizes, device: torch.device) -> Workload:
    """Return the mechanism on queries, keys and values."""
    layer = _layer_of(case, sizes, device)
    attention = layer.mechanism
    shape = (case.batch_size, sizes.heads, case.length, sizes.head_dim)
    q, k, v = (_random(case, shape, device) for _ in range(3))
    mask, source = make_mask(case, device), _layer_input(case, layer, sizes, device)
    flops = case.batch_size * sizes.heads * attention.flops(case.length, sizes.head_dim)
    itemsize, num_parameters = q.element_size(), sum(x.numel() for x in attention.parameters())
    tensors = len(attention.traits.inputs) + 1
    if case.work == "decoding":
        _, cache = attention.step(q, k, v, None, layer_input=source)
        new_q, new_k, new_v = (x[:, :, :1] for x in (q, k, v))
        one = None if source is None else dataclasses.replace(source, states=source.states[:, :1])
        traffic = _state_bytes(cache) + num_parameters * itemsize
        step = functools.partial(attention.step, new_q, new_k, new_v, cache, layer_input=one)
        return Workload(_inference(step), attention, None, traffic)
    traffic = (tensors * q.numel() + num_parameters) * itemsize
    run = functools.partial(attention, q, k, v, mask, layer_input=source)
    inputs = [q, k, v, *attention.parameters()]
    if source is not None:
        maps = [x for x in (layer.query, layer.key) if x is not None]
        inputs += [source.states, *(weight for x in maps for weight in x.parameters())]
    call = _pass(case, run, tuple(inputs), torch.randn_like(v))
    return Workload(call, attention, _of_training(case, flops), _of_training(case, traffic))


def _layer_input(
    case: Case, layer: SelfAttention, sizes: Sizes, device: torch.device
) -> LayerInput | None:
    """Return random states and the projections of a layer, for mechanisms that need them."""
    query, key = layer.query, layer.key
    if not layer.mechanism.traits.needs_layer_input or query is None or key is None:
        return None

    def project(map: nn.Linear, x: Tensor) -> Tensor:
        heads = F.linear(x.to(map.weight.dtype), map.weight)
        return heads.unflatten(-1, (sizes.heads, -1)).transpose(-3, -2)

    return LayerInput(
        states=_random(case, (case.batch_size, case.length, sizes.hidden_size), device),
        query=functools.partial(project, query),
        key=functools.partial(project, key),
    )


def _layer(case: Case, sizes: Sizes, device: torch.device) -> Workload:
    """Return a mechanism with its projections."""
    layer = _layer_of(case, sizes, device)
    x = _random(case, (case.batch_size, case.length, sizes.hidden_size), device)
    num_parameters, itemsize = sum(p.numel() for p in layer.parameters()), x.element_size()
    if case.work == "decoding":
        keeps = LayerContext(use_cache=True)
        cache = layer(x, keeps).cache
        step = functools.partial(layer, x[:, :1], keeps, cache)
        traffic = _state_bytes(cache) + num_parameters * itemsize
        return Workload(_inference(step), layer.mechanism, None, traffic)
    context = LayerContext(mask=make_mask(case, device))
    call = _pass(
        case, lambda: layer(x, context).states, (x, *layer.parameters()), torch.randn_like(x)
    )
    maps = len(layer.mechanism.traits.inputs) + 1
    flops = 2 * maps * case.length * sizes.hidden_size**2
    flops += sizes.heads * layer.mechanism.flops(case.length, sizes.head_dim)
    traffic = (2 * x.numel() + num_parameters) * itemsize
    return Workload(
        call,
        layer.mechanism,
        _of_training(case, case.batch_size * flops),
        _of_training(case, traffic),
    )


def _model(case: Case, sizes: Sizes, device: torch.device) -> Workload:
    """Return a classifier of tokens, or a language model that decodes."""
    config = _config(case, sizes)
    ids = torch.randint(sizes.vocab_size, (case.batch_size, case.length), device=device)
    if case.work == "decoding":
        return _language_model(case, config, ids, device)
    model = _build(case, lambda: LongspanForSequenceClassification(config), device, torch.float32)
    model.train(case.has_gradients)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    labels = torch.zeros(case.batch_size, dtype=torch.long, device=device)
    mask, autocast = make_mask(case, device), _autocast(case, device)

    def step() -> None:
        with autocast():
            logits = model(ids, attention_mask=mask).logits
        if case.work == "training":
            F.cross_entropy(logits.float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    flops = _model_flops(case, config, sizes)
    num_parameters = sum(p.numel() for p in parameters)
    itemsize = getattr(torch, case.precision).itemsize
    states = 2 * sizes.layers * ids.numel() * sizes.hidden_size * itemsize
    traffic = _of_training(case, states) + 4 * num_parameters * (
        _ADAMW_TRAFFIC if case.work == "training" else 1
    )
    call = step if case.has_gradients else _inference(step)
    return Workload(call, _attention_of(model), flops, traffic)


def _model_flops(case: Case, config: LongspanConfig, sizes: Sizes) -> int:
    """Return the operations of the pass of a classifier."""
    with unset_fake_temporarily():
        flops = LongspanForSequenceClassification.flops(config, {"input_ids": (case.length,)})
        dense = sizes.heads * build_mechanism(config, 0).flops(case.length, sizes.head_dim)
    if case.name == IDENTITY:
        flops -= sizes.layers * (dense + 4 * case.length * sizes.hidden_size**2)
    return _of_training(case, case.batch_size * flops)


def _language_model(
    case: Case, config: LongspanConfig, ids: Tensor, device: torch.device
) -> Workload:
    """Return the decoding of one token after a prefix."""
    model = _build(case, lambda: LongspanForCausalLM(config), device, torch.float32).eval()
    autocast = _autocast(case, device)
    with autocast():
        past = model(ids, use_cache=True).cache

    def step() -> None:
        # The state of the prefix is not changed: every call decodes the same token.
        with autocast():
            model(ids[:, :1], cache=past)

    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    states = sum(_state_bytes(cast(LayerCache, layer.state)) for layer in past.layers)
    return Workload(_inference(step), _attention_of(model), None, parameter_bytes + states)


def _attention_of(model: nn.Module) -> Attention:
    """Return the mechanism of the first layer."""
    return next(x.mechanism for x in model.modules() if isinstance(x, SelfAttention))


def make_mask(case: Case, device: torch.device) -> Tensor | None:
    """Return a mask with the given share of padding, by rows of evenly spaced lengths, or None."""
    if not case.padding:
        return None
    spread = min(case.padding, 1 - case.padding) if case.batch_size > 1 else 0.0
    shares = torch.linspace(-spread, spread, case.batch_size) + 1 - case.padding
    lengths = (shares * case.length).round().clamp(min=1)
    return (torch.arange(case.length) < lengths[:, None]).to(device)


def _random(case: Case, shape: tuple[int, ...], device: torch.device) -> Tensor:
    tensor = torch.randn(shape, device=device).to(getattr(torch, case.precision))
    return tensor.requires_grad_(case.has_gradients)


def _pass(
    case: Case, run: Callable[[], Tensor], inputs: tuple[Tensor, ...], grad: Tensor
) -> Callable[[], object]:
    """Return a forward pass, with gradients of the inputs in training."""
    if not case.has_gradients:
        return _inference(run)
    if case.work == "forward":
        return run

    def step() -> None:
        run().backward(grad)
        # Other workloads of the same shape run next: gradients would take their memory.
        for x in inputs:
            x.grad = None

    return step


def _inference(call: Callable[[], object]) -> Callable[[], object]:
    return torch.inference_mode()(call)


def _autocast(case: Case, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    dtype, narrow = getattr(torch, case.precision), case.precision != "float32"
    return functools.partial(torch.autocast, device.type, dtype=dtype, enabled=narrow)


def _of_training(case: Case, work: int) -> int:
    """Return the work of the pass from that of its forward part."""
    return work * (_PASSES_OF_TRAINING if case.work == "training" else 1)


def _state_bytes(cache: Cache | LayerCache) -> int:
    return sum(x.numel() * x.element_size() for x in cache.state.values())
