"""What a comparison holds equal besides the data: steps, time, operations, or memory.

Xiong et al. 2022, "Simple Local Attentions Remain Competitive for Long-Context Tasks", compare
mechanisms under each of these.
"""

import dataclasses
from typing import Any, Literal, no_type_check

from longspan.errors import OptionError, mistyped_fields
from longspan.fields import setting


# `mistyped_fields` checks the types of fields, with words for people.
@no_type_check
@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """A quantity that every mechanism may use up, and no more.

    - "steps": the recipe's own number of steps; the limit is none.
    - "seconds": of training on the machine at hand.
    - "flops": of training, forward and backward, over all steps.
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

    def record(self, steps: int) -> dict[str, Any]:
        """As it stands in a result."""
        return {"kind": self.kind, "limit": steps if self.limit is None else self.limit}
