"""What a comparison holds equal besides the data: steps, time, operations, or memory.

Xiong et al. 2022, "Simple Local Attentions Remain Competitive for Long-Context Tasks", compare
mechanisms under each of these.
"""

import dataclasses
import re
from typing import Any, Literal, no_type_check

from longspan.errors import OptionError, check_name, mistyped_fields
from longspan.fields import setting
from longspan.training.config import TrainConfig

UNITS: dict[str, dict[str, float]] = {
    "seconds": {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400},
    "flops": {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
    "memory": {
        "": 1,
        **{f"{letter}B": 1e3**power for power, letter in enumerate("KMGT", 1)},
        **{f"{letter}iB": 1024.0**power for power, letter in enumerate("KMGT", 1)},
    },
}
EXAMPLES = "steps, seconds=600, seconds=10min, flops=1e15, flops=2P or memory=2GiB"
BACKWARD = 2  # operations of the backward pass, for each one of the forward pass


# `mistyped_fields` checks the types of fields, with words for people.
@no_type_check
@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """A quantity that every mechanism may use up, and no more.

    - "steps": the recipe's own number of steps; the limit is none.
    - "seconds": of training on the machine at hand; a step is timed, and steps follow.
    - "flops": of training, forward and backward, over all steps; steps follow.
    - "memory": bytes of one training step; sizes of mechanisms are searched below it.
    """

    kind: Literal["steps", "seconds", "flops", "memory"] = setting("what is held equal", "steps")
    limit: float | None = setting("how much of it; none for steps", None)

    def __post_init__(self) -> None:
        """Refuse an unknown kind, and a limit that is none."""
        reasons = mistyped_fields(self)
        if not reasons and (self.kind == "steps") != (self.limit is None):
            wanted = "no limit (set train.steps)" if self.kind == "steps" else "a limit"
            reasons.append(f"a budget of {self.kind} takes {wanted}, got {self.limit}")
        if not reasons and self.limit is not None and self.limit <= 0:
            reasons.append(f"the limit of a budget is positive, got {self.limit}")
        if reasons:
            raise OptionError("; ".join(reasons))
        if self.limit is not None:
            # 600 and 600.0 are one budget, with one hash
            object.__setattr__(self, "limit", float(self.limit))

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.limit is None:
            return self.kind
        short = f"{self.limit:.12g}"
        return f"{self.kind}={short if float(short) == self.limit else f'{self.limit:.17g}'}"

    def record(self, steps: int) -> dict[str, Any]:
        """As it stands in a result."""
        return {"kind": self.kind, "limit": steps if self.limit is None else self.limit}


def parse(text: str) -> Budget:
    """The budget that `--budget` names: `steps`, or KIND=LIMIT with a unit after the number.

    Units are s, min, h, d (seconds); K, M, G, T, P, E (flops); KB to TB and KiB to TiB (memory).

    Raises:
        OptionError: no such kind or unit, or no number.
        UnknownNameError: no such kind (with near names).
    """
    kind, equals, limit = (part.strip() for part in text.partition("="))
    check_name(kind, ("steps", *UNITS), "budget")
    if kind == "steps" or not equals:
        if kind != "steps" or equals:
            raise OptionError(f"--budget is one of {EXAMPLES}, got {text!r}")
        return Budget()
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)", limit)
    units = UNITS[kind]
    if found is None or found[1].count(".") > 1 or found[1] == ".":
        raise OptionError(f"--budget {kind} takes a positive number, as {EXAMPLES}, got {limit!r}")
    if found[2] not in units:
        names = ", ".join(unit for unit in units if unit)
        raise OptionError(f"--budget {kind} has the units {names}, got {found[2]!r} in {limit!r}")
    return Budget(kind=kind, limit=float(found[1]) * units[found[2]])  # type: ignore[arg-type]


def training_flops(forward: int, batch: int) -> int:
    """Operations of one training step: the backward pass does each product of the forward twice.

    Args:
        forward: operations of one example, forward.
        batch: examples of a step.
    """
    return (1 + BACKWARD) * forward * batch


def scaled(train: TrainConfig, steps: int) -> TrainConfig:
    """The recipe over another number of steps: warmup and evaluations at the same parts of it."""
    share = steps / train.steps
    return dataclasses.replace(
        train,
        steps=steps,
        warmup=max(1, round(train.warmup * share)) if train.warmup else 0,
        evaluate_every=max(1, -(-train.evaluate_every * steps // train.steps)),
    )
