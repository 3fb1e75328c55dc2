"""One line of text about an instance of a mechanism."""

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.attention.base import Attention

_DEFAULTS = {"backend": "auto", "max_global_tokens": None, "weight_dropout": 0.0}  # of `build`


def describe_options(attention: "Attention") -> str:
    """Return the class, and the arguments of `build` that give the same mechanism.

    Sizes and the size option are always included, other options where they differ from the default.
    """
    cls = type(attention)
    if not attention.options:
        return f"<{attention.signature}>"  # made without `build`, so its options are unknown
    parameters = inspect.signature(cls.__init__).parameters
    defaults = {name: x.default for name, x in parameters.items() if name not in cls.traits.sizes}
    shown: dict[str, Any] = {
        name: value
        for name, value in attention.options.items()
        if name == cls.size_option or name not in defaults or value != defaults[name]
    }
    if attention.causal:
        shown["causal"] = shown.pop("causal")  # after the options
    for name, default in _DEFAULTS.items():
        if (value := getattr(attention, name)) != default:
            shown[name] = value
    return f"{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
