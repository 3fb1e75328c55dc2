"""Mechanisms with other options for a while, on the same parameters: a longer memory, for example.

Transformer-XL is evaluated with a longer memory than it is trained with (Dai et al. 2019, section
4), Reformer with more hashes (Kitaev et al. 2020, table 2). Only options that decide no tensor can
differ between training and evaluation, but for random draws that nothing is trained for: a module
names them in `drawn_buffers`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.build import build, check_mechanism
from longspan.attention.initial_values import initial_values
from longspan.errors import OptionError

_OF_TORCH = frozenset(vars(nn.Module()))  # tensors, submodules, hooks and the mode
_KEPT = _OF_TORCH | {"backend_used"}


class OtherOptions:
    """Other options of a mechanism that `build` made.

    The instance and its tensors stay: hooks, shards and gradients are unchanged. Its attributes
    that are no tensors, such as sizes and the signature of caches, are exchanged.
    """

    def __init__(self, attention: Attention, changes: Mapping[str, Any]):
        """Check the options, and derive the attributes from them.

        Args:
            attention: mechanism.
            changes: options with their other values.

        Raises:
            UnknownNameError: there is no such option; the message suggests near names.
            OptionError: a value is invalid, or an option changes a parameter or a buffer.
        """
        check_mechanism(attention.name, changes)
        twin_mechanism = _build_again(attention, changes)
        if reasons := _changed_tensors(_build_again(attention, {}), twin_mechanism):
            pairs = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            raise OptionError(
                f"{attention.name} cannot be evaluated with {pairs}: a trained model needs options "
                f"that change no parameter and no buffer, but {'; '.join(reasons)}; train with "
                "these options instead"
            )
        self._inactive = [
            (module, _attributes(twin), _drawn_buffers(twin))
            for module, twin in zip(attention.modules(), twin_mechanism.modules(), strict=True)
        ]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the mechanism the other options inside the context."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        inactive = []
        for module, attributes, drawn in self._inactive:
            inactive.append((module, _attributes(module), _drawn_buffers(module)))
            for name in inactive[-1][1]:
                del vars(module)[name]
            vars(module).update(attributes)
            for name, x in drawn.items():
                setattr(module, name, x.to(getattr(module, name)))
        self._inactive = inactive


def _build_again(attention: Attention, changes: Mapping[str, Any]) -> Attention:
    """Build a mechanism with some options changed; random states stay as they are."""
    with initial_values(), torch.random.fork_rng(devices=()):
        twin = build(
            attention.name,
            backend=attention.backend,
            max_global_tokens=attention.max_global_tokens,
            weight_dropout=attention.weight_dropout,
            **{**attention.options, **changes},
        )
    if getattr(attention, "released", False):
        twin.release_shared()
    return twin


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that torch does not manage."""
    return {name: x for name, x in vars(module).items() if name not in _KEPT}


def _drawn_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the random draws of a module, by name."""
    return {name: getattr(module, name) for name in getattr(module, "drawn_buffers", ())}


def _changed_tensors(trained: Attention, other: Attention) -> list[str]:
    """Return the reasons why two mechanisms cannot have the same tensors."""
    if [type(x) for x in trained.modules()] != [type(x) for x in other.modules()]:
        return ["they change its modules"]
    drawn = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in trained.named_modules()
        for name in _drawn_buffers(module)
    }
    reasons = []
    for kind in ("parameter", "buffer"):
        before, after = (dict(getattr(x, f"named_{kind}s")()) for x in (trained, other))
        reasons += [f"{kind} {name} is new" for name in after.keys() - before.keys()]
        reasons += [f"{kind} {name} is absent" for name in before.keys() - after.keys()]
        for name in (before.keys() & after.keys()) - drawn:
            one, two = before[name], after[name]
            if one.shape != two.shape:
                shapes = f"the shape {tuple(two.shape)}, not {tuple(one.shape)}"
                reasons.append(f"{kind} {name} has {shapes}")
            elif kind == "buffer" and not _is_equal(one, two):
                reasons.append(f"{kind} {name} has other values")
    return sorted(reasons)


def _is_equal(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one, two)
