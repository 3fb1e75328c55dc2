"""Declaration of a field of a model's configuration, with all that other modules know of it."""

import copy
import dataclasses
from typing import Any, Literal


def option(
    default: Any,
    *,
    choices: tuple[str, ...] | None = None,
    bounds: tuple[float | int, float | int] | None = None,
    share: bool = False,
    weights: bool = False,
    decoder: bool = False,
    in_decoder: Any = dataclasses.MISSING,
    effect: Literal["model", "attention", "head", "none"] = "model",
    resolved: str | None = None,
) -> Any:
    """Return a field of a configuration.

    Args:
        default: default value; lists and dicts are copied.
        choices: permitted texts.
        bounds: least and largest number.
        share: whether the number is in [0, 1).
        weights: whether the weights of one value are useless under another one.
        decoder: whether the decoder of an encoder-decoder may have another value.
        in_decoder: value of such a decoder unless it has one of its own.
        effect: outputs that depend on it: those of every model, of the mechanisms, of some heads,
            or none.
        resolved: property of the configuration with the value that a default stands for.
    """
    notes: dict[str, Any] = {"choices": choices, "bounds": bounds, "share": share}
    notes |= {"weights": weights, "decoder": decoder, "effect": effect, "resolved": resolved}
    notes = {name: x for name, x in notes.items() if x}
    if in_decoder is not dataclasses.MISSING:
        notes["in_decoder"] = in_decoder
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=notes)
    return dataclasses.field(default=default, metadata=notes)


def declared(config: Any, note: str) -> dict[str, Any]:
    """Return a note of the fields that have it by name, such as the bounds of all sizes.

    Args:
        config: configuration, or its class.
        note: name of an argument of `option`.
    """
    return {x.name: x.metadata[note] for x in dataclasses.fields(config) if note in x.metadata}
