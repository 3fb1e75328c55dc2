"""Examples that the help of each command prints, and command lines that have a remedy."""

import itertools
import tomllib
from collections.abc import Sequence
from pathlib import Path

from longspan.errors import OptionError

_USAGE = tomllib.loads(Path(__file__).with_name("usage.toml").read_text("utf-8"))
EXAMPLES: dict[str, list[str]] = _USAGE["examples"]
RENAMED: dict[str, str] = _USAGE["renamed"]
_PATHS = (
    *("--runs", "--cache", "--data", "--output", "--evidence", "--figures", "--prompt-file"),
    "--contribution",
)


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


def refuse_loose_pairs(words: Sequence[str]) -> None:
    """Refuse a second pair NAME=VALUE after one `--set` or `--grid`, which takes one.

    Raises:
        OptionError: there is one; the message has the option to repeat.
    """
    for flag, pair, word in zip(words, words[1:], words[2:], strict=False):
        if flag in ("--set", "--grid") and not word.startswith("-") and "=" in pair and "=" in word:
            raise OptionError(f"{flag} takes one NAME=VALUE; write {flag} before {word!r} too")


def refuse_empty_paths(words: Sequence[str]) -> None:
    """Refuse a path without text, such as that of an unset variable: it is the current folder.

    Raises:
        OptionError: there is one.
    """
    pairs = [*itertools.pairwise(words), *(word.split("=", 1) for word in words)]
    for flag, *value in pairs:
        if flag in _PATHS and value == [""]:
            raise OptionError(f"{flag} is empty; give a value, or omit it")
