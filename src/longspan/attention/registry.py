"""Registry of mechanisms and kernels."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.attention.base import Attention


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Alternative implementation; `refusals(attention, *inputs)` lists why it cannot run."""

    run: Callable
    refusals: Callable
    automatic: bool
    packed: bool


MECHANISMS: dict[str, type["Attention"]] = {}
KERNELS: dict[type["Attention"], dict[str, Kernel]] = {}


def register(
    name: str, *, size_option: str | None = None
) -> Callable[[type["Attention"]], type["Attention"]]:
    """Register a class as the mechanism `name` (class decorator).

    Args:
        name: key in `MECHANISMS`.
        size_option: option that trades memory for reach, an integer >= 1: window, block, rank, ...;
            None: the mechanism has no such option.

    Raises:
        OptionError: the name is taken; or an argument of the constructor has no default, and is
            not in `traits.sizes`.
    """

    def add(cls: type["Attention"]) -> type["Attention"]:
        if name in MECHANISMS:
            owner = MECHANISMS[name].__qualname__
            raise OptionError(
                f"mechanism {name!r} is already registered, by {owner}; choose another name"
            )
        _check_arguments(name, cls)
        MECHANISMS[name] = cls
        cls.name, cls.size_option = name, size_option
        return cls

    return add


def _check_arguments(name: str, cls: type["Attention"]) -> None:
    """Check that each argument of the constructor has a default, or is a size that models give."""
    _, *arguments = inspect.signature(cls.__init__).parameters.values()
    for argument in arguments:
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        is_given = argument.name in cls.traits.sizes or argument.default is not argument.empty
        if argument.kind is argument.POSITIONAL_ONLY:
            raise OptionError(
                f"mechanism {name!r}: argument {argument.name!r} of its constructor is positional; "
                "arguments are given by name: remove the /"
            )
        if not is_given:
            raise OptionError(
                f"mechanism {name!r}: argument {argument.name!r} of its constructor has no "
                "default; give it one, or list it in traits.sizes if it is a size of the model"
            )


def register_kernel(
    cls: type["Attention"], name: str, refusals: Callable, *, automatic: bool, packed: bool = False
) -> Callable:
    """Register a function as a kernel of a mechanism (function decorator).

    With backend "auto", kernels are tried in order of registration if `automatic` is True. A kernel
    that is not automatic runs only when it is requested by name. Documents laid one after another
    go to kernels that are `packed`, with `x.documents`; others compute them one by one.
    """

    def add(run: Callable) -> Callable:
        KERNELS[cls] = {**KERNELS.get(cls, {}), name: Kernel(run, refusals, automatic, packed)}
        return run

    return add


def backends(name: str) -> list[str]:
    """Return the backends of a mechanism: "auto", "torch", "reference", and its kernels."""
    cls = MECHANISMS[check_name(name, MECHANISMS, "mechanism")]
    return ["auto", "torch", "reference", *KERNELS.get(cls, {})]
