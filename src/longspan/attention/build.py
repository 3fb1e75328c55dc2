"""Build a mechanism by name, and check every option."""

import inspect
from collections.abc import Iterable
from typing import Any, get_type_hints

from longspan.attention.allocation import build_within_memory
from longspan.attention.base import Attention
from longspan.attention.option_types import size_errors, type_errors
from longspan.attention.registry import MECHANISMS, backends
from longspan.bounds import LONGEST, MOST_HEADS, MOST_LAYERS, WIDEST
from longspan.errors import OptionError, check_name

SIZES = {
    "heads": "number of heads",
    "head_dim": "head dimension",
    "width": "width of the layer's input",
    "max_length": "longest input",
    "layer": "index of the layer",
}
# Options that several mechanisms share, for their pages.
SHARED_OPTIONS = {
    "sink_tokens": "number of first tokens that every query attends to",
    "sink_logit": "whether each head learns a logit z, a term e^z of its denominators",
    "seed": "seed of the random draws",
}
_RANGES = {
    "heads": (1, MOST_HEADS),
    "head_dim": (1, WIDEST),
    "width": (1, WIDEST),
    "max_length": (1, LONGEST),
    "layer": (0, MOST_LAYERS - 1),
}
# Arguments of `build` that one may mean by an option that does not exist.
_ARGUMENTS = (*SIZES, "causal", "backend", "max_global_tokens", "weight_dropout")
_SEED_LIMIT = 2**42  # random generators take 64 bits: the seed times a million, plus the layer


def build(
    name: str,
    *,
    causal: bool = False,
    backend: str = "auto",
    heads: int | None = None,
    head_dim: int | None = None,
    width: int | None = None,
    max_length: int | None = None,
    layer: int = 0,
    max_global_tokens: int | None = None,
    weight_dropout: float = 0.0,
    **options: Any,
) -> Attention:
    """Build a mechanism.

    Masks of its calls are True at real tokens, the opposite of torch's `key_padding_mask`.

    Args:
        name: key in `MECHANISMS`.
        causal: whether output t may depend on inputs 0..t only.
        backend: "auto", "torch", "reference" or a kernel's name. A backend requested by name
            runs or raises; there is no fallback.
        heads: number of heads; required by mechanisms with per-head parameters.
        head_dim: head dimension; required by mechanisms with parameters or features of that size.
        width: width of the layer's input, from which some mechanisms compute gates; None: heads *
            head_dim.
        max_length: longest input; required by mechanisms with parameters per position.
        layer: index of the layer, so that layers draw different random features.
        max_global_tokens: maximum number of tokens of `global_mask` per row; more are refused (by
            an assertion on the device, if the mask is not on the CPU or the call is traced). Calls
            then have fixed shapes and no synchronization, as `torch.export`, meta tensors and
            `torch.compile(fullgraph=True)` require. None: the tokens are counted in each call.
        weight_dropout: probability with which a weight of the softmax is dropped in training, as
            `dropout_p` of torch's `scaled_dot_product_attention`. Mechanisms that form no weights
            have none to drop (`traits.weight_dropout`).
        options: options of the mechanism; `options_of(name)` lists them.

    Raises:
        UnknownNameError: there is no such mechanism, option or backend; the message suggests
            near names.
        OptionError: there is no causal form, a size is missing, or a value is invalid.
        NoMemoryError: the mechanism needs a tensor that is larger than the available memory.
    """
    check_mechanism(name, options, backend, suggestions=_ARGUMENTS)
    cls = MECHANISMS[name]
    sizes = {"heads": heads, "head_dim": head_dim, "width": width}
    sizes |= {"max_length": max_length, "layer": layer}
    reasons = type_errors({"causal": causal}, {"causal": bool}) + _size_errors(sizes)
    hints = get_type_hints(cls.__init__, include_extras=True)
    reasons += type_errors(options, hints) or size_errors(options)
    reasons += _limit_errors(max_global_tokens, cls) + _dropout_errors(weight_dropout)
    needed = _needed_sizes(cls, sizes)
    reasons += _missing_errors(needed) + _seed_errors(options)
    if causal and not cls.traits.causal:
        reasons.append("causal=True is not supported (traits.causal)")
    if reasons:
        raise OptionError(f"{name} cannot be built: {'; '.join(reasons)}")
    if cls.traits.causal:
        needed["causal"] = causal
    optional = _optional_sizes(cls, sizes)
    attention = build_within_memory(name, lambda: cls(**needed, **optional, **options))
    _check_dropout(attention, weight_dropout)
    used = {size: value for size, value in optional.items() if size in attention.built_for}
    attention.options = {**needed, **used, **options_of(name), **options}
    attention.signature = _signature(name, attention.options)
    attention.max_global_tokens, attention.weight_dropout = max_global_tokens, weight_dropout
    attention.backend = backend
    return attention


