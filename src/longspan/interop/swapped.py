"""Mechanism inside an attention module of another library's model."""

import dataclasses
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from longspan.attention import Attention
from longspan.errors import InputError
from longspan.interop.building import Recipe
from longspan.interop.calls import AttentionFunction, Choice, Request
from longspan.interop.masks import create_padding_mask
from longspan.interop.projections import InputRecorder, Projection, make_layer_input
from longspan.interop.sites import choose_full

SWAPPED = "longspan:swapped"
_ATTRIBUTE = "longspan"  # of the attention module, and so part of the names in a checkpoint


@dataclasses.dataclass(frozen=True)
class SwapSpec:
    """Mechanism of one attention module, as the configuration of the model records it.

    Attributes:
        recipe: mechanism and options.
        causal: whether keys after the query are excluded.
        heads: heads of queries.
        head_dim: head dimension.
        layer: index of the layer.
        projections: projections to "q", "k" and "v", as far as they were found.
        width: width of the module's input; None: heads * head_dim.
    """

    recipe: Recipe
    causal: bool
    heads: int
    head_dim: int
    layer: int
    projections: dict[str, Projection]
    width: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SwapSpec":
        """Read what `to_dict` returned."""
        recipe = dict(values["recipe"])
        recipe["global_positions"] = tuple(recipe["global_positions"])
        projections = {x: Projection(**fields) for x, fields in values["projections"].items()}
        return cls(**{**values, "recipe": Recipe(**recipe), "projections": projections})


class Swapped(nn.Module):
    """Mechanism of an attention module, with what its calls need.

    Attributes:
        mechanism: the mechanism.
        spec: what it was built from.
        recorder: holds the input of the layer during a call; None: the mechanism needs none.
        frozen: parameters of projections without use, which the swap froze.
    """

    def __init__(self, spec: SwapSpec, config: PretrainedConfig):
        """Build the mechanism on the CPU."""
        super().__init__()
        self.spec = spec
        self.mechanism = spec.recipe.build(
            config,
            causal=spec.causal,
            heads=spec.heads,
            head_dim=spec.head_dim,
            width=spec.width,
            layer=spec.layer,
        )
        needs_input = self.mechanism.traits.needs_layer_input
        self.recorder = InputRecorder() if needs_input else None
        self.frozen: list[nn.Parameter] = []

    def attach(self, module: nn.Module) -> None:
        """Become part of an attention module, and replace an earlier mechanism of it."""
        detach(module)
        inputs = self.mechanism.traits.inputs
        for letter, projection in self.spec.projections.items():
            linear = projection.linear(module)
            if letter not in inputs and projection.stop - projection.start == linear.out_features:
                adapted = module.get_submodule(projection.name)
                self.frozen += [p for p in adapted.parameters() if p.requires_grad]
        for parameter in self.frozen:
            parameter.requires_grad_(False)
        if self.recorder is not None:
            linear = self.spec.projections["q"].linear(module)
            self.hook = linear.register_forward_pre_hook(self.recorder)
        module.add_module(_ATTRIBUTE, self)

    def choose(self, module: nn.Module, request: Request) -> Choice:
        """Return the mechanism and the inputs of this call."""
        # Mechanisms without weights have none to drop; the report of the swap says so.
        dropped = request.dropout if self.mechanism.traits.weight_dropout else 0.0
        for mechanism in _mechanisms(self.mechanism):
            mechanism.weight_dropout = dropped
        extra: dict[str, Any] = {}
        if self.recorder is not None:
            states, spec = self.recorder.take(), self.spec
            maps = spec.projections["q"], spec.projections["k"]
            extra["layer_input"] = make_layer_input(
                module, states, *maps, spec.heads, spec.head_dim
            )
        return Choice(self.mechanism, self.spec.recipe.global_positions, extra)


def _mechanisms(module: nn.Module) -> list[Attention]:
    """Return a mechanism, or its copies in a module of peft that trains one (modules_to_save)."""
    if isinstance(module, Attention):
        return [module]
    return [y for x in module.children() for y in _mechanisms(x)]


def detach(module: nn.Module) -> None:
    """Remove the mechanism of an attention module, if it has one."""
    before = getattr(module, _ATTRIBUTE, None)
    if not isinstance(before, Swapped):
        return
    for parameter in before.frozen:
        parameter.requires_grad_(True)
    if before.recorder is not None:
        before.hook.remove()
    delattr(module, _ATTRIBUTE)


def record_swaps(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the specification of every mechanism of a base model, by the name of its module."""
    found = {name: getattr(x, _ATTRIBUTE, None) for name, x in model.named_modules()}
    return {name: x.spec.to_dict() for name, x in found.items() if isinstance(x, Swapped)}


def _choose(module: nn.Module, request: Request) -> Choice:
    swapped = getattr(module, _ATTRIBUTE, None)
    if swapped is None:
        return choose_full(module, request)
    if not isinstance(swapped, Swapped):
        raise InputError(
            f"{type(swapped).__name__} stands in the place of the mechanism of "
            f"{type(module).__name__}; to train it beside adapters of peft, pass "
            "modules_to_save=['mechanism']"
        )
    return swapped.choose(module, request)


AttentionInterface.register(SWAPPED, AttentionFunction(_choose))
AttentionMaskInterface.register(SWAPPED, create_padding_mask)


def missing_buffers(module: nn.Module) -> set[str]:
    """Return the names of buffers that no checkpoint holds."""
    return {name for name, _ in module.named_buffers()} - set(module.state_dict())
