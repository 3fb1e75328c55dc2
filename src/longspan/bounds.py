"""Largest sizes that can be meant: beyond them a number is a slip, and arithmetic overflows.

They are far above every published model. What fits the memory and the disk of a machine is
estimated before it is allocated, by `longspan.memory` and the tasks.
"""

from longspan.errors import OptionError

LONGEST = 2**24  # positions of a sequence, a summary token included
WIDEST = 2**18  # features of a layer, or of a head
MOST_LAYERS = 1_000
MOST_HEADS = 1_024
MOST_TAPS = 16  # of a short convolution
MOST_IDS = 2**24  # token ids, and classes
MOST_EXAMPLES = 10**9  # of a split
LARGEST_BATCH = 2**20  # examples
MOST_STEPS = 10**9
LARGEST_RATE = 1e38  # learning rates, weight decays, standard deviations: numbers of float32
HIGHEST_SCORE = 1e6  # of a metric, such as a perplexity
LARGEST_SEED = 2**63 - 1  # a JSON number of 64 bits
MOST_WORKERS = 1_024  # processes of one machine


def check_range(name: str, value: int | float, least: int | float, most: int | float) -> None:
    """Refuse a value that is out of range.

    Raises:
        OptionError: it is less than `least`, more than `most`, or NaN.
    """
    if reason := range_error(name, value, least, most):
        raise OptionError(reason)


def range_error(name: str, value: int | float, least: int | float, most: int | float) -> str | None:
    """Return the reason why a value is out of range, or None; NaN is out of every range."""
    if not value >= least:
        return f"{name} must be at least {_text(least)}, got {value}"
    return f"{name} must be at most {_text(most)}, got {value}" if not value <= most else None


def _text(bound: int | float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
