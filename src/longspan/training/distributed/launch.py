"""What torchrun or `accelerate launch` tells the processes that it starts."""

import os

from longspan.errors import OptionError

NUMBERS = ("WORLD_SIZE", "LOCAL_RANK")  # which torch and accelerate read in every process
MORE_NUMBERS = ("RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")  # of several processes


def launched_processes() -> int:
    """Return the number of processes of the launch; 1 without one.

    Raises:
        OptionError: an environment variable of a launch is no number.
    """
    names = (*NUMBERS, *MORE_NUMBERS) if all(name in os.environ for name in NUMBERS) else NUMBERS
    for name in names:
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise OptionError(
                f"environment variable {name} must be a number, got {value!r}; unset it, or start "
                "the processes with torchrun or accelerate launch"
            )
    return int(os.environ.get("WORLD_SIZE", "1"))
