"""What longspan says when it refuses: one line that names the value and the remedy."""

import difflib
from collections.abc import Iterable


class LongspanError(Exception):
    """Base of every refusal; the command line prints its message and exits with code 2."""

    def __str__(self) -> str:
        """The bare message (a `KeyError` alone would print it in quotes)."""
        return str(self.args[0]) if self.args else ""


class UnknownNameError(LongspanError, KeyError):
    """A mechanism, option, task, protocol or backend that does not exist."""


class OptionError(LongspanError, ValueError):
    """An option whose value cannot be used."""


class InputError(LongspanError, ValueError):
    """Tensors that a mechanism cannot serve; the message lists every reason."""


class DataError(LongspanError, ValueError):
    """A file that is absent, truncated, foreign or inconsistent."""


class RunError(LongspanError, RuntimeError):
    """A run that cannot go on, or a folder that belongs to another one."""


def known(name: str, names: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `names`.

    Raises:
        UnknownNameError: it is not; the message suggests near names, or lists all of them.
    """
    names = sorted(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(names)}"
    raise UnknownNameError(f"no {what} called {name!r}; {hint}")
