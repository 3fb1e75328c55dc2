"""Values of options that are typed as text: names, integers, and pairs NAME=VALUE."""

import json
from typing import Any

from longspan.errors import OptionError
from longspan.files import parse_json


def split_names(text: str | None, flag: str) -> list[str] | None:
    """Split comma-separated names; None for an omitted option.

    Raises:
        OptionError: there is no name.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise OptionError(f"{flag} takes comma-separated names, got {text!r}")
    return names


def split_integers(text: str | None, flag: str) -> list[int] | None:
    """Split comma-separated integers; None for an omitted option.

    Raises:
        OptionError: one is not an integer.
    """
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise OptionError(f"{flag} takes comma-separated integers, got {text!r:.60}") from None


def parse_changes(pairs: list[str] | None, flag: str = "--set") -> dict[str, Any]:
    """Parse pairs NAME=VALUE.

    Raises:
        OptionError: a value is not NAME=VALUE, or a name occurs twice.
    """
    texts = _split_pairs(pairs, flag, "NAME=VALUE, such as training.steps=100")
    return {name: _parse_value(text, flag) for name, text in texts.items()}


def parse_grid(pairs: list[str] | None, flag: str = "--grid") -> dict[str, list[Any]]:
    """Parse pairs NAME=VALUES; values that contain commas are written as JSON.

    Raises:
        OptionError: a value is not NAME=VALUES, or a name occurs twice.
    """
    grid = {}
    form = "NAME=VALUES, such as training.learning_rate=1e-4,3e-4"
    for name, text in _split_pairs(pairs, flag, form).items():
        if not text:
            raise OptionError(f"{flag} takes {form}; got '{name}='")
        values = _parse_value(f"[{text}]", flag)
        if isinstance(values, str):
            values = [_parse_value(part.strip(), flag) for part in text.split(",")]
        grid[name] = values
    return grid


def _split_pairs(pairs: list[str] | None, flag: str, form: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals:
            raise OptionError(f"{flag} takes {form}; got {pair!r}")
        if name in texts:
            raise OptionError(f"{flag} names {name} twice; name it once, with all its values")
        texts[name] = text
    return texts


def _parse_value(text: str, flag: str) -> Any:
    """Parse a value as JSON; a bare word is text."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text
    except (RecursionError, ValueError) as error:
        raise OptionError(f"{flag} cannot take {text:.60} ({error})") from error
