"""Checks of types and shapes on every call, at a fraction of the cost of jaxtyping's own decorator.

pytest's option `--jaxtyping-packages` decorates every function of the named packages with
`jaxtyping.jaxtyped`. That checks the parameters twice, binds the signature of every call in Python
and wraps functions without annotations too: a quarter of the time of the tests of tensors.
"""

import dataclasses
import functools
import inspect
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from transformers.utils import ModelOutput

# Errors are those of jaxtyping.
_check = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
# Entered by every call, within others too: it keeps nothing of its own.
_CONTEXT = jaxtyping.jaxtyped("context")


def checked(function):
    """Check parameters and result of a function, or the fields of a dataclass, in one context.

    Axes of the same name have the same size within one call, as in `jaxtyping.jaxtyped`.
    """
    if inspect.isclass(function):
        if dataclasses.is_dataclass(function) and "__init__" in vars(function):
            # Transformers calls tensors of any device and precision torch.FloatTensor.
            own, hints = inspect.get_annotations(function), function.__init__.__annotations__
            function.__init__.__annotations__ = {
                name: hint if name in own or not issubclass(function, ModelOutput) else Any
                for name, hint in hints.items()
            }
            function.__init__ = checked(function.__init__)
        return function
    if not getattr(function, "__annotations__", None):
        return function
    typed = _typed(function)
    if function.__name__ != "__init__" and not _names_axes(typed):
        call = _without_context(function, typed)
    else:
        call = _in_context(function, typed)
    # Torch asks for it in every call of an own operator.
    call.__signature__ = inspect.signature(function)
    return call


def _in_context(function, typed):
    """Check a function whose types name axes."""

    @functools.wraps(function)
    def call(*arguments, **options):
        # A compiler cannot enter the context.
        if torch.compiler.is_compiling():
            return function(*arguments, **options)
        if jaxtyping.config.jaxtyping_disable or _is_rebuilt(arguments):
            return function(*arguments, **options)
        with _CONTEXT:
            return typed(*arguments, **options)

    return call


def _without_context(function, typed):
    """Check a function whose types name no axes: most calls are of such functions."""

    @functools.wraps(function)
    def call(*arguments, **options):
        if torch.compiler.is_compiling() or jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **options)
        return typed(*arguments, **options)

    return call


def _names_axes(hint):
    """Return whether types of arrays, which have axes, are among those of a function or a type."""
    if inspect.isfunction(hint):
        return any(_names_axes(x) for x in hint.__annotations__.values())
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(_names_axes(x) for x in get_args(hint))


def _is_rebuilt(arguments):
    """Return whether a model's output is made of one dictionary, as accelerate does under bf16."""
    return (
        len(arguments) == 2 and isinstance(arguments[0], ModelOutput) and type(arguments[1]) is dict
    )


def _typed(function):
    """Let beartype check a function."""
    hints = function.__annotations__
    function.__annotations__ = {n: _resolved(x, function.__globals__) for n, x in hints.items()}
    typed = _check(function)
    function.__annotations__ = hints
    return typed


def _resolved(hint, names):
    """Return the type that a hint stands for; one that names no type at run time is any type."""
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={"hint": hint}), names, include_extras=True
        )["hint"]
    except NameError:
        return Any


def install():
    """Let modules imported from now on take `checked` for `jaxtyping.jaxtyped`."""
    own = jaxtyping.jaxtyped

    def jaxtyped(function=None, *, typechecker=None):
        return own(function) if function == "context" else checked

    jaxtyping.jaxtyped = jaxtyped
