"""Budgets: the quantity that a comparison holds equal.

Xiong et al. 2022, "Simple Local Attentions Remain Competitive for Long-Context Tasks", compare
mechanisms at equal steps, equal time and equal memory.
"""

import re
from typing import Literal

from longspan.config.base import setting, settings
from longspan.errors import OptionError, check_name

_BYTES: dict[str, float] = {
    "": 1,
    **{f"{letter}B": 1e3**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024.0**power for power, letter in enumerate("KMGT", 1)},
}
UNITS: dict[str, dict[str, float]] = {
    "seconds": {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400},
    "flops": {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
    **dict.fromkeys(("memory", "microbatch"), _BYTES),
}
# Three centuries; an exabyte.
LARGEST = {"seconds": 1e10, "flops": 1e30, "memory": 1e18, "microbatch": 1e18}
EXAMPLES = "steps, seconds=600, seconds=10min, flops=1e15, flops=2P, memory=2GiB or microbatch=2GiB"


@settings
class Budget:
    """A quantity that no mechanism may exceed.

    - "steps": the number of steps of the recipe, without a limit of its own.
    - "seconds": training time on this machine; the number of steps follows from a timed step.
    - "flops": training FLOPs, forward and backward; the number of steps follows.
    - "memory": bytes of one training step; the size of the mechanism is searched.
    - "microbatch": bytes of one training step; the batch is split into the fewest micro-batches
      that fit, so that every mechanism has the tokens of the recipe in an update.
    """

    kind: Literal["steps", "seconds", "flops", "memory", "microbatch"] = setting(
        "quantity held equal", "steps"
    )
    limit: float | None = setting("its limit; none for steps", None)

    def __post_init__(self) -> None:
        """Check that the limit fits the kind.

        Raises:
            OptionError: a budget of steps has a limit, or the limit of another one is missing or
                out of range.
        """
        if (self.kind == "steps") != (self.limit is None):
            expected = "no limit (set training.steps)" if self.kind == "steps" else "a limit"
            raise OptionError(f"a budget of {self.kind} takes {expected}, got {self.limit}")
        if self.limit is not None and self.limit <= 0:
            raise OptionError(f"the limit of a budget must be positive, got {self.limit}")
        if self.limit is not None and self.limit > LARGEST[self.kind]:
            raise OptionError(
                f"the limit of a budget of {self.kind} must be at most {LARGEST[self.kind]:g}, got "
                f"{self.limit:g}"
            )

    def __str__(self) -> str:
        """Return the text that `parse_budget` reads."""
        if self.limit is None:
            return self.kind
        short = f"{self.limit:.12g}"
        return f"{self.kind}={short if float(short) == self.limit else f'{self.limit:.17g}'}"


def parse_budget(text: str) -> Budget:
    """Parse `steps`, or KIND=LIMIT with an optional unit.

    Units are s, min, h, d (seconds); K, M, G, T, P, E (flops); KB to TB and KiB to TiB (memory,
    microbatch).

    Raises:
        OptionError: the unit or the number is invalid.
        UnknownNameError: there is no such kind; the message suggests near names.
    """
    kind, equals, limit = (part.strip() for part in text.partition("="))
    check_name(kind, ("steps", *UNITS), "budget")
    if kind == "steps" or not equals:
        if kind != "steps" or equals:
            raise OptionError(f"--budget must be like {EXAMPLES}, got {text!r}")
        return Budget()
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)", limit)
    units = UNITS[kind]
    if match is None or match[1].count(".") > 1 or match[1] == ".":
        raise OptionError(
            f"the limit of --budget {kind} must be a positive number, got {limit!r}; examples: "
            f"{EXAMPLES}"
        )
    if match[2] not in units:
        names = ", ".join(unit for unit in units if unit)
        raise OptionError(
            f"the unit of --budget {kind} must be one of {names}, got {match[2]!r} in {limit!r}"
        )
    return Budget(kind=kind, limit=float(match[1]) * units[match[2]])  # type: ignore[arg-type]
