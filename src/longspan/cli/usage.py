"""Examples that the help of each command prints, and the names of earlier versions."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from longspan.errors import OptionError

_USAGE = tomllib.loads(Path(__file__).with_name("usage.toml").read_text("utf-8"))
EXAMPLES: dict[str, list[str]] = _USAGE["examples"]
RENAMED: dict[str, str] = _USAGE["renamed"]


def refuse_earlier_names(words: Sequence[str]) -> None:
    """Refuse a command line that names a command or an option as earlier versions did.

    Raises:
        OptionError: one does; the message has the name of today.
    """
    for name, successor in RENAMED.items():
        *command, last = name.split()
        rest = [word.partition("=")[0] for word in words[len(command) :]]
        if [*words[: len(command)]] == command and last in (
            rest if last.startswith("-") else rest[:1]
        ):
            raise OptionError(f"longspan {name} was renamed; use {successor}")
