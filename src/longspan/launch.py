"""Launches of several processes by torchrun or `accelerate launch`.

A variable left behind by a cluster or a shell is no launch.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping

from longspan.errors import OptionError

LAUNCHED = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by every launch of several processes
NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")


def is_launch(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process was started with others."""
    return all(environment.get(name) for name in LAUNCHED)


def launched_processes() -> int:
    """Return the number of processes of the launch; 1 without one.

    Raises:
        OptionError: an environment variable of a launch is no number.
    """
    if not is_launch():
        return 1
    for name in NUMBERS:
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise OptionError(
                f"environment variable {name} must be a number, got {value!r}; unset it, or start "
                "the processes with torchrun or accelerate launch"
            )
    return int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def without_leftovers() -> Iterator[None]:
    """Hide the variables of a launch from libraries if there is none: accelerate reads each."""
    names = () if is_launch() else (*LAUNCHED, *NUMBERS)
    variables = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(variables)