def _check_dropout(attention: Attention, probability: float) -> None:
    """Raise OptionError if weights are to be dropped, and the options form none."""
    if probability and not attention.traits.weight_dropout:
        raise OptionError(
            f"{attention.name} cannot be built: weight_dropout is not supported with these options "
            "(traits.weight_dropout)"
        )


def _optional_sizes(cls: type[Attention], sizes: dict[str, int | None]) -> dict[str, Any]:
    """Return the sizes that the constructor takes, and that only some options require."""
    arguments = inspect.signature(cls.__init__).parameters
    return {x: sizes[x] for x in sizes if x in arguments and x not in cls.traits.sizes}


def _signature(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{option}={value!r}' for option, value in options.items())})"


def _needed_sizes(cls: type[Attention], sizes: dict[str, int | None]) -> dict[str, Any]:
    """Return the sizes that the constructor requires; the width follows from the heads."""
    needed: dict[str, Any] = {size: sizes[size] for size in cls.traits.sizes}
    heads, head_dim = sizes["heads"], sizes["head_dim"]
    if needed.get("width", 0) is None and type(heads) is type(head_dim) is int:
        needed["width"] = heads * head_dim
    return needed


def _size_errors(sizes: dict[str, Any]) -> list[str]:
    """Return one message for each size that is given and not an integer in its range."""
    reasons = []
    for name, size in sizes.items():
        least, most = _RANGES[name]
        if size is not None and (type(size) is not int or size < least):
            reasons.append(f"{name} must be an integer >= {least}, got {size!r:.60}")
        elif size is not None and size > most:
            reasons.append(f"{name} must be at most {most:,}, got {size}")
    return reasons


def _missing_errors(needed: dict[str, Any]) -> list[str]:
    return [f"{size} is required ({SIZES[size]})" for size, x in needed.items() if x is None]


def _seed_errors(options: dict[str, Any]) -> list[str]:
    seed = options.get("seed", 0)
    if not isinstance(seed, int) or abs(seed) < _SEED_LIMIT:
        return []
    return [f"seed must be between -2^42 and 2^42, got {seed}"]


def _dropout_errors(probability: Any) -> list[str]:
    if type(probability) in (int, float) and 0 <= probability < 1:
        return []
    return [f"weight_dropout must be a number in [0, 1), got {probability!r:.60}"]


def _limit_errors(most: Any, cls: type[Attention]) -> list[str]:
    """Return the reason why this cannot limit the number of global tokens."""
    if most is None:
        return []
    if not cls.traits.global_tokens:
        return ["max_global_tokens is not supported (traits.global_tokens)"]
    if type(most) is not int or most < 0:
        return [f"max_global_tokens must be an integer >= 0 or None, got {most!r:.60}"]
    return []


def check_mechanism(
    name: str,
    options: Iterable[str] = (),
    backend: str = "auto",
    *,
    suggestions: Iterable[str] = (),
) -> None:
    """Check that a mechanism, its options and its backend exist.

    Args:
        name: key in `MECHANISMS`.
        options: names of options.
        backend: name of a backend.
        suggestions: names that are no options, and that the message may suggest too.

    Raises:
        UnknownNameError: one of them does not exist; the message suggests near names.
    """
    available = options_of(name)
    for option in options:
        check_name(option, available, f"option of {name!r}", suggestions)
    check_name(backend, backends(name), f"backend of {name!r}")


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a mechanism with their defaults, without sizes and `causal`.

    Options are keyword-only arguments of the constructor.
    """
    cls = MECHANISMS[check_name(name, MECHANISMS, "mechanism")]
    parameters = inspect.signature(cls.__init__).parameters.values()
    sizes = {"causal", *SIZES}
    options = (p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in sizes)
    return {p.name: p.default for p in options}
