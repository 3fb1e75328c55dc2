"""Exceptions of longspan: each message is one line that names the value and the remedy."""

import difflib
from collections.abc import Iterable


class LongspanError(Exception):
    """Base class; the command line prints the message and exits with code 2."""

    def __str__(self) -> str:
        """Return the bare message; `KeyError` would quote it."""
        return str(self.args[0]) if self.args else ""


class UnknownNameError(LongspanError, KeyError):
    """Unknown mechanism, option, task, protocol or backend."""


class OptionError(LongspanError, ValueError):
    """Invalid value of an option."""


class InputError(LongspanError, ValueError):
    """Inputs that a mechanism does not support; the message lists every reason."""


class NoWeightsError(InputError):
    """Model or mechanism whose output is not a weighted sum of values."""


class PluginError(LongspanError, ImportError):
    """Plug-in that cannot be imported, or that registers an invalid or taken name."""


class DataError(LongspanError, ValueError):
    """Missing, truncated, inconsistent or unsupported file."""


class MissingSourceError(DataError):
    """Published data set that is not where it was searched for."""


class UnreadableError(DataError):
    """File that may be intact, but that the system does not read now: permission, disk, limits."""


class RunError(LongspanError, RuntimeError):
    """Failed run, or a folder that cannot be used for the run."""


class DivergedError(RunError):
    """Loss of a run is NaN or infinite."""


class NonFiniteLossError(DivergedError):
    """Evaluation loss that is NaN or infinite."""

    def __init__(self, loss: float, split: str):
        """Keep the loss and its split for the message of the training loop."""
        super().__init__(f"the {split} loss is {loss}")
        self.loss, self.split = loss, split


class NoMemoryError(RunError):
    """Run needs more memory than is available."""


class SourceFailedError(RunError):
    """Run that another one starts from has failed."""


class BusyError(RunError):
    """Another process holds this run's lock."""


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error, or its type if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_name(name: str, names: Iterable[str], what: str, suggestions: Iterable[str] = ()) -> str:
    """Return `name` if it is one of `names`.

    Args:
        name: the name to check.
        names: the valid names.
        what: the kind of name, for the message.
        suggestions: names that are not valid here, and that the message may suggest too.

    Raises:
        UnknownNameError: `name` is not one of them; the message suggests similar names, or lists
            all of them.
    """
    names = sorted(names)
    if name in names:
        return name
    near = difflib.get_close_matches(str(name), sorted({*names, *suggestions}), n=3)
    if near:
        hint = f"did you mean {', '.join(near)}?"
    else:
        hint = f"there are: {', '.join(names)}" if names else "there are none"
    raise UnknownNameError(f"no {what} called {name!r}; {hint}")
