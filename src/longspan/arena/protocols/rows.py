"""Named rows of protocols: reference rows, and variants of mechanisms."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from longspan.config import Budget
from longspan.errors import OptionError
from longspan.results import BASELINE, ROW, VARIANT


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedRow:
    """Row with a name of its own: a mechanism, and fields that differ from the recipe.

    Attributes:
        name: name of the row on the command line.
        tasks: tasks of the protocol that it exists for.
        changes: fields that it changes, by dotted name, `start.task` and `start.row` included.
        task_changes: further changes by task, which take precedence.
        source: paper and section that report such a row.
        mechanism: mechanism of the model.
        kind: "variant" for a mechanism with other options or global tokens, which is ranked among
            the mechanisms; "reference row" for a model whose architecture or input differs.
        budget: quantity held equal between it and other rows; None: that of the protocol.
    """

    name: str
    tasks: tuple[str, ...]
    changes: Mapping[str, Any]
    source: str
    mechanism: str = BASELINE
    task_changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    kind: Literal["variant", "reference row"] = "variant"
    budget: Budget | None = None

    @property
    def key(self) -> str:
        """Override that names the row in a record."""
        return VARIANT if self.kind == "variant" else ROW

    def changes_on(self, task: str) -> dict[str, Any]:
        """Return the fields that the row changes on a task, by dotted name."""
        return merge_changes(self.changes, self.task_changes.get(task, {}))

    def settings_on(self, task: str) -> dict[str, Any]:
        """Return what the row changes on a task, with its budget as text."""
        return {**self.changes_on(task), **self.budget_setting}

    @property
    def budget_setting(self) -> dict[str, str]:
        """Budget as text under its name; empty without one."""
        return {} if self.budget is None else {"budget": str(self.budget)}


def merge_changes(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of which the later apply; a start that names its task is a whole one."""
    if "start.task" in later:
        earlier = {name: x for name, x in earlier.items() if not name.startswith("start.")}
    return {**earlier, **later}


def refuse_fixed(row: NamedRow, task: str, changes: Mapping[str, Any]) -> None:
    """Refuse changes of what a named row sets on a task.

    How long and with which rates it trains may change, as of other rows: the record names that.

    Raises:
        OptionError: there is one.
    """
    fixed = row.changes_on(task)
    for field in sorted(changes.keys() & fixed.keys()):
        is_training = field.startswith("training.") and field != "training.stages"
        if changes[field] != fixed[field] and not is_training:
            raise OptionError(
                f"{row.kind} {row.name!r} sets {field}={fixed[field]}, got "
                f"{changes[field]}; run {row.mechanism!r} with another value"
            )


def refuse_budget(row: NamedRow, budget: Budget | None) -> None:
    """Refuse another budget than that of a named row.

    Raises:
        OptionError: it is another one.
    """
    if budget is not None and row.budget is not None and budget != row.budget:
        raise OptionError(
            f"{row.kind} {row.name!r} has the budget {row.budget}, got {budget}; omit --budget, or "
            f"run {row.mechanism!r} with it"
        )
